//go:build cgo && amd64

// The operations with AVX-512 and the instructions for bf16.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma"))), apply_to = function)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("O2,fp-contract=off")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#endif
#define GK_LEVEL 2
#define GK_CONVERTS
#define GK_TASKS gk_tasks_avx512bf16
#include "level.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
