// Sums over ranks, rows and vectors, the loss of a row of logits, and the optimizer.

INLINED void reduce_sum(const gk_call *c, int thread, int threads, int type) {
  const gk_reduce_sum_args *o = c->args;
  int64_t begin, end;
  gk_split(o->n, GRANULE, thread, threads, &begin, &end);
  for (int64_t i = begin; i < end; i += LANES) {
    vf sum = v_set(0);
    for (int64_t s = 0; s < o->count; s++) {
      const void *src;
      memcpy(&src, o->srcs + s * o->stride, sizeof src);
      vf x = v_ld(src, type, i, end);
      sum = s == 0 ? x : v_add(sum, x);
    }
    v_st(o->dst, o->dst_type, i, end, sum);
  }
}

INLINED void bias_backward(const gk_call *c, int thread, int threads, int type) {
  const gk_bias_backward_args *o = c->args;
  float *sums = gk_pool_scratch(c->ctx->pool, thread);
  int64_t begin, end;
  gk_split(o->n, 4 * LANES, thread, threads, &begin, &end);
  for (int64_t i = begin; i < end; i += LANES)
    v_store(sums + (i - begin), o->accumulate ? v_ld(o->dbias, o->dbias_type, i, end) : v_set(0));
  for (int64_t r = 0; r < o->m; r++) {
    const void *row = at(o->dout, type, r * o->n);
    for (int64_t i = begin; i < end; i += LANES)
      v_store(sums + (i - begin), v_add(v_load(sums + (i - begin)), v_ld(row, type, i, end)));
  }
  for (int64_t i = begin; i < end; i += LANES) v_st(o->dbias, o->dbias_type, i, end, v_load(sums + (i - begin)));
}

