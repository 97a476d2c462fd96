// Attention, forward. Scores are never stored: a tile of query rows meets a block of keys, softmax
// runs along (Milakov and Gimelshein, arXiv 1805.02867: the sums so far are scaled down whenever a
// larger score appears), and the next block follows.
//
// The query heads of one key-value head are the rows of one problem: row r is position r/group, head
// r%group, so that a tile of rows covers few positions and little of the diagonal is wasted.
// Both are packed in fp32: keys by panels of 32, transposed, and values as they are. Queries are scaled
// by log₂ e more than Scale, so that exponentials are powers of two.

#include "attention_head.h"
#include "gemm_parts.h"

enum {
  STRIP = 8,         // rows of one micro-kernel
  PANEL = 2 * LANES, // its columns
  ROWS = 64,         // rows of a tile
  KEYS = 128,        // keys of a block: part of the order of sums
  SCORES = KEYS + 16 // leading dimension of scores: no power of two, so that rows differ in cache set
};

// tile computes c = a·b, or c += a·b, for rows × 16·vectors elements: one chain of fused
// multiply-adds each, k ascending.
INLINED void tile(float *c, int64_t ldc, const float *a, int64_t row_step, int64_t k_step, const float *b,
                    int64_t ldb, int64_t depth, int rows, int vectors, int add) {
  vf acc[STRIP][2];
  GK_UNROLL
  for (int i = 0; i < rows; i++)
    GK_UNROLL
    for (int j = 0; j < vectors; j++) acc[i][j] = add ? v_load(c + i * ldc + j * LANES) : v_set(0);
  for (int64_t k = 0; k < depth; k++) {
    vf bk[2];
    GK_UNROLL
    for (int j = 0; j < vectors; j++) bk[j] = v_load(b + k * ldb + j * LANES);
    GK_UNROLL
    for (int i = 0; i < rows; i++) {
      vf x = v_set(a[i * row_step + k * k_step]);
      GK_UNROLL
      for (int j = 0; j < vectors; j++) acc[i][j] = v_fma(x, bk[j], acc[i][j]);
    }
  }
  GK_UNROLL
  for (int i = 0; i < rows; i++)
    GK_UNROLL
    for (int j = 0; j < vectors; j++) v_store(c + i * ldc + j * LANES, acc[i][j]);
}

// The tile that fits the registers: 8×32 with 32 of them, 4×16 with half as many half as long.
#if GK_LEVEL == 2
enum { TILE_ROWS = 8, TILE_VECTORS = 2 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 1 };
#endif

// product multiplies up to 8 rows with cols columns, a multiple of 16. Columns of b lie in panels of
// 32, `panel` floats apart. It may touch rows up to the next of 1, 2, 4 and 8.
static __attribute__((noinline)) void product(float *c, int64_t ldc, const float *a, int64_t row_step, int64_t k_step, const float *b,
                    int64_t ldb, int64_t panel, int64_t depth, int rows, int64_t cols, int add) {
  for (int64_t col = 0; col < cols;) {
    int vectors = TILE_VECTORS == 2 && cols - col >= 2 * LANES ? 2 : 1;
    const float *bc = b + col / PANEL * panel + col % PANEL;
    for (int row = 0; row < rows; row += TILE_ROWS) {
      float *cr = c + row * ldc + col;
      const float *ar = a + row * row_step;
      int many = rows - row;
#define TILE(r, v)                                                                   \
  do {                                                                               \
    if (add) tile(cr, ldc, ar, row_step, k_step, bc, ldb, depth, r, v, 1);           \
    else tile(cr, ldc, ar, row_step, k_step, bc, ldb, depth, r, v, 0);               \
  } while (0)
#if GK_LEVEL == 2
      if (many > 4) {
        if (vectors == 2) TILE(8, 2);
        else TILE(8, 1);
        continue;
      }
      if (vectors == 2) {
        if (many > 2) TILE(4, 2);
        else if (many == 2) TILE(2, 2);
        else TILE(1, 2);
        continue;
      }
#endif
      if (many > 2) TILE(4, 1);
      else if (many == 2) TILE(2, 1);
      else TILE(1, 1);
#undef TILE
    }
    col += vectors * LANES;
  }
}

