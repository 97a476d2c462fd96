// What all kernels of this package share: the context, levels, bf16, and compiler differences.
#ifndef GK_KERNELS_H
#define GK_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "isa.h"
#include "pool.h"

// gk_ctx is what every operation runs with. It belongs to one stream.
typedef struct gk_ctx {
  gk_pool *pool;
  int isa; // enum gk_isa, at most gk_isa_detect()
} gk_ctx;

enum gk_dtype { GK_F32 = 0, GK_BF16 = 1 };

// cgo refuses -mfma and the like, so each function names its target; helpers are inlined into
// functions of the same target.
#define GK_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define GK_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define GK_TARGET_AVX512BF16 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))
#define GK_INLINE static inline __attribute__((always_inline, unused))

// GK_UNROLL before a loop of constant length unrolls it completely, at -O2 too, so that an array
// of vectors becomes registers.
#ifdef __clang__
#define GK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GK_UNROLL _Pragma("GCC unroll 32")
#endif

// Loads that need no alignment and no declared type.
GK_INLINE float gk_load_f32(const void *p) {
  float x;
  memcpy(&x, p, sizeof x);
  return x;
}

GK_INLINE int32_t gk_load_i32(const void *p) {
  int32_t x;
  memcpy(&x, p, sizeof x);
  return x;
}

// bf16 is the upper half of a float.
typedef uint16_t gk_bf16;

GK_INLINE float gk_bf16_to_f32(gk_bf16 x) {
  uint32_t bits = (uint32_t)x << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

// gk_bf16_from_f32 rounds to nearest, ties to even; a NaN stays one and becomes quiet.
GK_INLINE gk_bf16 gk_bf16_from_f32(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return (gk_bf16)(bits >> 16 | 0x40);
  return (gk_bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
