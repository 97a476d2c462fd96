// Attention by the bf16 dot product, forward: as attention.h does it, but for the numbers. Scores are
// fp32 sums of exact products; weights are rounded to bf16 when they meet the values, after they
// have been summed; Out is rounded once.
//
// Reached on a Zen 5 core (525 GFLOP/s by the dot product) at two sequences of 512 and 12 heads of 64 on
// 2: 63-67 % of that by the useful half of the scores, 61-63 % with all data out of the caches, and 70-74 %
// at heads of 128; fp32 multiply-adds on the same data took 1.9 times as long. Of the time, scores
// take a third at 95 % of the peak and values as much at 90 %, weights a fifth, the rest waits for rows.

enum {
  ROWS = 64,              // rows of a tile
  SCORES = KEYS + 16,     // leading dimension of scores: no power of two, so that rows differ in cache set
  WEIGHTS = KEYS / 2 + 16 // of weights, in pairs
};

// memory_forward is a thread's scratch: the tile, then as many packed blocks as fit.
typedef struct {
  uint32_t *q;           // [ROWS][pairs of the head]
  float *out;            // [ROWS][padded]
  float *scores, *top;   // [STRIP][SCORES], [STRIP][LANES]
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
  m.top = f, f += STRIP * LANES;
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

// score computes scores, for powers of two, of 8 rows from row i of the tile on and of the first 16·vectors
// keys of a panel, from key `key` of the block on, and raises each row's maximum, a lane each.
INLINED void score(const memory_forward *m, int i, int key, int64_t base, const uint32_t *keys, int64_t depth, float scale,
                   int vectors, int masked) {
  vf s[STRIP][2];
  GK_UNROLL
  for (int r = 0; r < STRIP; r++) s[r][0] = s[r][1] = v_set(0);
  const uint32_t *q = m->q + i * depth;
  for (int64_t k = 0; k < depth; k++) {
    __m512i bk[2];
    GK_UNROLL
    for (int j = 0; j < vectors; j++) bk[j] = load_pairs(keys + k * PANEL + j * LANES);
    GK_UNROLL
    for (int r = 0; r < STRIP; r++) {
      __m512i x = broadcast_pair(q + r * depth + k);
      GK_UNROLL
      for (int j = 0; j < vectors; j++) s[r][j] = v_dot(s[r][j], x, bk[j]);
    }
  }
  GK_UNROLL
  for (int r = 0; r < STRIP; r++) {
    vf top = v_load(m->top + r * LANES);
    uint32_t sees = masked ? seen(m->first[i + r], m->end[i + r], base + key) : 0;
    GK_UNROLL
    for (int j = 0; j < vectors; j++) {
      vf x = v_mul(s[r][j], v_set(scale));
      if (masked) x = _mm512_mask_blend_ps((__mmask16)(sees >> LANES * j), v_set(-INFINITY), x);
      v_store(m->scores + r * SCORES + key + j * LANES, x);
      top = v_max(top, x);
    }
    v_store(m->top + r * LANES, top);
  }
}

// score_strip computes scores of 8 rows and keys [from, to) of a block: from is a multiple of 32, to of 16.
static __attribute__((noinline)) void score_strip(const memory_forward *m, int i, int64_t base, int from, int to,
                                                  const uint32_t *keys, int64_t depth, float scale) {
  for (int r = 0; r < STRIP; r++) v_store(m->top + r * LANES, v_set(-INFINITY));
  for (int key = from; key < to; key += PANEL) {
    const uint32_t *panel = keys + key * depth;
    if (to - key < PANEL) score(m, i, key, base, panel, depth, scale, 1, 1);
    else if (all_seen(m->first + i, m->end + i, STRIP, base + key)) score(m, i, key, base, panel, depth, scale, 2, 0);
    else score(m, i, key, base, panel, depth, scale, 2, 1);
  }
}

// weigh_strip turns scores of keys [from, to) into weights, keeps each row's maximum and sum (a lane each),
// and scales down what the rows have summed so far.
static __attribute__((noinline)) void weigh_strip(const memory_forward *m, int i, int from, int to, int padded) {
  float old[LANES] = {0}, high[LANES] = {0}, shrink[LANES];
  for (int r = 0; r < STRIP; r++) {
    float peak = v_max_across(v_load(m->top + r * LANES));
    old[r] = m->max[i + r];
    high[r] = old[r] > peak ? old[r] : peak;
  }
  v_store(shrink, v_exp2(v_sub(v_load(old), v_load(high))));
  for (int r = 0; r < STRIP; r++) {
    const float *s = m->scores + r * SCORES;
    gk_bf16 *weights = (gk_bf16 *)(m->weights + r * WEIGHTS);
    float *sums = m->sum + (i + r) * LANES;
    vf shift = v_set(high[r]), sum = v_mul(v_load(sums), v_set(shrink[r]));
    int j = from;
    for (; j + PANEL <= to; j += PANEL) {
      vf p = v_weight(v_sub(v_load(s + j), shift)), q = v_weight(v_sub(v_load(s + j + LANES), shift));
      _mm512_storeu_si512(weights + j, (__m512i)_mm512_cvtne2ps_pbh(q, p));
      sum = v_add(v_add(sum, p), q);
    }
    if (j < to) {
      vf p = v_weight(v_sub(v_load(s + j), shift));
      _mm256_storeu_si256((__m256i *)(weights + j), (__m256i)_mm512_cvtneps_pbh(p));
      sum = v_add(sum, p);
    }
    v_store(sums, sum);
    m->max[i + r] = high[r];
    if (shrink[r] == 1) continue;
    float *out = m->out + (i + r) * padded;
    for (int d = 0; d < padded; d += LANES) v_store(out + d, v_mul(v_load(out + d), v_set(shrink[r])));
  }
}

static __attribute__((noinline)) void add_values(float *out, const uint32_t *weights, const uint32_t *values, int64_t depth,
                                                 int padded) {
  add_product(out, padded, weights, WEIGHTS, 1, values, KEYS / 2 * PANEL, depth, padded);
}

// attend computes rows [begin, end) of a head, at most ROWS. Rows that fill the last strip see no key.
static void attend(const head *h, memory_forward *m, int64_t begin, int64_t end) {
  const gk_attention_args *o = h->args;
  const int64_t depth = pairs_of(h->size);
  int many = (int)(end - begin), whole = (many + STRIP - 1) / STRIP * STRIP, padded = h->padded;
  memset(m->out, 0, (size_t)(whole * padded) * sizeof *m->out);
  for (int i = 0; i < whole; i++) {
    m->max[i] = -3.4e38f;
    v_store(m->sum + i * LANES, v_set(0));
    m->first[i] = m->end[i] = 0;
    memset(m->q + i * depth, 0, (size_t)depth * sizeof *m->q);
    if (i >= many) continue;
    copy_row(m->q + i * depth, at(o->q, GK_BF16, query(h, begin + i) * h->size), h->size);
    m->first[i] = first_key(h, begin + i), m->end[i] = end_key(h, begin + i);
  }
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
      int64_t strip_end = begin + (many - i < STRIP ? many : i + STRIP), first, last;
      if (block == lo / KEYS) {
        fetch_rows(h, o->q, end + i, end + i + STRIP);
        fetch_rows(h, o->out, begin + i, strip_end);
      }
      span(h, begin + i, strip_end, &first, &last);
      if (first >= base + KEYS || last <= base) continue;
      // Scores are made by whole vectors, but weighed only where a row sees the key.
      int sees = first > base ? (int)(first - base) : 0, from = sees / PANEL * PANEL;
      int until = last < base + KEYS ? (int)(last - base) : KEYS, to = (until + LANES - 1) / LANES * LANES;
      score_strip(m, i, base, from, to, keys, depth, scale2(o));
      weigh_strip(m, i, from, to, padded);
      add_values(m->out + i * padded, m->weights + sees / 2, values + sees / 2 * PANEL, pairs_of(until) - sees / 2, padded);
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
