// AddRMSNorm and the sums over rows that its backward and that of QKNormRoPE share.

// Sums over rows are made of blocks of rows, so that threads can share them out: a block's rows are
// added in order, then the blocks in order. The blocks depend on the number of rows alone.
enum { MAX_BLOCKS = 64, MIN_BLOCK_ROWS = 16 };

INLINED int64_t block_rows(int64_t rows) {
  int64_t each = (rows + MAX_BLOCKS - 1) / MAX_BLOCKS;
  return each > MIN_BLOCK_ROWS ? each : MIN_BLOCK_ROWS;
}

// add_blocks adds the blocks' sums to out[0, n) (or sets it), elements split among threads.
INLINED void add_blocks(void *out, int type, int accumulate, const float *partial, int64_t stride,
                          int64_t blocks, int64_t n, int thread, int threads) {
  int64_t begin, end;
  gk_split(n, LANES, thread, threads, &begin, &end);
  for (int64_t i = begin; i < end; i += LANES) {
    vf sum = accumulate ? v_ld(out, type, i, end) : v_set(0);
    for (int64_t b = 0; b < blocks; b++) sum = v_add(sum, v_ld(partial + b * stride, GK_F32, i, end));
    v_st(out, type, i, end, sum);
  }
}

INLINED float inverse_rms(float squares, int64_t n, float eps) {
  return 1.0f / sqrtf(squares / (float)n + eps);
}

INLINED void add_rms_norm(const gk_call *c, int thread, int threads, int type) {
  const gk_add_rms_norm_args *o = c->args;
  int64_t begin, end, dim = o->dim;
  gk_split(o->rows, 1, thread, threads, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    const void *x = at(o->x, type, r * dim), *normed = x;
    void *out = at_w(o->out, type, r * dim);
    if (o->residual != NULL) {
      const void *residual = at(o->residual, type, r * dim);
      void *sum = at_w(o->sum, type, r * dim);
      for (int64_t i = 0; i < dim; i += LANES)
        v_st(sum, type, i, dim, v_add(v_ld(x, type, i, dim), v_ld(residual, type, i, dim)));
      normed = sum; // as rounded: it is what the backward pass will see
    }
    vf squares = v_set(0);
    for (int64_t i = 0; i < dim; i += LANES) {
      vf s = v_ld(normed, type, i, dim);
      squares = v_fma(s, s, squares);
    }
    float rstd = inverse_rms(v_sum(squares), dim, o->eps);
    o->rstd[r] = rstd;
    vf scale = v_set(rstd);
    for (int64_t i = 0; i < dim; i += LANES)
      v_st(out, type, i, dim, v_mul(v_mul(v_ld(normed, type, i, dim), scale), v_ld(o->weight, type, i, dim)));
  }
}

INLINED void add_rms_norm_backward(const gk_call *c, int thread, int threads, int type) {
  const gk_add_rms_norm_backward_args *o = c->args;
  float *partials = gk_pool_scratch(c->ctx->pool, 0);
  int64_t begin, end, dim = o->dim, each = block_rows(o->rows), blocks = (o->rows + each - 1) / each;
  if (c->phase == 1) {
    add_blocks(o->dweight, o->dweight_type, o->accumulate, partials, dim, blocks, dim, thread, threads);
    return;
  }
  gk_split(blocks, 1, thread, threads, &begin, &end);
  for (int64_t b = begin; b < end; b++) {
    float *partial = partials + b * dim;
    memset(partial, 0, (size_t)dim * sizeof *partial);
    int64_t last = (b + 1) * each < o->rows ? (b + 1) * each : o->rows;
    for (int64_t r = b * each; r < last; r++) {
      const void *dout = at(o->dout, type, r * dim), *sum = at(o->sum, type, r * dim);
      const void *dsum = at(o->dsum, type, r * dim);
      void *dx = at_w(o->dx, type, r * dim);
      vf dot = v_set(0), rstd = v_set(o->rstd[r]);
      for (int64_t i = 0; i < dim; i += LANES) {
        vf g = v_mul(v_ld(dout, type, i, dim), v_ld(o->weight, type, i, dim));
        dot = v_fma(g, v_ld(sum, type, i, dim), dot);
      }
      vf mean = v_set(v_sum(dot) / (float)dim * (o->rstd[r] * o->rstd[r]));
      for (int64_t i = 0; i < dim; i += LANES) {
        vf d = v_ld(dout, type, i, dim), s = v_ld(sum, type, i, dim);
        vf g = v_mul(d, v_ld(o->weight, type, i, dim));
        v_st(partial, GK_F32, i, dim, v_fma(d, v_mul(s, rstd), v_ld(partial, GK_F32, i, dim)));
        vf through = o->dsum != NULL ? v_ld(dsum, type, i, dim) : v_set(0);
        v_st(dx, type, i, dim, v_fma(rstd, v_fnma(s, mean, g), through));
      }
    }
  }
}
