// Attention by the bf16 dot product, forward: as attention.h does it, but for the numbers. Scores are
// fp32 sums of exact products; weights are rounded to bf16 when they meet the values, after they
// have been summed; Out is rounded once.

enum {
  ROWS = 64,              // rows of a tile
  SCORES = KEYS + 16,     // leading dimension of scores: no power of two, so that rows differ in cache set
  WEIGHTS = KEYS / 2 + 16 // of weights, in pairs
};

// memory_forward is a thread's scratch: the tile, then as many packed blocks as fit.
typedef struct {
  uint32_t *q;           // [ROWS][pairs of the head]
  float *out;            // [ROWS][padded]
  float *scores;         // [STRIP][SCORES]
  uint32_t *weights;     // [STRIP][WEIGHTS]
  float *max, *sum;      // [ROWS], [ROWS][LANES]
  int64_t *first, *end;  // [ROWS]: keys that a row sees
  uint32_t *blocks;      // each: keys across, values along
  int64_t slots, slot;   // how many blocks, and pairs in each
  int64_t *packed;       // which block each slot holds, or −1
} memory_forward;

static memory_forward forward_memory(const gk_call *c, int thread, int size) {
  int padded = (size + LANES - 1) / LANES * LANES;
  memory_forward m;
  m.packed = gk_pool_scratch(c->ctx->pool, thread);
  m.first = m.packed + MAX_SLOTS;
  m.end = m.first + ROWS;
  float *f = (float *)(m.end + ROWS);
  m.out = f, f += ROWS * padded;
  m.scores = f, f += STRIP * SCORES;
  m.max = f, f += ROWS;
  m.sum = f, f += ROWS * LANES;
  uint32_t *u = (uint32_t *)f;
  m.weights = u, u += STRIP * WEIGHTS;
  m.q = u, u += ROWS * pairs_of(size);
  m.blocks = u;
  char *end = (char *)gk_pool_scratch(c->ctx->pool, thread) + gk_pool_scratch_bytes(c->ctx->pool);
  m.slot = KEYS * pairs_of(size) + along_size(padded);
  m.slots = (end - (char *)u) / (m.slot * (int64_t)sizeof *u);
  if (m.slots > MAX_SLOTS) m.slots = MAX_SLOTS;
  return m;
}

// score computes scores of 8 rows and 16·vectors keys, for powers of two.
INLINED void score(float *c, const uint32_t *q, const uint32_t *keys, int64_t depth, int vectors, float scale) {
  vf sum[STRIP][2];
  GK_UNROLL
  for (int i = 0; i < STRIP; i++)
    GK_UNROLL
    for (int j = 0; j < vectors; j++) sum[i][j] = v_set(0);
  for (int64_t k = 0; k < depth; k++) {
    __m512i bk[2];
    GK_UNROLL
    for (int j = 0; j < vectors; j++) bk[j] = load_pairs(keys + k * PANEL + j * LANES);
    GK_UNROLL
    for (int i = 0; i < STRIP; i++) {
      __m512i x = broadcast_pair(q + i * depth + k);
      GK_UNROLL
      for (int j = 0; j < vectors; j++) sum[i][j] = v_dot(sum[i][j], x, bk[j]);
    }
  }
  GK_UNROLL
  for (int i = 0; i < STRIP; i++)
    GK_UNROLL
    for (int j = 0; j < vectors; j++) v_store(c + i * SCORES + j * LANES, v_mul(sum[i][j], v_set(scale)));
}

// score_strip computes scores of 8 rows and keys [from, to) of a block: from is a multiple of 32, to of 16.
static __attribute__((noinline)) void score_strip(float *c, const uint32_t *q, const uint32_t *keys, int64_t depth, int from,
                                                  int to, float scale) {
  for (; from + PANEL <= to; from += PANEL) score(c + from, q, keys + from * depth, depth, 2, scale);
  if (from < to) score(c + from, q, keys + from * depth, depth, 1, scale);
}

// weigh_strip turns scores of keys [base+from, base+to) into weights, keeps each row's maximum
// and sum (a lane each), and scales down what the rows have summed so far.
static __attribute__((noinline)) void weigh_strip(const head *h, memory_forward *m, int rows, int in_tile, int64_t base,
                                                  int from, int to) {
  float old[LANES] = {0}, high[LANES] = {0}, shrink[LANES];
  for (int i = 0; i < rows; i++) {
    float *s = m->scores + i * SCORES;
    int64_t lo = m->first[in_tile + i] - base, hi = m->end[in_tile + i] - base;
    vf top = v_set(-INFINITY);
    for (int j = from; j < to; j += LANES) {
      vf x = v_load(s + j);
      if (j < lo || j + LANES > hi) {
        int64_t a = lo - j < LANES ? lo - j : LANES, b = hi - j;
        x = v_keep(x, a > 0 ? (int)a : 0, b > LANES ? LANES : b > 0 ? (int)b : 0, v_set(-INFINITY));
        v_store(s + j, x);
      }
      top = v_max(top, x);
    }
    float peak = v_max_across(top);
    old[i] = m->max[in_tile + i];
    high[i] = old[i] > peak ? old[i] : peak;
  }
  v_store(shrink, v_exp2(v_sub(v_load(old), v_load(high))));
  for (int i = 0; i < rows; i++) {
    const float *s = m->scores + i * SCORES;
    gk_bf16 *weights = (gk_bf16 *)(m->weights + i * WEIGHTS);
    float *sums = m->sum + (in_tile + i) * LANES;
    vf shift = v_set(high[i]), sum = v_mul(v_load(sums), v_set(shrink[i]));
    int j = from;
    for (; j + 2 * LANES <= to; j += 2 * LANES) {
      vf p0 = v_weight(v_sub(v_load(s + j), shift));
      vf p1 = v_weight(v_sub(v_load(s + j + LANES), shift));
      _mm512_storeu_si512((weights + j), (__m512i)_mm512_cvtne2ps_pbh(p1, p0));
      sum = v_add(v_add(sum, p0), p1);
    }
    if (j < to) {
      vf p = v_weight(v_sub(v_load(s + j), shift));
      _mm256_storeu_si256((__m256i *)(weights + j), (__m256i)_mm512_cvtneps_pbh(p));
      sum = v_add(sum, p);
    }
    v_store(sums, sum);
    m->max[in_tile + i] = high[i];
    if (shrink[i] == 1) continue;
    float *out = m->out + (in_tile + i) * h->padded;
    for (int d = 0; d < h->padded; d += LANES) v_store(out + d, v_mul(v_load(out + d), v_set(shrink[i])));
  }
}

