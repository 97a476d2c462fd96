// Sums over ranks, rows and vectors, the loss of a row of logits, and the optimizer.

INLINED void reduce_sum(const gk_call *c, int thread, int threads, int type) {
  const gk_reduce_sum_args *o = c->args;
  int64_t begin, end;
  gk_split(o->n, GRANULE, thread, threads, &begin, &end);
  // Not in place: there the lines are read anyway.
  int far = o->dst_type == GK_F32 && past((float *)o->dst + begin, (end - begin) * 4);
  for (int64_t s = 0; s < o->count; s++) {
    const void *src;
    memcpy(&src, o->srcs + s * o->stride, sizeof src);
    far = far && src != o->dst;
  }
  for (int64_t i = begin; i < end; i += LANES) {
    vf sum = v_set(0);
    for (int64_t s = 0; s < o->count; s++) {
      const void *src;
      memcpy(&src, o->srcs + s * o->stride, sizeof src);
      vf x = v_ld(src, type, i, end);
      sum = s == 0 ? x : v_add(sum, x);
    }
    if (far && end - i >= LANES) v_store_past((float *)o->dst + i, sum);
    else v_st(o->dst, o->dst_type, i, end, sum);
  }
  if (far) v_settle();
}

// ADDED rows are added to a sum before it is stored: sums that are loaded and stored for each row keep
// bf16 at 70 % of the memory's bandwidth, four rows let it reach 80 %.
enum { ADDED = 4 };

// add_rows adds columns [begin, end) of `many` rows to sums.
INLINED void add_rows(float *sums, const gk_bias_backward_args *o, int type, int64_t row, int many, int64_t begin,
                      int64_t end) {
  for (int64_t i = begin; i < end; i += STEP_LANES) {
    vf sum[STEP], x[STEP];
    // The rows that follow, in the order of memory: no prefetcher keeps up with several short streams.
    if (many > 1) prefetch(at(o->dout, type, (row + many) * o->n + many * i), many * STEP_LANES * (type == GK_BF16 ? 2 : 4));
    v_lds(sum, STEP, sums, GK_F32, i - begin, i - begin + STEP_LANES);
    GK_UNROLL
    for (int r = 0; r < many; r++) {
      v_lds(x, STEP, at(o->dout, type, (row + r) * o->n), type, i, end);
      EACH_STEP sum[k] = v_add(sum[k], x[k]);
    }
    v_sts(sums, STEP, GK_F32, i - begin, i - begin + STEP_LANES, sum);
  }
}

