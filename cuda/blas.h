// cuBLAS's functions that gofsdp calls, as a table of pointers, like the driver's in table.h. Types and
// signatures as cuBLAS's reference of CUDA 12 and 13 has them.
#ifndef GOFSDP_CUDA_BLAS_H
#define GOFSDP_CUDA_BLAS_H

#include "table.h"

typedef int cublasStatus_t; // 0: CUBLAS_STATUS_SUCCESS
typedef void *cublasHandle_t;

#define BLAS(F)                                                                                                        \
  F(cublasCreate, "cublasCreate_v2", (cublasHandle_t * handle), (handle))                                              \
  F(cublasDestroy, "cublasDestroy_v2", (cublasHandle_t handle), (handle))                                              \
  F(cublasSetStream, "cublasSetStream_v2", (cublasHandle_t handle, CUstream stream), (handle, stream))                 \
  F(cublasSetWorkspace, "cublasSetWorkspace_v2", (cublasHandle_t handle, void *workspace, size_t bytes),               \
    (handle, workspace, bytes))                                                                                        \
  F(cublasSetMathMode, "cublasSetMathMode", (cublasHandle_t handle, int mode), (handle, mode))                         \
  F(cublasGemmEx, "cublasGemmEx",                                                                                      \
    (cublasHandle_t handle, int transa, int transb, int m, int n, int k, const void *alpha, const void *a, int atype,  \
     int lda, const void *b, int btype, int ldb, const void *beta, void *c, int ctype, int ldc, int compute,           \
     int algorithm),                                                                                                   \
    (handle, transa, transb, m, n, k, alpha, a, atype, lda, b, btype, ldb, beta, c, ctype, ldc, compute, algorithm))

#define BLAS_FIELD(name, symbol, parameters, arguments) cublasStatus_t(*name) parameters;

// gofsdp_blas is what products are called through; every entry is there.
typedef struct {
  BLAS(BLAS_FIELD)
} gofsdp_blas;

#undef BLAS_FIELD

// A product, ready to be made any number of times: C = op(A)·op(B) + beta·C, all by columns.
typedef struct {
  int transa, transb, m, n, k, lda, ldb, ldc, type, ctype, compute;
  CUdeviceptr a, b, c;
  float beta;
} gofsdp_product;

static inline cublasStatus_t gofsdp_multiply(const gofsdp_blas *blas, cublasHandle_t handle, const gofsdp_product *p) {
  const float one = 1;
  return blas->cublasGemmEx(handle, p->transa, p->transb, p->m, p->n, p->k, &one, (const void *)(size_t)p->a, p->type,
                            p->lda, (const void *)(size_t)p->b, p->type, p->ldb, &p->beta, (void *)(size_t)p->c,
                            p->ctype, p->ldc, p->compute, -1 /* the default algorithm */);
}

// Makes a handle for a stream, with a workspace of its own: two streams may not share one, and a stream's
// sums have one order only while the workspace is given. (SetStream takes the workspace away, so it is first.)
static inline cublasStatus_t gofsdp_blas_open(const gofsdp_blas *blas, cublasHandle_t *handle, CUstream stream,
                                              CUdeviceptr workspace, size_t bytes) {
  enum { DISALLOW_REDUCED_PRECISION_REDUCTION = 16 }; // cublasMath_t: parts of a sum are added in fp32
  cublasStatus_t s = blas->cublasCreate(handle);
  if (s == 0) s = blas->cublasSetStream(*handle, stream);
  if (s == 0) s = blas->cublasSetWorkspace(*handle, (void *)(size_t)workspace, bytes);
  if (s == 0) s = blas->cublasSetMathMode(*handle, DISALLOW_REDUCED_PRECISION_REDUCTION);
  return s;
}

static inline cublasStatus_t gofsdp_blas_close(const gofsdp_blas *blas, cublasHandle_t handle) {
  return blas->cublasDestroy(handle);
}

#endif