// pack_row copies a row of `size` elements as floats, times scale, and fills up to `padded`.
INLINED void pack_row(float *dst, const void *src, int type, int size, int padded, float scale) {
  for (int i = 0; i < padded; i += LANES) v_store(dst + i, v_mul(v_ld(src, type, i, size), v_set(scale)));
}

// pack_across transposes a block's keys (or values): panels of 32 keys, element by element. Keys
// beyond the sequence are zero.
static void pack_across(const head *h, const void *src, int64_t begin, float *dst) {
  int64_t many = h->keys - begin < KEYS ? h->keys - begin : KEYS, panels = (many + PANEL - 1) / PANEL;
  memset(dst + panels * PANEL * h->size, 0, (size_t)((KEYS - panels * PANEL) * h->size) * sizeof *dst);
#if GK_LEVEL > 0
  gk_pack_avx2(&(gk_pack){.src = at(src, h->type, begin * h->stride),
                          .stride = h->stride * (h->type == GK_BF16 ? 2 : 4),
                          .k_contiguous = 1,
                          .unit = h->type == GK_BF16 ? GK_UNIT_WIDEN : GK_UNIT_F32,
                          .count = many,
                          .k = h->size,
                          .width = PANEL,
                          .dst = (char *)dst});
#else
  for (int64_t j = 0; j < panels * PANEL; j++) {
    float *out = dst + j / PANEL * PANEL * h->size + j % PANEL;
    const void *key = at(src, h->type, (begin + j) * h->stride);
    for (int d = 0; d < h->size; d++) {
      if (j >= many) out[d * PANEL] = 0;
      else out[d * PANEL] = h->type == GK_BF16 ? gk_bf16_to_f32(((const gk_bf16 *)key)[d]) : ((const float *)key)[d];
    }
  }
#endif
}

// pack_along copies a block's keys or values.
static void pack_along(const head *h, const void *src, int64_t begin, float *dst) {
  int64_t many = h->keys - begin < KEYS ? h->keys - begin : KEYS;
  for (int64_t j = 0; j < many; j++)
    pack_row(dst + j * h->padded, at(src, h->type, (begin + j) * h->stride), h->type, h->size, h->padded, 1);
  if (many < KEYS) memset(dst + many * h->padded, 0, (size_t)((KEYS - many) * h->padded) * sizeof *dst);
}

// memory_forward is a thread's scratch: the tile, then as many packed blocks as fit.
typedef struct {
  float *q, *out;        // [ROWS][padded]
  float *scores, *top;   // [STRIP][SCORES], [STRIP][LANES]
  float *max, *sum;      // [ROWS], [ROWS][LANES]
  int64_t *first, *end;  // [ROWS]: keys that a row sees
  float *blocks;         // each keys then values
  int64_t slots, *packed; // how many, and which block each slot holds, or −1
} memory_forward;

static memory_forward forward_memory(const gk_call *c, int thread, int padded) {
  memory_forward m;
  m.packed = gk_pool_scratch(c->ctx->pool, thread);
  m.first = m.packed + MAX_SLOTS;
  m.end = m.first + ROWS;
  float *f = (float *)(m.end + ROWS);
  m.q = f, f += ROWS * padded;
  m.out = f, f += ROWS * padded;
  m.scores = f, f += STRIP * SCORES;
  m.top = f, f += STRIP * LANES;
  m.max = f, f += ROWS;
  m.sum = f, f += ROWS * LANES;
  m.blocks = f;
  char *end = (char *)gk_pool_scratch(c->ctx->pool, thread) + gk_pool_scratch_bytes(c->ctx->pool);
  m.slots = (end - (char *)f) / (int64_t)(2 * KEYS * (int64_t)padded * (int64_t)sizeof(float));
  if (m.slots > MAX_SLOTS) m.slots = MAX_SLOTS;
  return m;
}

