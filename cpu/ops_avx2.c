//go:build cgo && amd64

// The operations with AVX2 and FMA.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("O2,fp-contract=off")
#pragma GCC target("avx2,fma")
#endif
#define GK_LEVEL 1
#define GK_TASKS gk_tasks_avx2
#include "level.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
