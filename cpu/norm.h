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

// TOGETHER is how many rows (or blocks) are summed side by side where a lane's sum, one chain of adds, would
// take longer than its numbers take from memory.
enum { TOGETHER = 2 };

INLINED void norm_rows(const gk_add_rms_norm_args *o, int type, int64_t row, int many) {
  const int64_t dim = o->dim, end = (row + many) * dim;
  const int wide = type == GK_BF16 ? STEP : 1; // in fp32 four lines of each tensor at a time cost 15 %
  const void *normed = o->x;
  vf squares[TOGETHER], x[STEP], y[STEP];
  if (o->residual != NULL) {
    normed = o->sum; // as rounded: it is what the backward pass will see
    for (int64_t i = row * dim; i < end; i += wide * LANES) {
      v_lds(x, wide, o->x, type, i, end);
      v_lds(y, wide, o->residual, type, i, end);
      EACH_OF(wide) x[k] = v_add(x[k], y[k]);
      v_sts(o->sum, wide, type, i, end, x);
    }
  }
  EACH_OF(many) squares[k] = v_set(0);
  for (int64_t i = 0; i < dim; i += LANES) {
    // The rows that follow, in the order of memory.
    if (many > 1) prefetch(at(o->x, type, (row + many) * dim + i * many), many * LANES * (type == GK_BF16 ? 2 : 4));
    EACH_OF(many) {
      vf s = v_ld(at(normed, type, (row + k) * dim), type, i, dim);
      squares[k] = v_fma(s, s, squares[k]);
    }
  }
  GK_UNROLL
  for (int r = 0; r < many; r++) {
    const void *in = at(normed, type, (row + r) * dim);
    void *out = at_w(o->out, type, (row + r) * dim);
    float rstd = inverse_rms(v_sum(squares[r]), dim, o->eps);
    o->rstd[row + r] = rstd;
    vf scale = v_set(rstd);
    for (int64_t i = 0; i < dim; i += wide * LANES) {
      v_lds(x, wide, in, type, i, dim);
      v_lds(y, wide, o->weight, type, i, dim);
      EACH_OF(wide) x[k] = v_mul(v_mul(x[k], scale), y[k]);
      v_sts(out, wide, type, i, dim, x);
    }
  }
}

// With a residual, and in fp32, memory takes longer than a row's sum, and one row after the other is best:
// 85–95 % of its bandwidth. Without, two rows in bf16 reach 80 %, one 57 %.
INLINED void add_rms_norm(const gk_call *c, int thread, int threads, int type) {
  const gk_add_rms_norm_args *o = c->args;
  int64_t begin, end;
  gk_split(o->rows, 1, thread, threads, &begin, &end);
  int64_t r = begin;
  for (; type == GK_BF16 && o->residual == NULL && r + TOGETHER <= end; r += TOGETHER) norm_rows(o, type, r, TOGETHER);
  for (; r < end; r++) norm_rows(o, type, r, 1);
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
