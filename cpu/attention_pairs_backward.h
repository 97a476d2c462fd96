// Attention by the bf16 dot product, backward: as attention_backward.h does it, but for the numbers, and
// for scores, which never leave the registers: both products of 4 rows and 32 keys fill 16 sums, which
// become P and S there. Both are rounded to bf16 when they meet the next matrix.
//
// Reached as attention_pairs_forward.h says: 71-76 % of the peak, 69-73 % out of the caches; twice as
// fast as fp32 multiply-adds.

enum {
  QUAD = 4,                // rows of scores at once
  BACK_ROWS = 128,         // rows of a tile
  ACROSS = KEYS + 16,      // leading dimension of pairs of rows
  GRADIENTS = KEYS / 2 + 16 // of score gradients, in pairs of keys
};

typedef struct {
  uint32_t *q, *dout;             // [BACK_ROWS][pairs of the head]
  uint32_t *q_along, *dout_along; // the same with rows interleaved: panels [BACK_ROWS/2][32]
  uint32_t *p_rows, *s_rows;      // [BACK_ROWS/2][ACROSS]: P and S, pairs of rows
  uint32_t *s;                    // [STRIP][GRADIENTS]: S, pairs of keys
  float *dq;                      // [BACK_ROWS][padded]
  float *lse, *d;                 // [BACK_ROWS]; LSE of base 2
  int64_t *first, *end;           // [BACK_ROWS]: keys that a row sees
  uint32_t *blocks;               // each: keys across, values across, keys along, DK, DV
  int64_t slots, slot, *packed;
} memory_backward;

static memory_backward backward_memory(const gk_call *c, int thread, int size) {
  int padded = (size + LANES - 1) / LANES * LANES;
  int64_t along = (padded + PANEL - 1) / PANEL * PANEL * (int64_t)(BACK_ROWS / 2);
  memory_backward m;
  m.packed = gk_pool_scratch(c->ctx->pool, thread);
  m.first = m.packed + MAX_SLOTS;
  m.end = m.first + BACK_ROWS;
  float *f = (float *)(m.end + BACK_ROWS);
  m.dq = f, f += BACK_ROWS * padded;
  m.lse = f, f += BACK_ROWS;
  m.d = f, f += BACK_ROWS;
  uint32_t *u = (uint32_t *)f;
  m.q = u, u += BACK_ROWS * pairs_of(size);
  m.dout = u, u += BACK_ROWS * pairs_of(size);
  m.q_along = u, u += along;
  m.dout_along = u, u += along;
  m.p_rows = u, u += BACK_ROWS / 2 * ACROSS;
  m.s_rows = u, u += BACK_ROWS / 2 * ACROSS;
  m.s = u, u += STRIP * GRADIENTS;
  m.blocks = u;
  char *end = (char *)gk_pool_scratch(c->ctx->pool, thread) + gk_pool_scratch_bytes(c->ctx->pool);
  m.slot = 2 * KEYS * pairs_of(size) + along_size(padded) + 2 * KEYS * (int64_t)padded;
  m.slots = (end - (char *)u) / (m.slot * (int64_t)sizeof *u);
  if (m.slots > MAX_SLOTS) m.slots = MAX_SLOTS;
  return m;
}

// block is where the parts of a packed block are.
typedef struct {
  uint32_t *keys, *values, *along;
  float *dk, *dv;
} block;

// packed_block packs a block where it is not; then its DK and DV are zero.
static block packed_block(const head *h, memory_backward *m, int64_t number) {
  int64_t slot = number % m->slots, across = KEYS * pairs_of(h->size), along = along_size(h->padded);
  block b;
  b.keys = m->blocks + slot * m->slot;
  b.values = b.keys + across;
  b.along = b.values + across;
  b.dk = (float *)(b.along + along);
  b.dv = b.dk + KEYS * (int64_t)h->padded;
  if (m->packed[slot] == number) return b;
  pack_across(h, h->k, number * KEYS, b.keys);
  pack_across(h, h->v, number * KEYS, b.values);
  pack_along(h, h->k, number * KEYS, b.along);
  memset(b.dk, 0, (size_t)(2 * KEYS * (int64_t)h->padded) * sizeof *b.dk);
  m->packed[slot] = number;
  return b;
}