INLINED void bias_backward(const gk_call *c, int thread, int threads, int type) {
  const gk_bias_backward_args *o = c->args;
  float *sums = gk_pool_scratch(c->ctx->pool, thread);
  int64_t begin, end;
  gk_split(o->n, 4 * LANES, thread, threads, &begin, &end);
  for (int64_t i = begin; i < end; i += LANES)
    v_store(sums + (i - begin), o->accumulate ? v_ld(o->dbias, o->dbias_type, i, end) : v_set(0));
  int64_t r = 0;
  for (; r + ADDED <= o->m; r += ADDED) add_rows(sums, o, type, r, ADDED, begin, end);
  for (; r < o->m; r++) add_rows(sums, o, type, r, 1, begin, end);
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

// block_squares sums the squares of `many` blocks from begin on, of which only a single one may be cut by
// end. A lane's sum is one chain of adds: a single block's would take longer than its numbers take
// from memory in bf16. Two side by side reach 85 % of the memory's bandwidth in both types.
INLINED void block_squares(double *sums, int many, const void *x, int type, int64_t begin, int64_t end) {
  vd lanes[TOGETHER];
  EACH_OF(many) lanes[k] = vd_zero();
  for (int64_t i = begin; i < begin + GK_NORM_BLOCK && i < end; i += LANES) {
    // The blocks that follow, in the order of memory: no prefetcher keeps up with several short streams.
    if (many > 1) prefetch(at(x, type, begin + many * (GK_NORM_BLOCK + i - begin)), many * LANES * (type == GK_BF16 ? 2 : 4));
    EACH_OF(many) {
      int64_t from = i + k * GK_NORM_BLOCK;
      lanes[k] = vd_add_squares(lanes[k], v_ld(x, type, from, many > 1 ? from + LANES : end));
    }
  }
  EACH_OF(many) {
    double lane[LANES], total = 0;
    vd_store(lane, lanes[k]);
    for (int i = 0; i < LANES; i++) total += lane[i];
    sums[k] = total;
  }
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
    int64_t b = begin, to = o->n;
    for (; b + TOGETHER <= end && (first + b + TOGETHER) * GK_NORM_BLOCK <= to; b += TOGETHER)
      block_squares(sums + (b - begin), TOGETHER, o->x, type, (first + b) * GK_NORM_BLOCK, to);
    for (; b < end; b++) {
      int64_t from = (first + b) * GK_NORM_BLOCK;
      block_squares(sums + (b - begin), 1, o->x, type, from, from + GK_NORM_BLOCK < to ? from + GK_NORM_BLOCK : to);
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

// head_loss goes over a row three times: for the maximum, the exponentials and the gradient. A row comes
// from memory once, asked for while the exponentials of the one before are computed, and stays in the
// second cache with its own, which take the logits' place or, in bf16, lie in scratch.
//
// Exponentials are powers of two, 2^(y−high) of y = x·log₂e. That y is rounded is less than what x may be
// off by, and any high will do that is near the largest, as sums, gradient and loss use the same.
//
// In fp32 it exceeds a copy's bandwidth, as it works in place. In bf16 it reaches 75 %: 4 of its 8
// cycles for sixteen logits are the exponential, for one of two units that multiply has 8 instructions
// of it, and 4 go to and from the second cache for the maximum and the gradient.
INLINED void head_loss(const gk_call *c, int thread, int threads, int type) {
  const gk_head_loss_args *o = c->args;
  const int64_t n = o->vocab, whole = n / LANES * LANES, steps = n / STEP_LANES * STEP_LANES;
  int64_t begin, end;
  gk_split(o->rows, 1, thread, threads, &begin, &end);
  const float log2e = 1.44269504f;
  const double ln2 = 0.6931471805599453;
  const vf none = v_set(-INFINITY), to_y = v_set(log2e);
  for (int64_t r = begin; r < end; r++) {
    void *x = at_w(o->logits, type, r * n);
    const void *next = r + 1 < end ? at(x, type, n) : x;
    float *powers = type == GK_F32 && o->backward ? x : gk_pool_scratch(c->ctx->pool, thread);
    int32_t target = o->targets[r];
    if (target < 0) {
      o->loss[r] = 0;
      if (o->backward) memset(x, 0, (size_t)n * (type == GK_BF16 ? 2 : 4));
      continue;
    }
    float logit[LANES], chosen[LANES];
    v_store(logit, v_ld(at(x, type, target), type, 0, 1));

    vf tail = v_keep(v_ld(x, type, whole, n), 0, (int)(n - whole), none), most[STEP], e[STEP];
    EACH_STEP most[k] = tail;
    for (int64_t i = 0; i < steps; i += STEP_LANES) {
      v_lds(e, STEP, x, type, i, i + STEP_LANES);
      EACH_STEP most[k] = v_max(most[k], e[k]);
    }
    for (int64_t i = steps; i < whole; i += LANES) most[0] = v_max(most[0], v_ld(x, type, i, whole));
    EACH_STEP most[0] = v_max(most[0], most[k]);
    const float high = v_max_across(most[0]) * log2e;
    const vf down = v_set(-high);

    tail = v_fma(tail, to_y, down);
    v_falling_exp2s(&tail, 1);
    vf sums = tail;
    for (int64_t i = 0; i < steps; i += STEP_LANES) {
      prefetch(at(next, type, i), STEP_LANES * (type == GK_BF16 ? 2 : 4));
      v_lds(e, STEP, x, type, i, i + STEP_LANES);
      EACH_STEP e[k] = v_fma(e[k], to_y, down);
      v_falling_exp2s(e, STEP);
      if (o->backward) v_sts(powers, STEP, GK_F32, i, i + STEP_LANES, e);
      EACH_STEP sums = v_add(sums, e[k]);
    }
    for (int64_t i = steps; i < whole; i += LANES) {
      e[0] = v_fma(v_ld(x, type, i, whole), to_y, down);
      v_falling_exp2s(e, 1);
      if (o->backward) v_store(powers + i, e[0]);
      sums = v_add(sums, e[0]);
    }
    if (o->backward) v_st(powers, GK_F32, whole, n, tail);
    float sum = v_sum(sums);
    o->loss[r] = (float)(log((double)sum) + ln2 * ((double)high - (double)log2e * (double)logit[0]));
    if (!o->backward) continue;

    const float scale = o->scale[0];
    const vf each = v_set(scale / sum);
    v_store(chosen, v_fma(v_set(powers[target]), each, v_set(-scale)));
    for (int64_t i = 0; i < n; i += STEP_LANES) {
      v_lds(e, STEP, powers, GK_F32, i, n);
      EACH_STEP e[k] = v_mul(e[k], each);
      v_sts(x, STEP, type, i, n, e);
    }
    v_st(at_w(x, type, target), type, 0, 1, v_load(chosen));
  }
}
