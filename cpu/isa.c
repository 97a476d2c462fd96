//go:build cgo && amd64

#include "isa.h"

// __builtin_cpu_supports reads CPUID and XGETBV, so it also asks whether the system saves the registers.
int gk_isa_detect(void) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return GK_GENERIC;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return GK_AVX2;
  return __builtin_cpu_supports("avx512bf16") ? GK_AVX512BF16 : GK_AVX512;
}