// fetch_rows asks for rows [begin, end) of a tensor of queries, to read or to write. A tile's rows lie a few
// here and a few there, which the hardware's prefetcher does not follow: waiting for them took 4 % of the backward.
INLINED void fetch_rows(const head *h, const void *tensor, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end && row < h->rows; row++)
    prefetch(at(tensor, h->type, query(h, row) * h->size), h->size * (h->type == GK_BF16 ? 2 : 4));
}

// keep_seen keeps the lanes of keys that a row sees, the first of which is key `key`.
INLINED vf keep_seen(vf x, int64_t first, int64_t end, int64_t key, float fill) {
  int64_t lo = first - key, hi = end - key;
  return v_keep(x, lo < 0 ? 0 : lo > LANES ? LANES : (int)lo, hi < 0 ? 0 : hi > LANES ? LANES : (int)hi, v_set(fill));
}

// all_seen says whether each of many rows sees all of some keys from `key` on.
INLINED int all_seen(const int64_t *first, const int64_t *end, int many, int64_t key, int keys) {
  int all = 1;
  for (int i = 0; i < many; i++) all &= first[i] <= key && end[i] >= key + keys;
  return all;
}

// score computes scores of some rows, from row i of the tile on, and 16·vectors keys, from key `key` of the
// block on, and raises each row's maximum, a lane each, before the scores leave the registers.
INLINED void score(const memory_forward *m, int i, int key, int64_t base, const float *q, const float *keys, int size,
                   int padded, int rows, int vectors, int masked) {
  vf s[STRIP][2];
  GK_UNROLL
  for (int r = 0; r < rows; r++)
    GK_UNROLL
    for (int j = 0; j < vectors; j++) s[r][j] = v_set(0);
  for (int64_t k = 0; k < size; k++) {
    vf bk[2];
    GK_UNROLL
    for (int j = 0; j < vectors; j++) bk[j] = v_load(keys + k * PANEL + j * LANES);
    GK_UNROLL
    for (int r = 0; r < rows; r++) {
      vf x = v_set(q[r * padded + k]);
      GK_UNROLL
      for (int j = 0; j < vectors; j++) s[r][j] = v_fma(x, bk[j], s[r][j]);
    }
  }
  GK_UNROLL
  for (int r = 0; r < rows; r++) {
    const int row = i % STRIP + r;
    vf top = v_load(m->top + row * LANES);
    GK_UNROLL
    for (int j = 0; j < vectors; j++) {
      if (masked) s[r][j] = keep_seen(s[r][j], m->first[i + r], m->end[i + r], base + key + j * LANES, -INFINITY);
      v_store(m->scores + row * SCORES + key + j * LANES, s[r][j]);
      top = v_max(top, s[r][j]);
    }
    v_store(m->top + row * LANES, top);
  }
}

// score_strip computes scores of up to 8 rows and of keys [from, to) of a block: from is a multiple of 32,
// to of 16.
static __attribute__((noinline)) void score_strip(const memory_forward *m, int i, int rows, int64_t base, int from, int to,
                                                  const float *keys, int size, int padded) {
  for (int r = 0; r < STRIP; r++) v_store(m->top + r * LANES, v_set(-INFINITY));
  for (int key = from; key < to; key += TILE_VECTORS * LANES) {
    const float *panel = keys + key / PANEL * PANEL * (int64_t)size + key % PANEL;
    for (int row = i; row < i + rows; row += TILE_ROWS) {
      const float *q = m->q + row * padded;
      const int many = i + rows - row;
#define SCORE(r, v, masked) score(m, row, key, base, q, panel, size, padded, r, v, masked)
#if GK_LEVEL == 2
      if (many > 4) {
        if (to - key < PANEL) SCORE(8, 1, 1);
        else if (all_seen(m->first + row, m->end + row, 8, base + key, PANEL)) SCORE(8, 2, 0);
        else SCORE(8, 2, 1);
        continue;
      }
#endif
      if (many > 2) SCORE(4, TILE_VECTORS, 1);
      else if (many == 2) SCORE(2, TILE_VECTORS, 1);
      else SCORE(1, TILE_VECTORS, 1);
#undef SCORE
    }
  }
}

