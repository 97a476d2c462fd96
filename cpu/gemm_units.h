// Reading units of a matrix, one or eight at a time: what packing and the product of a vector share.
#ifndef GK_GEMM_UNITS_H
#define GK_GEMM_UNITS_H

#include <immintrin.h>

#include "gemm_parts.h"

// element reads one 16-bit or 32-bit element.
GK_INLINE const char *element(const gk_pack *p, int64_t v, int64_t k) {
  const int64_t size = p->unit == GK_UNIT_F32 ? 4 : 2;
  return p->k_contiguous ? p->src + v * p->stride + k * size : p->src + k * p->stride + v * size;
}

// unit_at is unit u of vector v: the plain definition that the vector code below follows.
GK_INLINE uint32_t unit_at(const gk_pack *p, int64_t v, int64_t u) {
  uint32_t whole;
  uint16_t first, second = 0;
  if (p->unit == GK_UNIT_F32) {
    memcpy(&whole, element(p, v, u), 4);
    return whole;
  }
  if (p->unit == GK_UNIT_WIDEN) {
    memcpy(&first, element(p, v, u), 2);
    return (uint32_t)first << 16;
  }
  memcpy(&first, element(p, v, 2 * u), 2);
  if (2 * u + 1 < p->k) memcpy(&second, element(p, v, 2 * u + 1), 2);
  return first | (uint32_t)second << 16;
}

// crowded says that vectors lie a multiple of 4 KiB apart, so that their lines share one set of the
// first-level cache, which holds 8 to 12: then fewer rows are better read side by side.
GK_INLINE int crowded(const gk_pack *p) { return p->stride % 4096 == 0; }

// load8 is 8 units of one vector, adjacent in memory.
GK_INLINE GK_TARGET_AVX2 __m256i load8(const char *from, int unit) {
  if (unit != GK_UNIT_WIDEN) return _mm256_loadu_si256((const __m256i *)from);
  return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
}

// join8 is 8 units at `from` where k is not contiguous and the next row is `stride` bytes on.
GK_INLINE GK_TARGET_AVX2 __m256i join8(const char *from, ptrdiff_t stride, int unit) {
  if (unit != GK_UNIT_PAIR) return load8(from, unit);
  __m128i even = _mm_loadu_si128((const __m128i *)from);
  __m128i odd = _mm_loadu_si128((const __m128i *)(from + stride));
  return _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
}

// transpose8 turns 8 vectors of 8 units into 8 units of 8 vectors.
GK_INLINE GK_TARGET_AVX2 void transpose8(__m256i r[8]) {
  __m256i s[8], t[8];
  GK_UNROLL for (int i = 0; i < 4; i++) {
    s[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  GK_UNROLL for (int i = 0; i < 2; i++) {
    t[4 * i] = _mm256_unpacklo_epi64(s[4 * i], s[4 * i + 2]);
    t[4 * i + 1] = _mm256_unpackhi_epi64(s[4 * i], s[4 * i + 2]);
    t[4 * i + 2] = _mm256_unpacklo_epi64(s[4 * i + 1], s[4 * i + 3]);
    t[4 * i + 3] = _mm256_unpackhi_epi64(s[4 * i + 1], s[4 * i + 3]);
  }
  GK_UNROLL for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2x128_si256(t[i], t[i + 4], 0x20);
    r[i + 4] = _mm256_permute2x128_si256(t[i], t[i + 4], 0x31);
  }
}

#endif
