// What attention by the bf16 dot product is made of. A product of two matrices takes k in pairs, two
// bf16 in 32 bits: a pair of a's row is broadcast, b's pairs lie in panels of 32 columns, [pair][32].
//
// So Q·Kᵀ and DOut·Vᵀ, whose k is the head, take rows of Q and DOut as they are and keys and values
// transposed. P·V and S·K, whose k is the keys, take P and S rounded to bf16, and keys and values with
// every two rows interleaved; Sᵀ·Q and Pᵀ·DOut, whose k is the rows, the same with rows for keys.
// Sums are fp32, each in one order: pairs ascending, see gemm.h.

#include "attention_head.h"
#include "gemm_parts.h"

enum {
  STRIP = 8,         // rows of one micro-kernel
  PANEL = 2 * LANES, // its columns
  KEYS = 256,        // keys of a block: part of the order of sums
};

INLINED vf v_dot(vf sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
INLINED __m512i broadcast_pair(const uint32_t *p) { return _mm512_set1_epi32((int)*p); }
INLINED __m512i load_pairs(const uint32_t *p) { return _mm512_loadu_si512(p); }

// add_tile adds a·b to 8 × 16·vectors elements of c. 16 sums cover two units with a latency of 4
// to 6 cycles, for 10 loads in 16 dot products.
INLINED void add_tile(float *c, int64_t ldc, const uint32_t *a, int64_t row_step, int64_t k_step, const uint32_t *b,
                      int64_t depth, int vectors) {
  vf sum[STRIP][2];
  GK_UNROLL
  for (int i = 0; i < STRIP; i++)
    GK_UNROLL
    for (int j = 0; j < vectors; j++) sum[i][j] = v_load(c + i * ldc + j * LANES);
  for (int64_t k = 0; k < depth; k++) {
    __m512i bk[2];
    GK_UNROLL
    for (int j = 0; j < vectors; j++) bk[j] = load_pairs(b + k * PANEL + j * LANES);
    GK_UNROLL
    for (int i = 0; i < STRIP; i++) {
      __m512i x = broadcast_pair(a + i * row_step + k * k_step);
      GK_UNROLL
      for (int j = 0; j < vectors; j++) sum[i][j] = v_dot(sum[i][j], x, bk[j]);
    }
  }
  GK_UNROLL
  for (int i = 0; i < STRIP; i++)
    GK_UNROLL
    for (int j = 0; j < vectors; j++) v_store(c + i * ldc + j * LANES, sum[i][j]);
}

// add_product adds a·b to 8 rows of cols columns, a multiple of 16; b's panels lie `panel` pairs apart.
INLINED void add_product(float *c, int64_t ldc, const uint32_t *a, int64_t row_step, int64_t k_step, const uint32_t *b,
                         int64_t panel, int64_t depth, int64_t cols) {
  for (; cols >= PANEL; cols -= PANEL, c += PANEL, b += panel) add_tile(c, ldc, a, row_step, k_step, b, depth, 2);
  if (cols > 0) add_tile(c, ldc, a, row_step, k_step, b, depth, 1);
}

// pairs_of is how many pairs n elements make.
INLINED int64_t pairs_of(int64_t n) { return (n + 1) / 2; }

// copy_row copies a row of an even size as pairs.
INLINED void copy_row(uint32_t *dst, const void *src, int size) { memcpy(dst, src, (size_t)size * sizeof(gk_bf16)); }

// fetch_rows asks for rows [begin, end) of a tensor of queries, to read or to write. A tile's rows lie a few
// here and a few there, which the hardware's prefetcher does not follow, and waiting for them costs 5 % of all.
INLINED void fetch_rows(const head *h, const void *tensor, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end && row < h->rows; row++) {
    const char *p = at(tensor, GK_BF16, query(h, row) * h->size);
    for (int64_t line = 0; line < h->size * (int64_t)sizeof(gk_bf16); line += 64) __builtin_prefetch(p + line);
  }
}

// pack_across transposes a block's keys or values: panels of 32 of them, [pair of the head][32]. The last
// panel is filled with zeros.
static void pack_across(const head *h, const void *src, int64_t begin, uint32_t *dst) {
  gk_pack_avx2(&(gk_pack){.src = at(src, GK_BF16, begin * h->stride),
                          .stride = h->stride * (int64_t)sizeof(gk_bf16),
                          .k_contiguous = 1,
                          .unit = GK_UNIT_PAIR,
                          .count = h->keys - begin < KEYS ? h->keys - begin : KEYS,
                          .k = h->size,
                          .width = PANEL,
                          .dst = (char *)dst});
}

// interleave makes pairs of rows 2i and 2i+1: panels of 32 elements of the head, [pair of rows][32],
// `panel` pairs apart. An odd last row pairs with zeros; pairs up to `to` rows are zero.
static void interleave(uint32_t *dst, int64_t panel, const gk_bf16 *src, int64_t stride, int64_t rows, int64_t to, int size) {
  for (int64_t r = 0; r < to; r += 2)
    for (int d = 0; d < size; d += LANES) {
      __mmask16 here = v_mask(size - d);
      const gk_bf16 *p = src + r * stride + d;
      __m256i even = _mm256_maskz_loadu_epi16(r < rows ? here : 0, p);
      __m256i odd = _mm256_maskz_loadu_epi16(r + 1 < rows ? here : 0, p + stride);
      __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
      _mm512_storeu_si512(dst + d / PANEL * panel + r / 2 * PANEL + d % PANEL, both);
    }
}

// pack_along interleaves a block's keys or values.
static void pack_along(const head *h, const void *src, int64_t begin, uint32_t *dst) {
  interleave(dst, KEYS / 2 * PANEL, at(src, GK_BF16, begin * h->stride), h->stride, h->keys - begin, KEYS, h->size);
}

// along_size is the pairs that pack_along writes.
INLINED int64_t along_size(int padded) { return (padded + PANEL - 1) / PANEL * PANEL * (int64_t)(KEYS / 2); }

// seen is which of 32 keys from `key` on a row that sees keys [first, end) sees, a bit each.
INLINED uint32_t seen(int64_t first, int64_t end, int64_t key) {
  int64_t lo = first - key, hi = end - key;
  uint32_t below = hi >= PANEL ? 0xffffffff : hi <= 0 ? 0 : (1u << hi) - 1;
  uint32_t before = lo >= PANEL ? 0xffffffff : lo <= 0 ? 0 : (1u << lo) - 1;
  return below & ~before;
}

// all_seen says whether each of many rows sees all 32 keys from `key` on.
INLINED int all_seen(const int64_t *first, const int64_t *end, int many, int64_t key) {
  int all = 1;
  for (int i = 0; i < many; i++) all &= first[i] <= key && end[i] >= key + PANEL;
  return all;
}

// v_weight is v_weights of one vector.
INLINED vf v_weight(vf x) {
  v_weights(&x, 1);
  return x;
}