static __attribute__((noinline)) void add_values(float *out, const uint32_t *weights, const uint32_t *values, int64_t depth,
                                                 int padded) {
  add_product(out, padded, weights, WEIGHTS, 1, values, KEYS / 2 * PANEL, depth, padded);
}

// attend computes rows [begin, end) of a head, at most ROWS.
static void attend(const head *h, memory_forward *m, int64_t begin, int64_t end) {
  const gk_attention_args *o = h->args;
  const int64_t depth = pairs_of(h->size);
  int many = (int)(end - begin), padded = h->padded;
  for (int i = 0; i < (many + STRIP - 1) / STRIP * STRIP; i++) {
    memset(m->out + i * padded, 0, (size_t)padded * sizeof *m->out);
    if (i >= many) {
      memset(m->q + i * depth, 0, (size_t)depth * sizeof *m->q);
      continue;
    }
    copy_row(m->q + i * depth, at(o->q, GK_BF16, query(h, begin + i) * h->size), h->size);
    m->first[i] = first_key(h, begin + i), m->end[i] = end_key(h, begin + i);
    m->max[i] = -3.4e38f;
    v_store(m->sum + i * LANES, v_set(0));
  }
  fetch_rows(h, o->q, end, end + ROWS);
  fetch_rows(h, o->out, begin, end);
  int64_t lo, hi;
  span(h, begin, end, &lo, &hi);
  for (int64_t block = lo / KEYS; block * KEYS < hi; block++) {
    int64_t base = block * KEYS, slot = block % m->slots;
    uint32_t *keys = m->blocks + slot * m->slot, *values = keys + KEYS * depth;
    if (m->packed[slot] != block) {
      pack_across(h, h->k, base, keys);
      pack_along(h, h->v, base, values);
      m->packed[slot] = block;
    }
    for (int i = 0; i < many; i += STRIP) {
      int rows = many - i < STRIP ? many - i : STRIP;
      int64_t first, last;
      span(h, begin + i, begin + i + rows, &first, &last);
      if (first >= base + KEYS || last <= base) continue;
      // Scores are made by whole vectors, but weighed only where a row sees the key.
      int sees = first > base ? (int)(first - base) : 0, from = sees / PANEL * PANEL;
      int end = last < base + KEYS ? (int)(last - base) : KEYS, to = (end + LANES - 1) / LANES * LANES;
      score_strip(m->scores, m->q + i * depth, keys, depth, from, to, scale2(o));
      weigh_strip(h, m, rows, i, base, from, to);
      add_values(m->out + i * padded, m->weights + sees / 2, values + sees / 2 * PANEL, pairs_of(end) - sees / 2, padded);
    }
  }
  for (int i = 0; i < many; i++) {
    int64_t row = query(h, begin + i);
    float sum = v_sum(v_load(m->sum + i * LANES));
    for (int d = 0; d < h->size; d += LANES)
      v_st(at_w(o->out, GK_BF16, row * h->size), GK_BF16, d, h->size, v_div(v_load(m->out + i * padded + d), v_set(sum)));
    o->lse[row] = (float)(log((double)sum) + LN_2 * m->max[i]);
  }
}

// gk_attention_pairs is a task as attention_bf16 of other levels.
void gk_attention_pairs(void *call, int thread, int threads) {
  const gk_call *c = call;
  const gk_attention_args *o = c->args;
  int64_t heads = o->seqs * o->kv_heads, rows = o->seq_len * (o->heads / o->kv_heads);
  int64_t cut = parts(heads, (rows + ROWS - 1) / ROWS, threads), holds = -1, item;
  memory_forward m = forward_memory(c, thread, (int)o->head_size);
  while ((item = gk_next(c, 0)) < heads * cut) {
    int64_t which = item / cut;
    head h = new_head(o, GK_BF16, which / o->kv_heads, which % o->kv_heads);
    if (which != holds) {
      for (int64_t s = 0; s < m.slots; s++) m.packed[s] = -1;
      holds = which;
    }
    for (int64_t row = item % cut * ROWS; row < h.rows; row += cut * ROWS)
      attend(&h, &m, row, row + ROWS < h.rows ? row + ROWS : h.rows);
  }
}
