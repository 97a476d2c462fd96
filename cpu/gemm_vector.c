//go:build cgo && amd64

// A row vector times a matrix: decoding a token. Each element of the matrix is used once, so memory
// sets the pace and 8 lanes keep up with it at every level; nothing is packed.
//
// The chains along k are the contract's, so lanes are columns of the result. Where k is contiguous
// (the forward pass) blocks of 8×8 units are transposed in registers on their way to the multiply-add.
#include "gemm_units.h"

enum {
  AHEAD = 256, // bytes from where a row is read to where it is fetched
  GROUPS = 4,  // of 8 rows that are read side by side
};

GK_INLINE GK_TARGET_AVX2 __m256 muladd_f32(__m256 c, int32_t a, __m256i b) {
  return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_set1_epi32(a)), _mm256_castsi256_ps(b), c);
}

GK_INLINE GK_TARGET_AVX512BF16 __m256 muladd_pair(__m256 c, int32_t a, __m256i b) {
  return _mm256_dpbf16_ps(c, (__m256bh)_mm256_set1_epi32(a), (__m256bh)b);
}

// VECTOR defines one instance. rows: `groups` times 8 vectors side by side, whose chains are
// independent and hide each other's latency; columns: 8 units at a time, so that the sums, which
// stay in the first-level cache, are loaded and stored once for 8 rows of the matrix; edge: up to 8
// vectors over the units from u on, one by one.
#define VECTOR(NAME, TARGET, UNIT, MULADD)                                                            \
  GK_INLINE TARGET void NAME##_edge(const gk_pack *p, const int32_t *a, float *sum, int64_t v, int64_t n, \
                                    int64_t u, int64_t units) {                                       \
    int32_t x[8] = {0};                                                                               \
    float s[8] = {0};                                                                                 \
    memcpy(s, sum + v, (size_t)n * 4);                                                                \
    __m256 c = _mm256_loadu_ps(s);                                                                    \
    for (; u < units; u++) {                                                                          \
      for (int64_t i = 0; i < n; i++) x[i] = (int32_t)unit_at(p, v + i, u);                           \
      c = MULADD(c, a[u], _mm256_loadu_si256((const __m256i *)x));                                    \
    }                                                                                                 \
    _mm256_storeu_ps(s, c);                                                                           \
    memcpy(sum + v, s, (size_t)n * 4);                                                                \
  }                                                                                                   \
  GK_INLINE TARGET void NAME##_rows(const gk_pack *p, const int32_t *a, float *sum, int64_t v,        \
                                    int64_t u8, int groups) {                                         \
    const int64_t step = UNIT == GK_UNIT_WIDEN ? 2 : 4;                                               \
    __m256 c[GROUPS];                                                                                 \
    GK_UNROLL for (int g = 0; g < groups; g++) c[g] = _mm256_loadu_ps(sum + v + 8 * g);               \
    for (int64_t u = 0; u < u8; u += 8) {                                                             \
      GK_UNROLL for (int g = 0; g < groups; g++) {                                                    \
        const char *from = p->src + (v + 8 * g) * p->stride + u * step;                               \
        __m256i r[8];                                                                                 \
        GK_UNROLL for (int i = 0; i < 8; i++) {                                                       \
          r[i] = load8(from + i * p->stride, UNIT);                                                   \
          __builtin_prefetch(from + i * p->stride + AHEAD);                                           \
        }                                                                                             \
        transpose8(r);                                                                                \
        GK_UNROLL for (int i = 0; i < 8; i++) c[g] = MULADD(c[g], a[u + i], r[i]);                    \
      }                                                                                               \
    }                                                                                                 \
    GK_UNROLL for (int g = 0; g < groups; g++) _mm256_storeu_ps(sum + v + 8 * g, c[g]);               \
  }                                                                                                   \
  GK_INLINE TARGET void NAME##_columns(const gk_pack *p, const int32_t *a, float *sum, int64_t u,     \
                                       int64_t n) {                                                   \
    const int64_t rows = UNIT == GK_UNIT_PAIR ? 2 : 1, size = UNIT == GK_UNIT_F32 ? 4 : 2;            \
    for (int64_t v = 0; v + 8 <= p->count; v += 8) {                                                  \
      const char *from = p->src + u * rows * p->stride + v * size;                                    \
      __m256 c = _mm256_loadu_ps(sum + v);                                                            \
      GK_UNROLL for (int64_t i = 0; i < n; i++)                                                       \
        c = MULADD(c, a[u + i], join8(from + i * rows * p->stride, p->stride, UNIT));                 \
      _mm256_storeu_ps(sum + v, c);                                                                   \
    }                                                                                                 \
  }                                                                                                   \
  TARGET static void NAME(const gk_pack *p, const int32_t *a, float *sum) {                           \
    const int64_t units = UNIT == GK_UNIT_PAIR ? (p->k + 1) / 2 : p->k;                               \
    const int64_t whole = UNIT == GK_UNIT_PAIR ? p->k / 2 : p->k;                                     \
    int64_t v = 0, u = 0;                                                                             \
    if (p->k_contiguous) {                                                                            \
      u = whole / 8 * 8;                                                                              \
      for (; v + 8 * GROUPS <= p->count && !crowded(p); v += 8 * GROUPS)                              \
        NAME##_rows(p, a, sum, v, u, GROUPS);                                                         \
      for (; v + 16 <= p->count; v += 16) NAME##_rows(p, a, sum, v, u, 2);                            \
      for (; v + 8 <= p->count; v += 8) NAME##_rows(p, a, sum, v, u, 1);                              \
    } else {                                                                                          \
      v = p->count / 8 * 8;                                                                           \
      for (; u + 8 <= whole; u += 8) NAME##_columns(p, a, sum, u, 8);                                 \
      for (; u < whole; u++) NAME##_columns(p, a, sum, u, 1);                                         \
    }                                                                                                 \
    for (int64_t done = 0; done < v; done += 8) NAME##_edge(p, a, sum, done, 8, u, units);            \
    if (v < p->count) NAME##_edge(p, a, sum, v, p->count - v, 0, units);                              \
  }

VECTOR(vector_f32, GK_TARGET_AVX2, GK_UNIT_F32, muladd_f32)
VECTOR(vector_widen, GK_TARGET_AVX2, GK_UNIT_WIDEN, muladd_f32)
VECTOR(vector_pair, GK_TARGET_AVX512BF16, GK_UNIT_PAIR, muladd_pair)

void gk_vector(const gk_pack *b, const int32_t *a, float *sum) {
  gk_pack p = *b;
  if (p.unit == GK_UNIT_PAIR) vector_pair(&p, a, sum);
  else if (p.unit == GK_UNIT_WIDEN) vector_widen(&p, a, sum);
  else vector_f32(&p, a, sum);
}
