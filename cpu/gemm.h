// Matrix products for the forward pass and both gradients, in fp32 and bf16.
#ifndef GK_GEMM_H
#define GK_GEMM_H

#include "kernels.h"

// C[m,n] = op(A)·op(B) (+ bias[n] | + C), row-major and contiguous, no alignment needed:
//   trans_a = 0: A is [m,k]; 1: A is [k,m].  trans_b = 0: B is [k,n]; 1: B is [n,k].
// So a linear layer's forward is trans_b, its input gradient is neither, its weight gradient is trans_a.
// dtype_a and dtype_b are equal; C is fp32, or bf16 if A is. The bias has A's dtype. Bias and
// accumulate exclude each other. Where accumulate is 0, C is not read. C overlaps no operand.
//
// Numbers. In fp32 each element is one chain in increasing k, c = fma(a[k], b[k], c), that starts
// from the old C, the bias, or 0: the same bits at every level, thread count and block size.
// With bf16 operands the chain is kept in fp32 and rounded once, to nearest even, where it ends.
// Level avx512bf16 takes k in pairs by the dot-product instruction,
// c = fma(a[k], b[k], fma(a[k+1], b[k+1], c)) with an odd k padded by zeros and denormals read and
// written as zero; below it operands are widened exactly and the fp32 chain is used. So bf16
// products have the same bits for any thread count and block size, but not on both sides of that level.
typedef struct gk_matmul_args {
  const void *a, *b, *bias; // bias may be NULL
  void *c;
  int64_t m, n, k;
  int trans_a, trans_b, accumulate;
  int dtype_a, dtype_b, dtype_c; // enum gk_dtype
} gk_matmul_args;

// gk_matmul blocks until C is written. It needs GK_MATMUL_SCRATCH bytes of scratch a thread.
void gk_matmul(gk_ctx *ctx, const gk_matmul_args *args);

#define GK_MATMUL_SCRATCH (13 << 20)

#endif
