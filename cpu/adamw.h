// AdamW: one pass over the parameters, which reads and writes each once.

INLINED uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// stochastic rounds x up or down as device.StochasticBF16 does with the low 16 of the random bits.
INLINED gk_bf16 stochastic(float x, uint64_t random) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7f800000) == 0x7f800000) return gk_bf16_from_f32(x);
  return (gk_bf16)((bits + (uint32_t)(random & 0xffff)) >> 16);
}

INLINED void adamw(const gk_call *c, int thread, int threads, int type) {
  const gk_adamw_args *o = c->args;
  // The indices are device.HyperLR and those that follow it.
  const float lr = o->hyper[0], grad_scale = o->hyper[1], bias1 = o->hyper[2], bias2 = o->hyper[3];
  const vf keep = v_set((float)(1 - (double)lr * o->weight_decay)), scale = v_set(grad_scale);
  const vf rest1 = v_set((float)(1 - (double)o->beta1)), rest2 = v_set((float)(1 - (double)o->beta2));
  const vf beta2 = v_set(o->beta2), rate = v_set(lr * bias1), root = v_set(bias2), eps = v_set(o->eps);
  const uint64_t seed = mix(mix(o->seed) + (uint64_t)o->hyper[4]);
  int64_t begin, end;
  gk_split(o->n, GRANULE, thread, threads, &begin, &end);
  for (int64_t i = begin; i < end; i += LANES) {
    vf p = v_ld(o->param, GK_F32, i, end), m = v_ld(o->m, GK_F32, i, end), v = v_ld(o->v, GK_F32, i, end);
    vf g = v_mul(v_ld(o->grad, type, i, end), scale);
    m = v_fma(rest1, v_sub(g, m), m);
    v = v_fma(rest2, v_mul(g, g), v_mul(beta2, v));
    p = v_sub(v_mul(p, keep), v_div(v_mul(rate, m), v_fma(v_sqrt(v), root, eps)));
    v_st(o->param, GK_F32, i, end, p);
    v_st(o->m, GK_F32, i, end, m);
    v_st(o->v, GK_F32, i, end, v);
    if (o->copy == NULL) continue;
    if (!o->stochastic) {
      v_st(o->copy, GK_BF16, i, end, p);
      continue;
    }
    float lanes[LANES];
    v_store(lanes, p);
    for (int64_t k = i; k < i + LANES && k < end; k++)
      o->copy[k] = stochastic(lanes[k - i], mix(seed + (uint64_t)(o->index + k)));
  }
}
