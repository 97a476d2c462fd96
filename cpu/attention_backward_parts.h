// How threads share the backward of attention, by tiles of BACK_ROWS rows and blocks of KEYS keys. It is the
// same for all kernels: who includes it has their head, memory_backward, load_tile, meet, store_dq and store_block.

// backward_part computes a head: DQ of tiles [tile, tile_end), DK and DV of blocks [first, end).
static void backward_part(const head *h, memory_backward *m, int64_t seq, int64_t kv_head, int64_t tile, int64_t tile_end,
                          int64_t first, int64_t end, int want_dq, int want_dkv) {
  for (int64_t s = 0; s < m->slots; s++) m->packed[s] = -1;
  // The rows of earlier positions than the first key see none of the keys.
  int64_t earliest = first * KEYS * h->group / BACK_ROWS;
  for (int64_t t = tile > earliest ? tile : earliest; t < tile_end; t++) {
    int64_t begin = t * BACK_ROWS, lo, hi;
    int many = (int)(h->rows - begin < BACK_ROWS ? h->rows - begin : BACK_ROWS);
    span(h, begin, begin + many, &lo, &hi);
    int64_t from = lo / KEYS, to = (hi + KEYS - 1) / KEYS;
    if (from < first) from = first;
    if (to > end) to = end;
    if (from >= to) continue;
    load_tile(h, m, begin, many);
    for (int64_t b = from; b < to; b++) meet(h, m, begin, many, b, want_dq, want_dkv);
    if (want_dq) store_dq(h, m, begin, many);
  }
  if (want_dkv)
    for (int64_t b = first; b < end; b++) store_block(h, m, b, seq, kv_head);
}

// share_backward computes all heads, with the threads together.
static void share_backward(const gk_call *c, memory_backward *m, int threads, int type) {
  const gk_attention_args *o = c->args;
  int64_t item, heads = o->seqs * o->kv_heads;
  int64_t rows = o->seq_len * (o->heads / o->kv_heads);
  int64_t tiles = (rows + BACK_ROWS - 1) / BACK_ROWS, blocks = (o->seq_len + KEYS - 1) / KEYS;
  if (blocks <= m->slots && parts(heads, tiles, threads) == 1) {
    while ((item = gk_next(c, 0)) < heads) {
      head h = new_head(o, type, item / o->kv_heads, item % o->kv_heads);
      backward_part(&h, m, item / o->kv_heads, item % o->kv_heads, 0, tiles, 0, blocks, 1, 1);
    }
    return;
  }
  // Runs of tiles, so that packed keys serve several; late tiles, which see the most keys, come first.
  int64_t run = (tiles + 4 * threads - 1) / (4 * threads), runs = (tiles + run - 1) / run;
  while ((item = gk_next(c, 0)) < heads * runs) {
    int64_t which = item % heads, first = (runs - 1 - item / heads) * run;
    head h = new_head(o, type, which / o->kv_heads, which % o->kv_heads);
    backward_part(&h, m, which / o->kv_heads, which % o->kv_heads, first, first + run < tiles ? first + run : tiles, 0,
                  blocks, 1, 0);
  }
  while ((item = gk_next(c, 1)) < heads * blocks) { // early blocks are seen by the most rows
    int64_t which = item % heads, number = item / heads;
    head h = new_head(o, type, which / o->kv_heads, which % o->kv_heads);
    backward_part(&h, m, which / o->kv_heads, which % o->kv_heads, 0, tiles, number, number + 1, 0, 1);
  }
}
