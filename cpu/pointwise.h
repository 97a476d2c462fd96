// Operations that work element by element or copy rows.

// Elements that a thread takes together: whole pages' worth of lines, so that threads do not share them.
enum { GRANULE = 1024 };

// Rows of the table lie anywhere, and no prefetcher can guess which is next: lines of the row AHEAD are
// asked for while this one is copied or added. That brings both directions from 30–50 % of the
// memory's bandwidth to 70–80 %; the rest is the start of each row of one or two pages' worth.
enum { LINE = 64, AHEAD = 4 };

INLINED void embed(const gk_call *c, int thread, int threads, int type) {
  const gk_embed_args *o = c->args;
  int64_t begin, end, bytes = o->dim * (type == GK_BF16 ? 2 : 4), lines = bytes / LINE * LINE;
  gk_split(o->rows, 1, thread, threads, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    const char *from = (const char *)o->table + o->ids[r] * bytes;
    const char *ahead = (const char *)o->table + o->ids[r + AHEAD < end ? r + AHEAD : r] * bytes;
    char *to = (char *)o->out + r * bytes;
    for (int64_t b = 0; b < lines; b += LINE) {
      __builtin_prefetch(ahead + b);
      memcpy(to + b, from + b, LINE);
    }
    memcpy(to + lines, from + lines, (size_t)(bytes - lines));
  }
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
    const void *ahead = at(o->dtable, o->dtable_type, o->ids[r + AHEAD < end ? r + AHEAD : r] * dim);
    for (int64_t i = 0; i < dim; i += STEP_LANES) {
      vf sum[STEP], x[STEP];
      prefetch(at(ahead, o->dtable_type, i), STEP_LANES * (o->dtable_type == GK_BF16 ? 2 : 4));
      v_lds(sum, STEP, out, o->dtable_type, i, dim);
      for (int64_t row = r; row >= 0; row = next[row]) {
        v_lds(x, STEP, at(o->dout, type, row * dim), type, i, dim);
        EACH_STEP sum[k] = v_add(sum[k], x[k]);
      }
      v_sts(out, STEP, o->dtable_type, i, dim, sum);
    }
  }
}

// one_plus_exp_minus is 1 + e^−x of each.
INLINED void one_plus_exp_minus(vf *out, const vf *x) {
  EACH_STEP out[k] = v_sub(v_set(0), x[k]);
  v_exps(out, STEP);
  EACH_STEP out[k] = v_add(v_set(1), out[k]);
}

// Both directions reach 85–90 % of the memory's bandwidth in bf16, where one vector at a time gave half of
// that, and all of it in fp32.
INLINED void swiglu(const gk_call *c, int thread, int threads, int type) {
  const gk_swiglu_args args = *(const gk_swiglu_args *)c->args; // a copy: no store can change it
  int64_t begin, end;
  gk_split(args.n, GRANULE, thread, threads, &begin, &end);
  for (int64_t i = begin; i < end; i += STEP_LANES) {
    vf gate[STEP], up[STEP], out[STEP];
    v_lds(gate, STEP, args.gate, type, i, end);
    one_plus_exp_minus(out, gate);
    EACH_STEP out[k] = v_div(gate[k], out[k]);
    v_lds(up, STEP, args.up, type, i, end);
    EACH_STEP out[k] = v_mul(out[k], up[k]);
    v_sts(args.out, STEP, type, i, end, out);
  }
}

INLINED void swiglu_backward(const gk_call *c, int thread, int threads, int type) {
  const gk_swiglu_args args = *(const gk_swiglu_args *)c->args; // a copy: no store can change it
  int64_t begin, end;
  gk_split(args.n, GRANULE, thread, threads, &begin, &end);
  const vf one = v_set(1);
  for (int64_t i = begin; i < end; i += STEP_LANES) {
    vf gate[STEP], up[STEP], d[STEP], sigma[STEP];
    v_lds(gate, STEP, args.gate, type, i, end);
    one_plus_exp_minus(sigma, gate);
    EACH_STEP sigma[k] = v_div(one, sigma[k]);
    v_lds(d, STEP, args.dout, type, i, end);
    EACH_STEP d[k] = v_mul(d[k], sigma[k]);
    EACH_STEP sigma[k] = v_fma(gate[k], v_sub(one, sigma[k]), one);
    EACH_STEP gate[k] = v_mul(d[k], gate[k]);
    v_lds(up, STEP, args.up, type, i, end);
    EACH_STEP d[k] = v_mul(v_mul(d[k], up[k]), sigma[k]);
    v_sts(args.dgate, STEP, type, i, end, d);
    v_sts(args.dup, STEP, type, i, end, gate);
  }
}

INLINED void cast(const gk_call *c, int thread, int threads, int type) {
  const gk_move_args *o = c->args;
  int64_t begin, end;
  gk_split(o->n, GRANULE, thread, threads, &begin, &end);
  for (int64_t i = begin; i < end; i += STEP_LANES) {
    vf x[STEP];
    v_lds(x, STEP, o->src, type, i, end);
    v_sts(o->dst, STEP, o->dst_type, i, end, x);
  }
}

INLINED void copy(const gk_call *c, int thread, int threads, int type) {
  (void)type;
  const gk_move_args *o = c->args;
  int64_t begin, end;
  gk_split(o->n * o->size, 4096, thread, threads, &begin, &end);
  char *dst = (char *)o->dst + begin;
  const char *src = (const char *)o->src + begin;
  int64_t done = 0, bytes = end - begin;
  if (past(dst, bytes)) {
    for (; bytes - done >= 256; done += 256) {
      vf line[4];
      EACH_OF(4) line[k] = v_load((const float *)(src + done) + k * LANES);
      EACH_OF(4) v_store_past((float *)(dst + done) + k * LANES, line[k]);
    }
    v_settle();
  }
  memcpy(dst + done, src + done, (size_t)(bytes - done));
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
