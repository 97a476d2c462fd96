// What every attention kernel knows of its problem: one key-value head of one sequence, the query heads
// that read it as the rows of one matrix, and which keys a row sees. Included after vec.h.
#ifndef GK_ATTENTION_HEAD_H
#define GK_ATTENTION_HEAD_H

static const double LOG2_E = 1.4426950408889634, LN_2 = 0.6931471805599453;

// head is one key-value head of one sequence and the query heads that read it.
typedef struct {
  const gk_attention_args *args;
  int type, size, padded; // head size, and that rounded up to a whole vector
  int64_t group, rows;    // query heads, and the rows of the problem
  int64_t keys;           // of the sequence
  int64_t offset;         // position p sees keys up to offset + p
  int64_t first;          // row of the sequence in Q, times heads, plus the first query head
  const void *k, *v;      // key 0 of this head
  int64_t stride;         // elements from one key to the next
  const int32_t *start;   // of this sequence, or NULL
} head;

INLINED int64_t position(const head *h, int64_t row) { return row / h->group; }
// query is the index of a row's vector in Q, and of its number in LSE.
INLINED int64_t query(const head *h, int64_t row) {
  return h->first + row / h->group * h->args->heads + row % h->group;
}
INLINED int64_t first_key(const head *h, int64_t row) { return h->start ? h->start[position(h, row)] : 0; }
INLINED int64_t end_key(const head *h, int64_t row) { return h->offset + position(h, row) + 1; }

// span is the range of keys that any row in [begin, end) sees.
INLINED void span(const head *h, int64_t begin, int64_t end, int64_t *lo, int64_t *hi) {
  *lo = first_key(h, begin);
  for (int64_t p = position(h, begin) + 1; h->start && p <= position(h, end - 1); p++)
    if (h->start[p] < *lo) *lo = h->start[p];
  *hi = end_key(h, end - 1);
}

// scale2 is Scale for powers of two.
INLINED float scale2(const gk_attention_args *o) { return (float)(LOG2_E * o->scale); }

INLINED head new_head(const gk_attention_args *o, int type, int64_t seq, int64_t kv_head) {
  int64_t group = o->heads / o->kv_heads, first_row = seq * o->seq_len;
  head h = {.args = o, .type = type, .size = (int)o->head_size, .group = group, .rows = o->seq_len * group, .keys = o->seq_len};
  h.padded = (h.size + LANES - 1) / LANES * LANES;
  h.first = first_row * o->heads + kv_head * group;
  h.stride = o->kv_heads * o->head_size;
  h.k = at(o->k, type, first_row * h.stride + kv_head * o->head_size);
  h.v = at(o->v, type, first_row * h.stride + kv_head * o->head_size);
  h.start = o->start ? o->start + first_row : NULL;
  return h;
}

// parts is into how many items a head is cut: one where there are heads enough for all threads.
INLINED int64_t parts(int64_t heads, int64_t tiles, int threads) {
  if (heads % threads == 0 || heads >= 4 * threads) return 1;
  int64_t want = (4 * threads + heads - 1) / heads;
  return want < tiles ? want : tiles;
}

// MAX_SLOTS is how many packed blocks of keys a thread keeps track of.
enum { MAX_SLOTS = 4096 };

#endif
