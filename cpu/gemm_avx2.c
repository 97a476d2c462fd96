//go:build cgo && amd64

// AVX2: a tile of 4×24 is 12 accumulators, 3 vectors of B and one broadcast: all 16 registers.
#include "gemm_parts.h"

#include <immintrin.h>

GK_INLINE GK_TARGET_AVX2 __m256 load_bf16(const void *p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

GK_INLINE GK_TARGET_AVX2 void store_bf16(void *p, __m256 v) {
  __m256i bits = _mm256_castps_si256(v), high = _mm256_srli_epi32(bits, 16);
  __m256i half = _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  rounded = _mm256_blendv_epi8(rounded, quiet, nan);
  rounded = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
  _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(rounded));
}

#define TILE_TABLE gk_tile_avx2
#define TILE_(x) avx2_##x
#define TILE_TARGET GK_TARGET_AVX2
#define ROWS 4
#define VECS 3
#define VEC __m256
#define LANES 8
#define FACTOR __m256
#define LOAD_UNITS(p) _mm256_loadu_ps((const float *)(p))
#define BROADCAST_UNIT(p) _mm256_set1_ps(gk_load_f32(p))
#define MULADD(c, a, b) _mm256_fmadd_ps(a, b, c)
#define LOAD(p) _mm256_loadu_ps((const float *)(p))
#define STORE(p, v) _mm256_storeu_ps((float *)(p), v)
#define LOAD_BF16(p) load_bf16(p)
#define STORE_BF16(p, v) store_bf16(p, v)
#include "gemm_tile.h"