// load_tile reads a tile's rows. Rows that fill the last strip see no key.
static void load_tile(const head *h, memory_backward *m, int64_t begin, int many) {
  const gk_attention_args *o = h->args;
  const int64_t depth = pairs_of(h->size), panel = BACK_ROWS / 2 * PANEL;
  const int whole = (many + STRIP - 1) / STRIP * STRIP;
  memset(m->dq, 0, (size_t)(whole * h->padded) * sizeof *m->dq);
  for (int i = 0; i < whole; i++) {
    if (i >= many) {
      memset(m->q + i * depth, 0, (size_t)depth * sizeof *m->q);
      memset(m->dout + i * depth, 0, (size_t)depth * sizeof *m->dout);
      m->lse[i] = m->d[i] = 0;
      m->first[i] = m->end[i] = 0;
      continue;
    }
    int64_t row = query(h, begin + i);
    copy_row(m->q + i * depth, at(o->q, GK_BF16, row * h->size), h->size);
    copy_row(m->dout + i * depth, at(o->dout, GK_BF16, row * h->size), h->size);
    m->lse[i] = (float)(LOG2_E * o->lse[row]);
    m->d[i] = o->d[row];
    m->first[i] = first_key(h, begin + i), m->end[i] = end_key(h, begin + i);
  }
  fetch_rows(h, o->q, begin + many, begin + many + BACK_ROWS);
  fetch_rows(h, o->dout, begin + many, begin + many + BACK_ROWS);
  fetch_rows(h, o->dq, begin, begin + many);
  interleave(m->q_along, panel, (const gk_bf16 *)m->q, 2 * depth, whole, whole, h->size);
  interleave(m->dout_along, panel, (const gk_bf16 *)m->dout, 2 * depth, whole, whole, h->size);
}

// The 16-bit elements of two rounded vectors, low half first, in turns.
INLINED __m512i in_turns(void) {
  return _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                          18, 2, 17, 1, 16, 0);
}

// score_quad makes P and S of 4 rows, from row i of the tile on, and the 32 keys of a panel, from key
// `key` of the block on.
INLINED void score_quad(const memory_backward *m, int i, int key, int64_t base, const uint32_t *keys, const uint32_t *values,
                        int64_t depth, float scale, int masked) {
  vf p[QUAD][2], s[QUAD][2];
  GK_UNROLL
  for (int r = 0; r < QUAD; r++) p[r][0] = p[r][1] = s[r][0] = s[r][1] = v_set(0);
  const uint32_t *q = m->q + i * depth, *dout = m->dout + i * depth;
  for (int64_t k = 0; k < depth; k++) {
    __m512i k0 = load_pairs(keys + k * PANEL), k1 = load_pairs(keys + k * PANEL + LANES);
    __m512i v0 = load_pairs(values + k * PANEL), v1 = load_pairs(values + k * PANEL + LANES);
    GK_UNROLL
    for (int r = 0; r < QUAD; r++) {
      __m512i x = broadcast_pair(q + r * depth + k), y = broadcast_pair(dout + r * depth + k);
      p[r][0] = v_dot(p[r][0], x, k0), p[r][1] = v_dot(p[r][1], x, k1);
      s[r][0] = v_dot(s[r][0], y, v0), s[r][1] = v_dot(s[r][1], y, v1);
    }
  }
  GK_UNROLL
  for (int r = 0; r < QUAD; r++) {
    vf lse = v_set(m->lse[i + r]), d = v_set(m->d[i + r]);
    uint32_t sees = masked ? seen(m->first[i + r], m->end[i + r], base + key) : 0;
    GK_UNROLL
    for (int j = 0; j < 2; j++) {
      p[r][j] = v_weight(_mm512_fmsub_ps(p[r][j], v_set(scale), lse));
      s[r][j] = v_mul(p[r][j], v_sub(s[r][j], d));
      if (masked) {
        __mmask16 mask = (__mmask16)(sees >> 16 * j);
        p[r][j] = _mm512_maskz_mov_ps(mask, p[r][j]);
        s[r][j] = _mm512_maskz_mov_ps(mask, s[r][j]);
      }
    }
    _mm512_storeu_si512(m->s + (i % STRIP + r) * GRADIENTS + key / 2, (__m512i)_mm512_cvtne2ps_pbh(s[r][1], s[r][0]));
  }
  GK_UNROLL
  for (int r = 0; r < QUAD; r += 2)
    GK_UNROLL
    for (int j = 0; j < 2; j++) {
      int64_t to = (i + r) / 2 * ACROSS + key + j * LANES;
      __m512i pp = (__m512i)_mm512_cvtne2ps_pbh(p[r + 1][j], p[r][j]), ss = (__m512i)_mm512_cvtne2ps_pbh(s[r + 1][j], s[r][j]);
      _mm512_storeu_si512(m->p_rows + to, _mm512_permutexvar_epi16(in_turns(), pp));
      _mm512_storeu_si512(m->s_rows + to, _mm512_permutexvar_epi16(in_turns(), ss));
    }
}

