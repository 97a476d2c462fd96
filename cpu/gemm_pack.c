//go:build cgo && amd64

// Packing: from rows in memory to the panels that register tiles read in order. AVX2 at every
// level: packing is a few per cent of a product and bound by memory, wider vectors gain nothing.
#include "gemm_units.h"

enum {
  // How far ahead of its use a line is asked for, in bytes and in units. Up to 32 rows are read
  // side by side, or short pieces of many rows: the hardware's prefetcher follows neither.
  AHEAD = 256,
  ROWS_AHEAD = 16,
  STRIP = 64, // vectors that are packed together where k is not contiguous
};

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

// Vectors whose units are adjacent: blocks of 8×8 units are transposed. A panel's blocks at one u
// are done together, so that whole lines of it are written.
GK_INLINE GK_TARGET_AVX2 void pack_rows(const gk_pack *p, int64_t units, int64_t v8, int64_t u8, int unit) {
  const int64_t step = unit == GK_UNIT_WIDEN ? 2 : 4;
  const int64_t wide = p->width < 8 ? 8 : p->width == 32 && crowded(p) ? 16 : p->width;
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

// Vectors whose units lie a row apart: rows are cut into the panels' widths, a few lines of a row at
// a time. Panels are often a power of two apart, so writing many of them at once would crowd one
// set of the first-level cache. The two rows of a pair are interleaved.
GK_INLINE GK_TARGET_AVX2 void pack_columns(const gk_pack *p, int64_t units, int64_t v8, int64_t whole,
                                           int unit) {
  const int64_t rows = unit == GK_UNIT_PAIR ? 2 : 1, size = unit == GK_UNIT_F32 ? 4 : 2;
  for (int64_t strip = 0; strip < v8; strip += STRIP) {
    int64_t end = strip + STRIP < v8 ? strip + STRIP : v8;
    for (int64_t u = 0; u < whole; u++) {
      const char *from = p->src + u * rows * p->stride;
      for (int64_t v = strip; v < end; v += 8) {
        for (int64_t r = 0; r < rows && (v - strip) % 16 == 0; r++)
          __builtin_prefetch(from + (ROWS_AHEAD * rows + r) * p->stride + v * size);
        put8(p, units, v, u, join8(from + v * size, p->stride, unit));
      }
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
