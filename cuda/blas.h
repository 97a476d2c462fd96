// Functions of cuBLAS and cuBLASLt that gofsdp calls, as a table of pointers, like the driver's in table.h. Types and
// signatures as the reference of CUDA 12 and 13 has them. libcublas needs libcublasLt, so all are found through it.
#ifndef GOFSDP_CUDA_BLAS_H
#define GOFSDP_CUDA_BLAS_H

#include <stdint.h>

#include "table.h"

typedef int cublasStatus_t; // 0: CUBLAS_STATUS_SUCCESS
typedef void *cublasHandle_t;

// Those of cublasLt.h. A cublasHandle_t serves as a cublasLtHandle_t, says the reference, "with a simple cast".
typedef cublasHandle_t cublasLtHandle_t;
typedef void *cublasLtMatmulDesc_t;
typedef void *cublasLtMatrixLayout_t;
typedef void *cublasLtMatmulPreference_t;
typedef struct {
  uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
} cublasLtMatmulHeuristicResult_t;

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
    (handle, transa, transb, m, n, k, alpha, a, atype, lda, b, btype, ldb, beta, c, ctype, ldc, compute, algorithm))   \
  F(cublasLtMatmulDescCreate, "cublasLtMatmulDescCreate", (cublasLtMatmulDesc_t * operation, int compute, int scale),  \
    (operation, compute, scale))                                                                                       \
  F(cublasLtMatmulDescDestroy, "cublasLtMatmulDescDestroy", (cublasLtMatmulDesc_t operation), (operation))             \
  F(cublasLtMatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute",                                                  \
    (cublasLtMatmulDesc_t operation, int attribute, const void *value, size_t bytes),                                  \
    (operation, attribute, value, bytes))                                                                              \
  F(cublasLtMatrixLayoutCreate, "cublasLtMatrixLayoutCreate",                                                          \
    (cublasLtMatrixLayout_t * layout, int type, uint64_t rows, uint64_t columns, int64_t ld),                          \
    (layout, type, rows, columns, ld))                                                                                 \
  F(cublasLtMatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy", (cublasLtMatrixLayout_t layout), (layout))             \
  F(cublasLtMatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate", (cublasLtMatmulPreference_t * preference),       \
    (preference))                                                                                                      \
  F(cublasLtMatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy", (cublasLtMatmulPreference_t preference),       \
    (preference))                                                                                                      \
  F(cublasLtMatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute",                                      \
    (cublasLtMatmulPreference_t preference, int attribute, const void *value, size_t bytes),                           \
    (preference, attribute, value, bytes))                                                                             \
  F(cublasLtMatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic",                                                  \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,      \
     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,            \
     cublasLtMatmulHeuristicResult_t * results, int *found),                                                           \
    (handle, operation, a, b, c, d, preference, wanted, results, found))                                               \
  F(cublasLtMatmul, "cublasLtMatmul",                                                                                  \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,                        \
     cublasLtMatrixLayout_t alayout, const void *b, cublasLtMatrixLayout_t blayout, const void *beta, const void *c,   \
     cublasLtMatrixLayout_t clayout, void *d, cublasLtMatrixLayout_t dlayout, const cublasLtMatmulAlgo_t *algorithm,   \
     void *workspace, size_t bytes, CUstream stream),                                                                  \
    (handle, operation, alpha, a, alayout, b, blayout, beta, c, clayout, d, dlayout, algorithm, workspace, bytes,      \
     stream))

#define BLAS_FIELD(name, symbol, parameters, arguments) cublasStatus_t(*name) parameters;

// gofsdp_blas is what products are called through; every entry is there.
typedef struct {
  BLAS(BLAS_FIELD)
} gofsdp_blas;

#undef BLAS_FIELD

// A product, ready to be made any number of times: C = op(A)·op(B) + beta·C, all by columns. A bias, an element for
// each row, is added to every column: lt.h makes such products.
typedef struct {
  int transa, transb, m, n, k, lda, ldb, ldc, type, ctype, compute;
  CUdeviceptr a, b, c, bias;
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
