// QKNormRoPE: the norm of heads and their rotation.

INLINED void qk_norm_rope(const gk_call *c, int thread, int threads, int type) {
  const gk_qk_norm_rope_args *o = c->args;
  int64_t begin, end, size = o->head_size, half = size / 2;
  gk_split(o->rows, 1, thread, threads, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    const float *cos = o->cos + o->pos[r] * half, *sin = o->sin + o->pos[r] * half;
    for (int part = 0; part < 2; part++) {
      const gk_rope_part *p = &o->part[part];
      for (int64_t h = 0; h < p->heads; h++) {
        int64_t head = r * p->heads + h;
        const void *x1 = at(p->x, type, head * size), *x2 = at(x1, type, half);
        const void *w2 = at(p->weight, type, half);
        void *y1 = at_w(p->out, type, head * size), *y2 = at_w(y1, type, half);
        vf rstd = v_set(1);
        if (p->weight != NULL) {
          vf squares = v_set(0);
          for (int64_t i = 0; i < half; i += LANES) {
            vf a = v_ld(x1, type, i, half), b = v_ld(x2, type, i, half);
            squares = v_fma(b, b, v_fma(a, a, squares));
          }
          p->rstd[head] = inverse_rms(v_sum(squares), size, o->eps);
          rstd = v_set(p->rstd[head]);
        }
        for (int64_t i = 0; i < half; i += LANES) {
          vf a = v_ld(x1, type, i, half), b = v_ld(x2, type, i, half);
          if (p->weight != NULL) {
            a = v_mul(v_mul(a, rstd), v_ld(p->weight, type, i, half));
            b = v_mul(v_mul(b, rstd), v_ld(w2, type, i, half));
          }
          vf co = v_ld(cos, GK_F32, i, half), si = v_ld(sin, GK_F32, i, half);
          v_st(y1, type, i, half, v_fnma(b, si, v_mul(a, co)));
          v_st(y2, type, i, half, v_fma(a, si, v_mul(b, co)));
        }
      }
    }
  }
}

// rope_head_backward takes one head's gradient back. With a norm it adds to dweight[0, size); back
// holds size floats and room for a vector beyond.
INLINED void rope_head_backward(const gk_rope_backward_part *p, int type, int64_t head, int64_t size,
                                  const float *cos, const float *sin, float *back, float *dweight) {
  int64_t half = size / 2;
  const void *d1 = at(p->dout, type, head * size), *d2 = at(d1, type, half);
  void *dx = at_w(p->dx, type, head * size), *dx2 = at_w(dx, type, half);
  int norm = p->weight != NULL;
  for (int64_t i = 0; i < half; i += LANES) {
    vf a = v_ld(d1, type, i, half), b = v_ld(d2, type, i, half);
    vf co = v_ld(cos, GK_F32, i, half), si = v_ld(sin, GK_F32, i, half);
    vf g1 = v_fma(b, si, v_mul(a, co)), g2 = v_fnma(a, si, v_mul(b, co));
    v_st(norm ? (void *)back : dx, norm ? GK_F32 : type, i, half, g1);
    v_st(norm ? (void *)(back + half) : dx2, norm ? GK_F32 : type, i, half, g2);
  }
  if (!norm) return;
  const void *x = at(p->x, type, head * size);
  vf dot = v_set(0), rstd = v_set(p->rstd[head]);
  for (int64_t i = 0; i < size; i += LANES) {
    vf g = v_mul(v_ld(back, GK_F32, i, size), v_ld(p->weight, type, i, size));
    dot = v_fma(g, v_ld(x, type, i, size), dot);
  }
  vf mean = v_set(v_sum(dot) / (float)size * (p->rstd[head] * p->rstd[head]));
  for (int64_t i = 0; i < size; i += LANES) {
    vf d = v_ld(back, GK_F32, i, size), s = v_ld(x, type, i, size);
    vf g = v_mul(d, v_ld(p->weight, type, i, size));
    v_st(dweight, GK_F32, i, size, v_fma(d, v_mul(s, rstd), v_ld(dweight, GK_F32, i, size)));
    v_st(dx, type, i, size, v_mul(rstd, v_fnma(s, mean, g)));
  }
}

INLINED void qk_norm_rope_backward(const gk_call *c, int thread, int threads, int type) {
  const gk_qk_norm_rope_backward_args *o = c->args;
  int64_t begin, end, size = o->head_size, half = size / 2;
  int64_t each = block_rows(o->rows), blocks = (o->rows + each - 1) / each;
  // The blocks' sums lie in the first thread's scratch; each thread's own head at the end of its own.
  float *partials = gk_pool_scratch(c->ctx->pool, 0);
  float *back = (float *)((char *)gk_pool_scratch(c->ctx->pool, thread) + gk_pool_scratch_bytes(c->ctx->pool)) - size - LANES;
  if (c->phase == 1) { // where there are norms
    for (int part = 0; part < 2; part++)
      add_blocks(o->part[part].dweight, o->part[part].dweight_type, o->accumulate, partials + part * size,
                 2 * size, blocks, size, thread, threads);
    return;
  }
  gk_split(blocks, 1, thread, threads, &begin, &end);
  for (int64_t b = begin; b < end; b++) {
    float *partial = partials + b * 2 * size;
    memset(partial, 0, 2 * (size_t)size * sizeof *partial);
    int64_t last = (b + 1) * each < o->rows ? (b + 1) * each : o->rows;
    for (int64_t r = b * each; r < last; r++)
      for (int part = 0; part < 2; part++)
        for (int64_t h = 0; h < o->part[part].heads; h++)
          rope_head_backward(&o->part[part], type, r * o->part[part].heads + h, size, o->cos + o->pos[r] * half,
                             o->sin + o->pos[r] * half, back, partial + part * size);
  }
}