// score_strip_backward makes P and S of 8 rows and keys [from, to) of a block, multiples of 32.
static __attribute__((noinline)) void score_strip_backward(const memory_backward *m, int i, int64_t base, int from, int to,
                                                           const block *b, int64_t depth, float scale) {
  for (int key = from; key < to; key += PANEL)
    for (int quad = i; quad < i + STRIP; quad += QUAD) {
      const uint32_t *keys = b->keys + key * depth, *values = b->values + key * depth;
      if (all_seen(m->first + quad, m->end + quad, QUAD, base + key)) score_quad(m, quad, key, base, keys, values, depth, scale, 0);
      else score_quad(m, quad, key, base, keys, values, depth, scale, 1);
    }
}

// add_dq adds S·K to 8 rows; add_dkv adds Sᵀ·Q, or Pᵀ·DOut, to 8 keys.
static __attribute__((noinline)) void add_dq(float *dq, const uint32_t *s, const uint32_t *along, int64_t depth, int padded) {
  add_product(dq, padded, s, GRADIENTS, 1, along, KEYS / 2 * PANEL, depth, padded);
}
static __attribute__((noinline)) void add_dkv(float *c, const uint32_t *s, const uint32_t *along, int64_t depth, int padded) {
  add_product(c, padded, s, 1, ACROSS, along, BACK_ROWS / 2 * PANEL, depth, padded);
}