// weigh_strip turns scores of keys [from, to) into weights, powers of two, and keeps each row's maximum and sum
// (a lane each). Where keys came before, it scales down what the rows have summed so far.
static __attribute__((noinline)) void weigh_strip(const memory_forward *m, int i, int rows, int from, int to, int padded,
                                                  int began) {
  float old[LANES] = {0}, high[LANES] = {0}, shrink[LANES];
  for (int r = 0; r < rows; r++) {
    float peak = v_max_across(v_load(m->top + r * LANES));
    old[r] = m->max[i + r];
    high[r] = old[r] > peak ? old[r] : peak;
  }
  v_store(shrink, v_exp2(v_sub(v_load(old), v_load(high))));
  for (int r = 0; r < rows; r++) {
    float *s = m->scores + r * SCORES, *sums = m->sum + (i + r) * LANES;
    vf shift = v_set(high[r]), sum = v_mul(v_load(sums), v_set(shrink[r]));
    int j = from;
    for (; j + STEP_LANES <= to; j += STEP_LANES) {
      vf p[STEP];
      EACH_STEP p[k] = v_sub(v_load(s + j + k * LANES), shift);
      v_weights(p, STEP);
      EACH_STEP v_store(s + j + k * LANES, p[k]);
      EACH_STEP sum = v_add(sum, p[k]);
    }
    for (; j < to; j += LANES) {
      vf p = v_sub(v_load(s + j), shift);
      v_weights(&p, 1);
      v_store(s + j, p);
      sum = v_add(sum, p);
    }
    v_store(sums, sum);
    m->max[i + r] = high[r];
    if (shrink[r] == 1 || !began) continue;
    float *out = m->out + (i + r) * padded;
    for (int d = 0; d < padded; d += LANES) v_store(out + d, v_mul(v_load(out + d), v_set(shrink[r])));
  }
}

// attend computes rows [begin, end) of a head, at most ROWS.
static void attend(const head *h, memory_forward *m, int64_t begin, int64_t end) {
  const gk_attention_args *o = h->args;
  int many = (int)(end - begin), padded = h->padded;
  for (int i = 0; i < (many + STRIP - 1) / STRIP * STRIP; i++) {
    m->max[i] = -3.4e38f;
    v_store(m->sum + i * LANES, v_set(0));
    m->first[i] = m->end[i] = 0;
    if (i < many) {
      pack_row(m->q + i * padded, at(o->q, h->type, query(h, begin + i) * h->size), h->type, h->size, padded, scale2(o));
      m->first[i] = first_key(h, begin + i), m->end[i] = end_key(h, begin + i);
    } else memset(m->q + i * padded, 0, (size_t)padded * sizeof *m->q);
  }
  // Values that a single tile reads are not worth a copy.
  int in_place = h->type == GK_F32 && h->size == padded && h->rows <= ROWS;
  int64_t lo, hi;
  span(h, begin, end, &lo, &hi);
  for (int64_t block = lo / KEYS; block * KEYS < hi; block++) {
    int64_t base = block * KEYS, slot = block % m->slots;
    float *keys = m->blocks + slot * 2 * KEYS * padded, *values = keys + KEYS * padded;
    if (m->packed[slot] != block) {
      pack_across(h, h->k, base, keys);
      if (!in_place) pack_along(h, h->v, base, values);
      m->packed[slot] = block;
    }
    for (int i = 0; i < many; i += STRIP) {
      int rows = many - i < STRIP ? many - i : STRIP;
      int64_t first, last;
      if (block == lo / KEYS) {
        fetch_rows(h, o->q, end + i, end + i + STRIP);
        fetch_rows(h, o->out, begin + i, begin + i + rows);
      }
      span(h, begin + i, begin + i + rows, &first, &last);
      if (first >= base + KEYS || last <= base) continue;
      // Scores are made by whole vectors, but weighed only where a row sees the key.
      int sees = first > base ? (int)(first - base) : 0, from = sees / PANEL * PANEL, began = first < base;
      int end = last < base + KEYS ? (int)(last - base) : KEYS, to = (end + LANES - 1) / LANES * LANES;
      score_strip(m, i, rows, base, from, to, keys, h->size, padded);
      weigh_strip(m, i, rows, from, to, padded, began);
      const float *v = in_place ? at(h->v, GK_F32, (base + sees) * h->stride) : values + sees * padded;
      product(m->out + i * padded, padded, m->scores + sees, SCORES, 1, v, in_place ? h->stride : padded, PANEL, end - sees,
              rows, padded, began);
    }
  }
  for (int i = 0; i < many; i++) {
    int64_t row = query(h, begin + i);
    float sum = v_sum(v_load(m->sum + i * LANES));
    vf share = v_set(1 / sum);
    for (int d = 0; d < h->size; d += LANES)
      v_st(at_w(o->out, h->type, row * h->size), h->type, d, h->size, v_mul(v_load(m->out + i * padded + d), share));
    if (o->lse) o->lse[row] = (float)(log((double)sum) + LN_2 * m->max[i]);
  }
}

