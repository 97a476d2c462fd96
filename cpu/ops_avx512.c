//go:build cgo && amd64

// The operations with AVX-512. What has the bf16 dot product uses them too, but for attention in bf16.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("O2,fp-contract=off")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif
#define GK_LEVEL 2
#define GK_TASKS gk_tasks_avx512
#include "level.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
