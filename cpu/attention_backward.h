// Attention, backward. A tile of query rows and a block of keys give probabilities P (from LSE) and
// score gradients S; the tile's DQ adds S·K, the block's DK and DV add Sᵀ·Q and Pᵀ·DOut. The order of
// every sum is by keys or by rows, ascending, whoever computes it. So there are two ways with the same
// bits: where heads are enough for all threads, and a head's gradients fit the scratch, both
// directions are done together; else DQ by tiles and DK, DV by blocks, each computing P and S for itself.
//
// Scores never leave the registers: both products of 4 rows and 32 keys fill 16 sums, which become P and S
// there. That, and to fetch rows ahead, gave 3 to 6 %. Reached as attention.h says: 75-79 % of the peak,
// 72-74 % out of the caches.

typedef struct {
  float *q, *dout, *dq;    // [ROWS][padded]; q is scaled
  float *p, *s;            // [ROWS][SCORES]
  float *lse, *d;          // [ROWS]; LSE of base 2
  int64_t *first, *end;    // [ROWS]: keys that a row sees
  float *blocks;           // each: keys across, values across, keys along, DK, DV
  int64_t slots, *packed;
} memory_backward;

enum { BLOCK_PARTS = 5 };

// SCORE_ROWS rows and WIDTH keys of both scores fit the registers.
#if GK_LEVEL == 2
enum { SCORE_ROWS = 4 };
#else
enum { SCORE_ROWS = 2 };
#endif
enum { WIDTH = TILE_VECTORS * LANES };

static memory_backward backward_memory(const gk_call *c, int thread, int padded) {
  memory_backward m;
  m.packed = gk_pool_scratch(c->ctx->pool, thread);
  m.first = m.packed + MAX_SLOTS;
  m.end = m.first + ROWS;
  float *f = (float *)(m.end + ROWS);
  m.q = f, f += ROWS * padded;
  m.dout = f, f += ROWS * padded;
  m.dq = f, f += ROWS * padded;
  m.p = f, f += ROWS * SCORES;
  m.s = f, f += ROWS * SCORES;
  m.lse = f, f += ROWS;
  m.d = f, f += ROWS;
  m.blocks = f;
  char *end = (char *)gk_pool_scratch(c->ctx->pool, thread) + gk_pool_scratch_bytes(c->ctx->pool);
  m.slots = (end - (char *)f) / (int64_t)(BLOCK_PARTS * KEYS * (int64_t)padded * (int64_t)sizeof(float));
  if (m.slots > MAX_SLOTS) m.slots = MAX_SLOTS;
  return m;
}

// packed_block returns the memory of a block, packed; its DK and DV are zero where it was packed anew.
static float *packed_block(const head *h, memory_backward *m, int64_t block) {
  int64_t slot = block % m->slots, part = KEYS * (int64_t)h->padded;
  float *f = m->blocks + slot * BLOCK_PARTS * part;
  if (m->packed[slot] == block) return f;
  pack_across(h, h->k, block * KEYS, f);
  pack_across(h, h->v, block * KEYS, f + part);
  pack_along(h, h->k, block * KEYS, f + 2 * part);
  memset(f + 3 * part, 0, (size_t)(2 * part) * sizeof *f);
  m->packed[slot] = block;
  return f;
}

static void load_tile(const head *h, memory_backward *m, int64_t begin, int many) {
  const gk_attention_args *o = h->args;
  int padded = h->padded;
  for (int i = 0; i < (many + STRIP - 1) / STRIP * STRIP; i++) {
    float *q = m->q + i * padded, *dout = m->dout + i * padded;
    memset(m->dq + i * padded, 0, (size_t)padded * sizeof *m->dq);
    if (i >= many) {
      memset(q, 0, (size_t)padded * sizeof *q);
      memset(dout, 0, (size_t)padded * sizeof *dout);
      m->lse[i] = m->d[i] = 0;
      m->first[i] = m->end[i] = 0;
      continue;
    }
    int64_t row = query(h, begin + i);
    pack_row(q, at(o->q, h->type, row * h->size), h->type, h->size, padded, scale2(o));
    pack_row(dout, at(o->dout, h->type, row * h->size), h->type, h->size, padded, 1);
    m->lse[i] = (float)(LOG2_E * o->lse[row]);
    m->d[i] = o->d[row];
    m->first[i] = first_key(h, begin + i), m->end[i] = end_key(h, begin + i);
  }
  fetch_rows(h, o->q, begin + many, begin + many + ROWS);
  fetch_rows(h, o->dout, begin + many, begin + many + ROWS);
  fetch_rows(h, o->dq, begin, begin + many);
}

