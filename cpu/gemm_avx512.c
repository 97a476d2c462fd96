//go:build cgo && amd64

// AVX-512: a tile of 8×32 is 16 accumulators, which covers two units with a latency of 4 cycles
// (Zen 5) twice over, for 10 loads in 16 multiply-adds.
#include "gemm_parts.h"

#include <immintrin.h>

GK_INLINE GK_TARGET_AVX512 __m512 load_bf16(const void *p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// The conversion instruction would flush denormals; integers round like every other level.
GK_INLINE GK_TARGET_AVX512 void store_bf16(void *p, __m512 v) {
  __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
  __m512i half = _mm512_add_epi32(_mm512_and_si512(high, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(rounded));
}

#define TILE_TABLE gk_tile_avx512
#define TILE_(x) avx512_##x
#define TILE_TARGET GK_TARGET_AVX512
#define ROWS 8
#define VECS 2
#define VEC __m512
#define LANES 16
#define FACTOR __m512
#define LOAD_UNITS(p) _mm512_loadu_ps(p)
#define BROADCAST_UNIT(p) _mm512_set1_ps(gk_load_f32(p))
#define MULADD(c, a, b) _mm512_fmadd_ps(a, b, c)
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define LOAD_BF16(p) load_bf16(p)
#define STORE_BF16(p, v) store_bf16(p, v)
#include "gemm_tile.h"

#define TILE_TABLE gk_tile_avx512bf16
#define TILE_(x) avx512bf16_##x
#define TILE_TARGET GK_TARGET_AVX512BF16
#define ROWS 8
#define VECS 2
#define VEC __m512
#define LANES 16
#define FACTOR __m512i
#define LOAD_UNITS(p) _mm512_loadu_si512(p)
#define BROADCAST_UNIT(p) _mm512_set1_epi32(gk_load_i32(p))
#define MULADD(c, a, b) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define LOAD_BF16(p) load_bf16(p)
#define STORE_BF16(p, v) store_bf16(p, v)
#include "gemm_tile.h"