// Sixteen doubles, one for each lane.
#if GK_LEVEL == 2
typedef struct {
  __m512d a, b;
} vd;
INLINED vd vd_zero(void) { return (vd){_mm512_setzero_pd(), _mm512_setzero_pd()}; }
// The square of a float is exact in a double, so a fused add rounds as a plain one does.
INLINED vd vd_add_squares(vd s, vf x) {
  __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x)), b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
  return (vd){_mm512_fmadd_pd(a, a, s.a), _mm512_fmadd_pd(b, b, s.b)};
}
INLINED void vd_store(double *p, vd s) {
  _mm512_storeu_pd(p, s.a);
  _mm512_storeu_pd(p + 8, s.b);
}
#elif GK_LEVEL == 1
typedef struct {
  __m256d a, b, c, d;
} vd;
INLINED vd vd_zero(void) {
  return (vd){_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
}
INLINED __m256d vd_fma4(__m256d s, __m128 x) {
  __m256d d = _mm256_cvtps_pd(x);
  return _mm256_fmadd_pd(d, d, s);
}
INLINED vd vd_add_squares(vd s, vf x) {
  return (vd){vd_fma4(s.a, _mm256_castps256_ps128(x.a)), vd_fma4(s.b, _mm256_extractf128_ps(x.a, 1)),
              vd_fma4(s.c, _mm256_castps256_ps128(x.b)), vd_fma4(s.d, _mm256_extractf128_ps(x.b, 1))};
}
INLINED void vd_store(double *p, vd s) {
  _mm256_storeu_pd(p, s.a);
  _mm256_storeu_pd(p + 4, s.b);
  _mm256_storeu_pd(p + 8, s.c);
  _mm256_storeu_pd(p + 12, s.d);
}
#else
typedef struct {
  double x[16];
} vd;
INLINED vd vd_zero(void) { return (vd){{0}}; }
INLINED vd vd_add_squares(vd s, vf x) {
  for (int i = 0; i < LANES; i++) s.x[i] += (double)x.x[i] * (double)x.x[i];
  return s;
}
INLINED void vd_store(double *p, vd s) { memcpy(p, s.x, sizeof s.x); }
#endif

INLINED double block_squares(const void *x, int type, int64_t begin, int64_t end) {
  vd sums = vd_zero();
  for (int64_t i = begin; i < end; i += LANES) sums = vd_add_squares(sums, v_ld(x, type, i, end));
  double lane[LANES], total = 0;
  vd_store(lane, sums);
  for (int i = 0; i < LANES; i++) total += lane[i];
  return total;
}

// sum_squares goes over the vector in rounds of two phases: threads sum blocks, as many as their
// scratch holds, then the first adds them in order.
INLINED void sum_squares(const gk_call *c, int thread, int threads, int type) {
  const gk_vector_args *o = c->args;
  gk_pool *pool = c->ctx->pool;
  int64_t blocks = (o->n + GK_NORM_BLOCK - 1) / GK_NORM_BLOCK;
  int64_t round = gk_norm_round(pool, threads);
  int64_t first = c->phase / 2 * round, many = blocks - first < round ? blocks - first : round, begin, end;
  if (c->phase % 2 == 0) {
    gk_split(many, 1, thread, threads, &begin, &end);
    double *sums = gk_pool_scratch(pool, thread);
    for (int64_t b = begin; b < end; b++) {
      int64_t from = (first + b) * GK_NORM_BLOCK, to = from + GK_NORM_BLOCK < o->n ? from + GK_NORM_BLOCK : o->n;
      sums[b - begin] = block_squares(o->x, type, from, to);
    }
    return;
  }
  if (thread != 0) return;
  double total = first == 0 ? 0 : *(double *)o->out;
  for (int t = 0; t < threads; t++) {
    gk_split(many, 1, t, threads, &begin, &end);
    const double *sums = gk_pool_scratch(pool, t);
    for (int64_t b = begin; b < end; b++) total += sums[b - begin];
  }
  *(double *)o->out = total;
}

// check_finite multiplies by zero: only what is not finite leaves something else than zero.
INLINED void check_finite(const gk_call *c, int thread, int threads, int type) {
  const gk_vector_args *o = c->args;
  if (c->phase == 0) {
    int64_t begin, end;
    gk_split(o->n, GRANULE, thread, threads, &begin, &end);
    vf zeros = v_set(0);
    for (int64_t i = begin; i < end; i += LANES) zeros = v_add(zeros, v_mul(v_ld(o->x, type, i, end), v_set(0)));
    *(int32_t *)gk_pool_scratch(c->ctx->pool, thread) = v_sum(zeros) != 0;
    return;
  }
  if (thread != 0) return;
  int32_t flag = 0;
  for (int t = 0; t < threads; t++) flag |= *(int32_t *)gk_pool_scratch(c->ctx->pool, t);
  *(int32_t *)o->out = flag;
}

INLINED void head_loss(const gk_call *c, int thread, int threads, int type) {
  const gk_head_loss_args *o = c->args;
  int64_t begin, end, n = o->vocab, whole = n / LANES * LANES;
  gk_split(o->rows, 1, thread, threads, &begin, &end);
  const vf none = v_set(-INFINITY);
  for (int64_t r = begin; r < end; r++) {
    void *x = at_w(o->logits, type, r * n);
    int32_t target = o->targets[r];
    if (target < 0) {
      o->loss[r] = 0;
      if (o->backward) memset(x, 0, (size_t)n * (type == GK_BF16 ? 2 : 4));
      continue;
    }
    vf tail = v_keep(v_ld(x, type, whole, n), 0, (int)(n - whole), none), high = tail;
    for (int64_t i = 0; i < whole; i += LANES) high = v_max(high, v_ld(x, type, i, n));
    float max = v_max_across(high);
    vf shift = v_set(max), sums = v_exp(v_sub(tail, shift));
    for (int64_t i = 0; i < whole; i += LANES) sums = v_add(sums, v_exp(v_sub(v_ld(x, type, i, n), shift)));
    float sum = v_sum(sums);
    vf chosen = v_ld(at(x, type, target), type, 0, 1);
    float logit[LANES];
    v_store(logit, chosen);
    o->loss[r] = (float)(log((double)sum) + ((double)max - (double)logit[0]));
    if (!o->backward) continue;
    float scale = o->scale[0];
    vf each = v_set(scale / sum);
    for (int64_t i = 0; i < n; i += LANES)
      v_st(x, type, i, n, v_mul(v_exp(v_sub(v_ld(x, type, i, n), shift)), each));
    v_st(at_w(x, type, target), type, 0, 1, v_fma(v_exp(v_sub(chosen, shift)), each, v_set(-scale)));
  }
}
