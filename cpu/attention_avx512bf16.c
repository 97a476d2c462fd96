//go:build cgo && amd64

// Attention in bf16 with the dot-product instruction.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma"))), apply_to = function)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("O2,fp-contract=off")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#endif
#define GK_LEVEL 2
#include "vec.h"

#include "attention_pairs.h"
#include "attention_pairs_forward.h"
#include "attention_pairs_backward.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
