// Operations that work element by element or copy rows.

// Elements that a thread takes together: whole pages' worth of lines, so that threads do not share them.
enum { GRANULE = 1024 };

INLINED void embed(const gk_call *c, int thread, int threads, int type) {
  const gk_embed_args *o = c->args;
  int64_t begin, end;
  size_t bytes = (size_t)o->dim * (type == GK_BF16 ? 2 : 4);
  gk_split(o->rows, 1, thread, threads, &begin, &end);
  for (int64_t r = begin; r < end; r++)
    memcpy((char *)o->out + (size_t)r * bytes, (const char *)o->table + (size_t)o->ids[r] * bytes, bytes);
}

// embed_backward chains the rows of one id: head[id] is the first, next[row] the following one or −1.
// The thread that owns a chain's first row adds all of it, so each element is loaded and rounded once.
INLINED void embed_backward(const gk_call *c, int thread, int threads, int type) {
  const gk_embed_backward_args *o = c->args;
  int32_t *head = gk_pool_scratch(c->ctx->pool, 0), *next = head + o->vocab;
  if (c->phase == 0) {
    if (thread != 0) return;
    for (int64_t r = 0; r < o->rows; r++) head[o->ids[r]] = -1;
    for (int64_t r = o->rows - 1; r >= 0; r--) {
      next[r] = head[o->ids[r]];
      head[o->ids[r]] = (int32_t)r;
    }
    return;
  }
  int64_t begin, end, dim = o->dim;
  gk_split(o->rows, 1, thread, threads, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    if (head[o->ids[r]] != r) continue;
    void *out = at_w(o->dtable, o->dtable_type, o->ids[r] * dim);
    for (int64_t i = 0; i < dim; i += LANES) {
      vf sum = v_ld(out, o->dtable_type, i, dim);
      for (int64_t k = r; k >= 0; k = next[k]) sum = v_add(sum, v_ld(at(o->dout, type, k * dim), type, i, dim));
      v_st(out, o->dtable_type, i, dim, sum);
    }
  }
}

// one_plus_exp_minus is 1 + e^−x.
INLINED vf one_plus_exp_minus(vf x) { return v_add(v_set(1), v_exp(v_sub(v_set(0), x))); }

INLINED void swiglu(const gk_call *c, int thread, int threads, int type) {
  const gk_swiglu_args *o = c->args;
  int64_t begin, end;
  gk_split(o->n, GRANULE, thread, threads, &begin, &end);
  for (int64_t i = begin; i < end; i += LANES) {
    vf gate = v_ld(o->gate, type, i, end);
    v_st(o->out, type, i, end, v_mul(v_div(gate, one_plus_exp_minus(gate)), v_ld(o->up, type, i, end)));
  }
}

INLINED void swiglu_backward(const gk_call *c, int thread, int threads, int type) {
  const gk_swiglu_args *o = c->args;
  int64_t begin, end;
  gk_split(o->n, GRANULE, thread, threads, &begin, &end);
  for (int64_t i = begin; i < end; i += LANES) {
    vf gate = v_ld(o->gate, type, i, end), up = v_ld(o->up, type, i, end), dout = v_ld(o->dout, type, i, end);
    vf one = v_set(1), sigma = v_div(one, one_plus_exp_minus(gate));
    vf d = v_mul(dout, sigma);
    v_st(o->dgate, type, i, end, v_mul(v_mul(d, up), v_fma(gate, v_sub(one, sigma), one)));
    v_st(o->dup, type, i, end, v_mul(d, gate));
  }
}

INLINED void cast(const gk_call *c, int thread, int threads, int type) {
  const gk_move_args *o = c->args;
  int64_t begin, end;
  gk_split(o->n, GRANULE, thread, threads, &begin, &end);
  for (int64_t i = begin; i < end; i += LANES) v_st(o->dst, o->dst_type, i, end, v_ld(o->src, type, i, end));
}

INLINED void copy(const gk_call *c, int thread, int threads, int type) {
  (void)type;
  const gk_move_args *o = c->args;
  int64_t begin, end;
  gk_split(o->n * o->size, 4096, thread, threads, &begin, &end);
  memcpy((char *)o->dst + begin, (const char *)o->src + begin, (size_t)(end - begin));
}

INLINED void fill(const gk_call *c, int thread, int threads, int type) {
  (void)type;
  const gk_move_args *o = c->args;
  int64_t begin, end;
  gk_split(o->n, GRANULE, thread, threads, &begin, &end);
  if (o->bits == 0) {
    memset((char *)o->dst + begin * o->size, 0, (size_t)((end - begin) * o->size));
    return;
  }
  char pattern[64];
  for (int64_t i = 0; i < 64; i += o->size) memcpy(pattern + i, &o->bits, (size_t)o->size); // the low bytes
  char *to = (char *)o->dst + begin * o->size, *last = (char *)o->dst + end * o->size;
  for (; last - to >= 64; to += 64) memcpy(to, pattern, 64);
  memcpy(to, pattern, (size_t)(last - to));
}