// forward_heads lets threads take heads, or every n-th tile of a head, until none is left. Which
// thread computes a tile changes nothing in it.
static void forward_heads(const gk_call *c, int thread, int threads, int type) {
  const gk_attention_args *o = c->args;
  int64_t heads = o->seqs * o->kv_heads, rows = o->seq_len * (o->heads / o->kv_heads);
  int64_t cut = parts(heads, (rows + ROWS - 1) / ROWS, threads), holds = -1, item;
  memory_forward m = forward_memory(c, thread, (int)((o->head_size + LANES - 1) / LANES * LANES));
  while ((item = gk_next(c, 0)) < heads * cut) {
    int64_t which = item / cut, seq = which / o->kv_heads, kv_head = which % o->kv_heads;
    head h = new_head(o, type, seq, kv_head);
    if (o->cached != NULL) {
      h.start = NULL;
      h.offset = o->cached[seq];
      h.stride = o->kv_heads * o->head_size;
      h.k = at(o->k_cache, type, (seq * o->cache_len * o->kv_heads + kv_head) * o->head_size);
      h.v = at(o->v_cache, type, (seq * o->cache_len * o->kv_heads + kv_head) * o->head_size);
      int64_t room = o->cache_len - h.offset;
      int64_t fit = room < 0 ? 0 : room < o->seq_len ? room : o->seq_len;
      h.keys = h.offset + fit;
      h.rows = fit * h.group;
    }
    if (which != holds) {
      for (int64_t s = 0; s < m.slots; s++) m.packed[s] = -1;
      holds = which;
    }
    for (int64_t row = item % cut * ROWS; row < h.rows; row += cut * ROWS)
      attend(&h, &m, row, row + ROWS < h.rows ? row + ROWS : h.rows);
  }
}

static void attention(const gk_call *c, int thread, int threads, int type) { forward_heads(c, thread, threads, type); }

// attention_decode first writes the new keys and values, and zeros for rows without room.
static void attention_decode(const gk_call *c, int thread, int threads, int type) {
  if (c->phase == 1) {
    forward_heads(c, thread, threads, type);
    return;
  }
  const gk_attention_args *o = c->args;
  int64_t begin, end, width = o->kv_heads * o->head_size, wide = o->heads * o->head_size;
  size_t element = type == GK_BF16 ? 2 : 4;
  gk_split(o->seqs * o->seq_len, 1, thread, threads, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    int64_t seq = r / o->seq_len, at_row = o->cached[seq] + r % o->seq_len;
    if (at_row >= o->cache_len) {
      memset(at_w(o->out, type, r * wide), 0, (size_t)wide * element);
      continue;
    }
    int64_t to = (seq * o->cache_len + at_row) * width;
    memcpy(at_w(o->k_cache, type, to), at(o->k, type, r * width), (size_t)width * element);
    memcpy(at_w(o->v_cache, type, to), at(o->v, type, r * width), (size_t)width * element);
  }
}
