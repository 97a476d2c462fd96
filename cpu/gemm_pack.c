//go:build cgo && amd64

// Packing: from rows in memory to the panels that register tiles read in order. AVX2 at every
// level: packing is a few per cent of a product and bound by memory, wider vectors gain nothing.
#include "gemm_parts.h"

#include <immintrin.h>

// How far ahead of its use a line is asked for. Panels are as tall as 32 separate rows, more
// streams than the hardware's prefetcher follows.
enum { AHEAD = 256 };

// element reads one 16-bit or 32-bit element.
GK_INLINE const char *element(const gk_pack *p, int64_t v, int64_t k) {
  const int64_t size = p->unit == GK_UNIT_F32 ? 4 : 2;
  return p->k_contiguous ? p->src + v * p->stride + k * size : p->src + k * p->stride + v * size;
}

// unit_at is unit u of vector v: the plain definition that the vector code below follows.
static uint32_t unit_at(const gk_pack *p, int64_t v, int64_t u) {
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

GK_INLINE char *place(const gk_pack *p, int64_t units, int64_t v, int64_t u) {
  int64_t panel = v / p->width;
  return p->dst + 4 * ((panel * units + u) * p->width + (v - panel * p->width));
}

// put8 stores unit u of vectors v..v+7; v is a multiple of 8.
GK_INLINE GK_TARGET_AVX2 void put8(const gk_pack *p, int64_t units, int64_t v, int64_t u, __m256i x) {
  if (p->width % 8 == 0) {
    _mm256_storeu_si256((__m256i *)place(p, units, v, u), x);
  } else {
    _mm_storeu_si128((__m128i *)place(p, units, v, u), _mm256_castsi256_si128(x));
    _mm_storeu_si128((__m128i *)place(p, units, v + 4, u), _mm256_extracti128_si256(x, 1));
  }
}

GK_INLINE GK_TARGET_AVX2 __m256i load8(const char *from, int unit) {
  if (unit != GK_UNIT_WIDEN) return _mm256_loadu_si256((const __m256i *)from);
  return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
}

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

// Vectors whose units are adjacent: blocks of 8×8 units are transposed. A panel's blocks at one u
// are done together, so that whole lines of it are written.
GK_INLINE GK_TARGET_AVX2 void pack_rows(const gk_pack *p, int64_t units, int64_t v8, int64_t u8, int unit) {
  const int64_t step = unit == GK_UNIT_WIDEN ? 2 : 4, wide = p->width < 8 ? 8 : p->width;
  for (int64_t panel = 0; panel < v8; panel += wide) {
    int64_t end = panel + wide < v8 ? panel + wide : v8;
    for (int64_t u = 0; u < u8; u += 8) {
      for (int64_t v = panel; v < end; v += 8) {
        const char *from = p->src + v * p->stride + u * step;
        __m256i r[8];
        GK_UNROLL for (int i = 0; i < 8; i++) {
          r[i] = load8(from + i * p->stride, unit);
          __builtin_prefetch(from + i * p->stride + AHEAD);
        }
        transpose8(r);
        GK_UNROLL for (int i = 0; i < 8; i++) put8(p, units, v, u + i, r[i]);
      }
    }
  }
}

// Vectors whose units lie a row apart: rows are cut into the panels' widths. The two rows of a pair
// are interleaved.
GK_INLINE GK_TARGET_AVX2 void pack_columns(const gk_pack *p, int64_t units, int64_t v8, int64_t u_full,
                                           int unit) {
  const int64_t rows = unit == GK_UNIT_PAIR ? 2 : 1, size = unit == GK_UNIT_F32 ? 4 : 2;
  for (int64_t u = 0; u < u_full; u++) {
    const char *from = p->src + u * rows * p->stride;
    for (int64_t v = 0; v < v8; v += 8) {
      __m256i x;
      if (unit == GK_UNIT_PAIR) {
        __m128i even = _mm_loadu_si128((const __m128i *)(from + v * size));
        __m128i odd = _mm_loadu_si128((const __m128i *)(from + p->stride + v * size));
        x = _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
      } else {
        x = load8(from + v * size, unit);
      }
      put8(p, units, v, u, x);
    }
  }
}

// Units and vectors at the edges, and the zero vectors that fill the last panel.
static void pack_edges(const gk_pack *p, int64_t units, int64_t v8, int64_t u_done) {
  int64_t padded = (p->count + p->width - 1) / p->width * p->width;
  for (int64_t v = 0; v < padded; v++) {
    for (int64_t u = v < v8 ? u_done : 0; u < units; u++) {
      uint32_t x = v < p->count ? unit_at(p, v, u) : 0;
      memcpy(place(p, units, v, u), &x, 4);
    }
  }
}

#define PACK(NAME, UNIT, WIDTH)                                                                 \
  GK_TARGET_AVX2 static void NAME(const gk_pack *args) {                                        \
    gk_pack known = *args;                                                                      \
    known.unit = UNIT, known.width = WIDTH;                                                     \
    const gk_pack *p = &known;                                                                  \
    int64_t units = UNIT == GK_UNIT_PAIR ? (p->k + 1) / 2 : p->k, v8 = p->count / 8 * 8;        \
    int64_t whole = UNIT == GK_UNIT_PAIR ? p->k / 2 : p->k, u8 = whole / 8 * 8;                 \
    if (p->k_contiguous) pack_rows(p, units, v8, u8, UNIT);                                     \
    else pack_columns(p, units, v8, whole, UNIT);                                               \
    pack_edges(p, units, v8, p->k_contiguous ? u8 : whole);                                     \
  }
PACK(pack_f32_4, GK_UNIT_F32, 4)
PACK(pack_f32_8, GK_UNIT_F32, 8)
PACK(pack_f32_24, GK_UNIT_F32, 24)
PACK(pack_f32_32, GK_UNIT_F32, 32)
PACK(pack_widen_4, GK_UNIT_WIDEN, 4)
PACK(pack_widen_8, GK_UNIT_WIDEN, 8)
PACK(pack_widen_24, GK_UNIT_WIDEN, 24)
PACK(pack_widen_32, GK_UNIT_WIDEN, 32)
PACK(pack_pair_8, GK_UNIT_PAIR, 8)
PACK(pack_pair_32, GK_UNIT_PAIR, 32)

void gk_pack_avx2(const gk_pack *p) {
  static void (*const table[3][4])(const gk_pack *) = {
      [GK_UNIT_F32] = {pack_f32_4, pack_f32_8, pack_f32_24, pack_f32_32},
      [GK_UNIT_WIDEN] = {pack_widen_4, pack_widen_8, pack_widen_24, pack_widen_32},
      [GK_UNIT_PAIR] = {NULL, pack_pair_8, NULL, pack_pair_32},
  };
  int column = p->width == 4 ? 0 : p->width == 8 ? 1 : p->width == 24 ? 2 : 3;
  table[p->unit][column](p);
}
