// Products with a bias, through cuBLASLt. Numbers are those of cublasLt.h of cuBLAS 13.1, which that of CUDA 12 has
// as well.
#ifndef GOFSDP_CUDA_LT_H
#define GOFSDP_CUDA_LT_H

#include "blas.h"

// What cuBLASLt is told of a product, beside where the matrices are, and the algorithm that it is made with.
typedef struct {
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
} gofsdp_biased;

// Makes a call where none has failed, and notes the one that does.
#define LT(function, ...)                                                                                              \
  if (s == 0 && (s = blas->function(__VA_ARGS__)) != 0) *call = #function

// Describes a product. Also of one that cannot be described, gofsdp_forget gives back what there is.
static inline cublasStatus_t gofsdp_describe(const gofsdp_blas *blas, const gofsdp_product *p, gofsdp_biased *d,
                                             const char **call) {
  enum { TRANSA = 3, TRANSB = 4, EPILOGUE = 7, BIAS_POINTER = 8 }; // cublasLtMatmulDescAttributes_t
  const int32_t transa = p->transa, transb = p->transb;
  const uint32_t bias = 4; // CUBLASLT_EPILOGUE_BIAS, of elements of C's type
  const void *at = (const void *)(size_t)p->bias;
  cublasStatus_t s = 0;
  LT(cublasLtMatmulDescCreate, &d->operation, p->compute, 0 /* alpha and beta in fp32: CUDA_R_32F */);
  LT(cublasLtMatmulDescSetAttribute, d->operation, TRANSA, &transa, sizeof transa);
  LT(cublasLtMatmulDescSetAttribute, d->operation, TRANSB, &transb, sizeof transb);
  LT(cublasLtMatmulDescSetAttribute, d->operation, EPILOGUE, &bias, sizeof bias);
  LT(cublasLtMatmulDescSetAttribute, d->operation, BIAS_POINTER, &at, sizeof at);
  LT(cublasLtMatrixLayoutCreate, &d->a, p->type, p->transa ? p->k : p->m, p->transa ? p->m : p->k, p->lda);
  LT(cublasLtMatrixLayoutCreate, &d->b, p->type, p->transb ? p->n : p->k, p->transb ? p->k : p->n, p->ldb);
  LT(cublasLtMatrixLayoutCreate, &d->c, p->ctype, p->m, p->n, p->ldc);
  return s;
}

// How an address is aligned: to 16 bytes, which is the most that an access of a kernel's takes, or fewer. More is not
// told to cuBLASLt, so that its choice, and with it the bits of a sum, are the same wherever a plan has its buffers.
static inline uint32_t gofsdp_alignment(CUdeviceptr at) {
  return at % 16 == 0 ? 16 : (uint32_t)(at & -at);
}

// Asks for the algorithm of a product that has been described; *found is 0 where there is none.
//
// Where a sum over K is split, its parts may only be added up in fp32, in a step of their own: their order is fixed
// then and one rounding the last thing that is done. The other ways would round the parts to C's type on the way.
static inline cublasStatus_t gofsdp_choose(const gofsdp_blas *blas, cublasHandle_t handle, const gofsdp_product *p,
                                           gofsdp_biased *d, size_t workspace, int *found, const char **call) {
  enum { MAX_WORKSPACE_BYTES = 1, REDUCTION_SCHEME_MASK = 3, MIN_ALIGNMENT_A_BYTES = 5 }; // ..MatmulPreferenceAttributes_t
  enum { NOT_SUPPORTED = 15 };                                                            // cublasStatus_t
  const uint64_t most = workspace;
  const uint32_t computeType = 2; // cublasLtReductionScheme_t; none, 0, is always allowed
  const uint32_t alignments[] = {gofsdp_alignment(p->a), gofsdp_alignment(p->b), gofsdp_alignment(p->c),
                                 gofsdp_alignment(p->c)}; // of A, B, C and D
  cublasLtMatmulPreference_t preference = NULL;
  cublasLtMatmulHeuristicResult_t best = {0};
  cublasStatus_t s = 0;
  *found = 0;
  LT(cublasLtMatmulPreferenceCreate, &preference);
  LT(cublasLtMatmulPreferenceSetAttribute, preference, MAX_WORKSPACE_BYTES, &most, sizeof most);
  LT(cublasLtMatmulPreferenceSetAttribute, preference, REDUCTION_SCHEME_MASK, &computeType, sizeof computeType);
  for (int i = 0; i < 4; i++)
    LT(cublasLtMatmulPreferenceSetAttribute, preference, MIN_ALIGNMENT_A_BYTES + i, &alignments[i], sizeof(uint32_t));
  if (s == 0) {
    LT(cublasLtMatmulAlgoGetHeuristic, handle, d->operation, d->a, d->b, d->c, d->c, preference, 1, &best, found);
    if (s == NOT_SUPPORTED) s = *found = 0;
    if (best.state != 0) *found = 0;
  }
  if (preference != NULL) {
    cublasStatus_t gone = blas->cublasLtMatmulPreferenceDestroy(preference);
    if (s == 0 && (s = gone) != 0) *call = "cublasLtMatmulPreferenceDestroy";
  }
  d->algorithm = best.algo;
  return s;
}

static inline cublasStatus_t gofsdp_multiply_biased(const gofsdp_blas *blas, cublasHandle_t handle,
                                                    const gofsdp_product *p, const gofsdp_biased *d,
                                                    CUdeviceptr workspace, size_t bytes, CUstream stream) {
  const float one = 1, zero = 0;
  void *c = (void *)(size_t)p->c;
  return blas->cublasLtMatmul(handle, d->operation, &one, (const void *)(size_t)p->a, d->a,
                              (const void *)(size_t)p->b, d->b, &zero, c, d->c, c, d->c, &d->algorithm,
                              (void *)(size_t)workspace, bytes, stream);
}

// Gives back what a description is made of. It is memory of the host's: nothing is waited for, and to fail there is
// no reason.
static inline void gofsdp_forget(const gofsdp_blas *blas, gofsdp_biased *d) {
  if (d->operation != NULL) blas->cublasLtMatmulDescDestroy(d->operation);
  if (d->a != NULL) blas->cublasLtMatrixLayoutDestroy(d->a);
  if (d->b != NULL) blas->cublasLtMatrixLayoutDestroy(d->b);
  if (d->c != NULL) blas->cublasLtMatrixLayoutDestroy(d->c);
}

#undef LT

#endif