// meet lets the loaded tile, rows [begin, begin+many), meet one block of keys.
static void meet(const head *h, memory_backward *m, int64_t begin, int many, int64_t number, int want_dq, int want_dkv) {
  const int64_t depth = pairs_of(h->size), base = number * KEYS;
  const int whole = (many + STRIP - 1) / STRIP * STRIP;
  int64_t first, last;
  span(h, begin, begin + many, &first, &last);
  if (first >= base + KEYS || last <= base) return;
  block b = packed_block(h, m, number);
  int low = KEYS, high = 0; // keys that any strip sees
  for (int i = 0; i < many; i += STRIP) {
    span(h, begin + i, begin + (many - i < STRIP ? many : i + STRIP), &first, &last);
    if (last <= base) continue; // none of the products below takes these rows
    int sees = first <= base ? 0 : first < base + KEYS ? (int)(first - base) : KEYS;
    int end = last < base + KEYS ? (int)(last - base) : KEYS;
    int from = sees / PANEL * PANEL, to = (end + PANEL - 1) / PANEL * PANEL;
    for (int r = i / 2; r < (i + STRIP) / 2 && want_dkv; r++) {
      memset(m->p_rows + r * ACROSS, 0, (size_t)from * sizeof *m->p_rows);
      memset(m->s_rows + r * ACROSS, 0, (size_t)from * sizeof *m->s_rows);
    }
    if (sees >= end) continue;
    if (sees < low) low = sees / STRIP * STRIP;
    if (end > high) high = end;
    score_strip_backward(m, i, base, from, to, &b, depth, scale2(h->args));
    if (want_dq)
      add_dq(m->dq + i * h->padded, m->s + sees / 2, b.along + sees / 2 * PANEL, pairs_of(end) - sees / 2, h->padded);
  }
  if (!want_dkv) return;
  for (int j = low; j < high; j += STRIP) {
    // Rows before the first that sees key j add nothing.
    int64_t sees = (base + j - h->offset) * h->group - begin;
    int from = sees <= 0 ? 0 : sees < many ? (int)sees / 2 : whole / 2, rows = whole / 2 - from;
    add_dkv(b.dk + j * h->padded, m->s_rows + from * ACROSS + j, m->q_along + from * PANEL, rows, h->padded);
    add_dkv(b.dv + j * h->padded, m->p_rows + from * ACROSS + j, m->dout_along + from * PANEL, rows, h->padded);
  }
}

static void store_dq(const head *h, const memory_backward *m, int64_t begin, int many) {
  for (int i = 0; i < many; i++) {
    void *to = at_w(h->args->dq, GK_BF16, query(h, begin + i) * h->size);
    for (int d = 0; d < h->size; d += LANES)
      v_st(to, GK_BF16, d, h->size, v_mul(v_load(m->dq + i * h->padded + d), v_set(h->args->scale)));
  }
}

static void store_block(const head *h, memory_backward *m, int64_t number, int64_t seq, int64_t kv_head) {
  block b = packed_block(h, m, number);
  for (int64_t j = 0; j < KEYS && number * KEYS + j < h->keys; j++) {
    int64_t to = (seq * h->keys + number * KEYS + j) * h->stride + kv_head * h->size;
    for (int d = 0; d < h->size; d += LANES) {
      v_st(at_w(h->args->dk, GK_BF16, to), GK_BF16, d, h->size, v_mul(v_load(b.dk + j * h->padded + d), v_set(h->args->scale)));
      v_st(at_w(h->args->dv, GK_BF16, to), GK_BF16, d, h->size, v_load(b.dv + j * h->padded + d));
    }
  }
}

#include "attention_backward_parts.h"

// sum_d computes D of a row.
INLINED float sum_d(const gk_bf16 *out, const gk_bf16 *dout, int size) {
  vf sum = v_set(0);
  for (int d = 0; d < size; d += PANEL) {
    __mmask32 here = size - d >= PANEL ? 0xffffffff : (1u << (size - d)) - 1;
    sum = v_dot(sum, _mm512_maskz_loadu_epi16(here, out + d), _mm512_maskz_loadu_epi16(here, dout + d));
  }
  return v_sum(sum);
}

// gk_attention_backward_pairs is a task as attention_backward_bf16 of other levels.
void gk_attention_backward_pairs(void *call, int thread, int threads) {
  const gk_call *c = call;
  const gk_attention_args *o = c->args;
  int64_t begin, end, size = o->head_size;
  if (c->phase == 0) {
    gk_split(o->seqs * o->seq_len * o->heads, LANES, thread, threads, &begin, &end);
    for (int64_t r = begin; r < end; r++)
      o->d[r] = sum_d(at(o->out_in, GK_BF16, r * size), at(o->dout, GK_BF16, r * size), (int)size);
    return;
  }
  memory_backward m = backward_memory(c, thread, (int)size);
  share_backward(c, &m, threads, GK_BF16);
}