// score_both makes P and S of SCORE_ROWS rows, from row i of the tile on, and WIDTH keys, from key `key` of the
// block on.
INLINED void score_both(const memory_backward *m, int i, int key, int64_t base, const float *keys, const float *values,
                        int size, int padded, int masked) {
  vf p[SCORE_ROWS][TILE_VECTORS], s[SCORE_ROWS][TILE_VECTORS];
  GK_UNROLL
  for (int r = 0; r < SCORE_ROWS; r++)
    GK_UNROLL
    for (int j = 0; j < TILE_VECTORS; j++) p[r][j] = s[r][j] = v_set(0);
  const float *q = m->q + i * padded, *dout = m->dout + i * padded;
  for (int64_t k = 0; k < size; k++) {
    vf key_k[TILE_VECTORS], value_k[TILE_VECTORS];
    GK_UNROLL
    for (int j = 0; j < TILE_VECTORS; j++) {
      key_k[j] = v_load(keys + k * PANEL + j * LANES);
      value_k[j] = v_load(values + k * PANEL + j * LANES);
    }
    GK_UNROLL
    for (int r = 0; r < SCORE_ROWS; r++) {
      vf x = v_set(q[r * padded + k]), y = v_set(dout[r * padded + k]);
      GK_UNROLL
      for (int j = 0; j < TILE_VECTORS; j++) {
        p[r][j] = v_fma(x, key_k[j], p[r][j]);
        s[r][j] = v_fma(y, value_k[j], s[r][j]);
      }
    }
  }
  GK_UNROLL
  for (int r = 0; r < SCORE_ROWS; r++) {
    vf lse = v_set(m->lse[i + r]), d = v_set(m->d[i + r]);
    EACH_OF(TILE_VECTORS) p[r][k] = v_sub(p[r][k], lse);
    v_weights(p[r], TILE_VECTORS);
    EACH_OF(TILE_VECTORS) {
      s[r][k] = v_mul(p[r][k], v_sub(s[r][k], d));
      if (masked) {
        p[r][k] = keep_seen(p[r][k], m->first[i + r], m->end[i + r], base + key + k * LANES, 0);
        s[r][k] = keep_seen(s[r][k], m->first[i + r], m->end[i + r], base + key + k * LANES, 0);
      }
      v_store(m->p + (i + r) * SCORES + key + k * LANES, p[r][k]);
      v_store(m->s + (i + r) * SCORES + key + k * LANES, s[r][k]);
    }
  }
}

// score_strip_backward makes P and S of 8 rows and keys [from, to) of a block: from is a multiple of 32, to of
// WIDTH.
static __attribute__((noinline)) void score_strip_backward(const memory_backward *m, int i, int64_t base, int from, int to,
                                                           const float *keys, const float *values, int size, int padded) {
  for (int key = from; key < to; key += WIDTH)
    for (int row = i; row < i + STRIP; row += SCORE_ROWS) {
      int64_t panel = key / PANEL * PANEL * (int64_t)size + key % PANEL;
      if (all_seen(m->first + row, m->end + row, SCORE_ROWS, base + key, WIDTH))
        score_both(m, row, key, base, keys + panel, values + panel, size, padded, 0);
      else score_both(m, row, key, base, keys + panel, values + panel, size, padded, 1);
    }
}

// meet lets the loaded tile, rows [begin, begin+many), meet one block of keys.
static void meet(const head *h, memory_backward *m, int64_t begin, int many, int64_t block, int want_dq,
                    int want_dkv) {
  int padded = h->padded;
  int64_t base = block * KEYS, part = KEYS * (int64_t)padded, first, last;
  span(h, begin, begin + many, &first, &last);
  if (first >= base + KEYS || last <= base) return;
  float *f = packed_block(h, m, block);
  int low = KEYS, high = 0; // keys that any strip sees
  for (int i = 0; i < many; i += STRIP) {
    int rows = many - i < STRIP ? many - i : STRIP;
    span(h, begin + i, begin + i + rows, &first, &last);
    if (last <= base) continue; // none of the products below takes these rows
    int sees = first <= base ? 0 : first < base + KEYS ? (int)(first - base) : KEYS;
    int end = last < base + KEYS ? (int)(last - base) : KEYS;
    int from = sees / PANEL * PANEL, to = (end + WIDTH - 1) / WIDTH * WIDTH;
    for (int r = i; r < i + rows; r++) {
      memset(m->p + r * SCORES, 0, (size_t)from * sizeof *m->p);
      memset(m->s + r * SCORES, 0, (size_t)from * sizeof *m->s);
    }
    if (sees >= end) continue;
    if (sees < low) low = sees / STRIP * STRIP;
    if (end > high) high = end;
    score_strip_backward(m, i, base, from, to, f, f + part, h->size, padded);
    if (want_dq)
      product(m->dq + i * padded, padded, m->s + i * SCORES + sees, SCORES, 1, f + 2 * part + sees * padded, padded,
              PANEL, end - sees, rows, padded, 1);
  }
  if (!want_dkv) return;
  for (int j = low; j < high; j += STRIP) {
    // Rows before the first that sees key j add nothing.
    int64_t sees = (base + j - h->offset) * h->group - begin;
    int from = sees <= 0 ? 0 : sees < many ? (int)sees : many;
    product(f + 3 * part + j * padded, padded, m->s + from * SCORES + j, 1, SCORES, m->q + from * padded, padded, PANEL,
            many - from, STRIP, padded, 1);
    product(f + 4 * part + j * padded, padded, m->p + from * SCORES + j, 1, SCORES, m->dout + from * padded, padded,
            PANEL, many - from, STRIP, padded, 1);
  }
}

static void store_dq(const head *h, const memory_backward *m, int64_t begin, int many) {
  for (int i = 0; i < many; i++) {
    void *to = at_w(h->args->dq, h->type, query(h, begin + i) * h->size);
    for (int d = 0; d < h->size; d += LANES)
      v_st(to, h->type, d, h->size, v_mul(v_load(m->dq + i * h->padded + d), v_set(h->args->scale)));
  }
}

static void store_block(const head *h, memory_backward *m, int64_t block, int64_t seq, int64_t kv_head) {
  const vf ln2 = v_set((float)LN_2); // q has log₂ e too much
  const float *dk = packed_block(h, m, block) + 3 * KEYS * (int64_t)h->padded, *dv = dk + KEYS * (int64_t)h->padded;
  for (int64_t j = 0; j < KEYS && block * KEYS + j < h->keys; j++) {
    int64_t to = (seq * h->keys + block * KEYS + j) * h->stride + kv_head * h->size;
    for (int d = 0; d < h->size; d += LANES) {
      v_st(at_w(h->args->dk, h->type, to), h->type, d, h->size, v_mul(v_load(dk + j * h->padded + d), ln2));
      v_st(at_w(h->args->dv, h->type, to), h->type, d, h->size, v_load(dv + j * h->padded + d));
    }
  }
}

enum { BACK_ROWS = ROWS };
#include "attention_backward_parts.h"

// sum_d computes D of up to STRIP rows. Each is one chain in the order in which meet multiplies DOut with
// a value: a row that sees a single key, whose value is its Out, so gets a score gradient of exactly zero.
static void sum_d(const gk_attention_args *o, memory_backward *m, int type, int64_t row, int many) {
  int size = (int)o->head_size, padded = (size + LANES - 1) / LANES * LANES;
  for (int i = 0; i < STRIP; i++) { // the last rows again where there are fewer
    int64_t from = (row + (i < many ? i : many - 1)) * size;
    pack_row(m->dout + i * padded, at(o->dout, type, from), type, size, padded, 1);
    pack_row(m->q + i * padded, at(o->out_in, type, from), type, size, padded, 1);
  }
  float sums[STRIP] = {0};
  for (int k = 0; k < size; k++)
    GK_UNROLL
    for (int i = 0; i < STRIP; i++) sums[i] = fmaf(m->dout[i * padded + k], m->q[i * padded + k], sums[i]);
  memcpy(o->d + row, sums, (size_t)many * sizeof *sums);
}

static void attention_backward(const gk_call *c, int thread, int threads, int type) {
  const gk_attention_args *o = c->args;
  int64_t begin, end;
  memory_backward m = backward_memory(c, thread, (int)((o->head_size + LANES - 1) / LANES * LANES));
  if (c->phase == 0) {
    gk_split(o->seqs * o->seq_len * o->heads, LANES, thread, threads, &begin, &end);
    for (int64_t r = begin; r < end; r += STRIP) sum_d(o, &m, type, r, (int)(end - r < STRIP ? end - r : STRIP));
    return;
  }
  share_backward(c, &m, threads, type);
}
