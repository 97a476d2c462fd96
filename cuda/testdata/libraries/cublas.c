// A cuBLAS for tests: products are made at once, plainly, on the host's memory, which the test's driver
// gives out for the device's. A handle without stream or workspace, or a wrong leading dimension, is refused.
// cuBLASLt's part has an algorithm for matrices at multiples of 16 bytes.
// With -DFAIL="NAME" the function of that name runs out of memory.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  void *stream, *workspace;
  int mode;
} handle_t;

int cublasGetProperty(int part, int *number) {
  *number = part == 0 ? 13 : part;
  return 0;
}
int cublasCreate_v2(handle_t **handle) {
  *handle = calloc(1, sizeof **handle);
  return 0;
}
int cublasDestroy_v2(handle_t *handle) {
  free(handle);
  return handle == NULL ? 7 : 0;
}
int cublasSetStream_v2(handle_t *handle, void *stream) {
  handle->stream = stream;
  handle->workspace = NULL; // as the real one does
  return 0;
}
int cublasSetWorkspace_v2(handle_t *handle, void *workspace, size_t bytes) {
  handle->workspace = workspace;
  return (uintptr_t)workspace % 256 != 0 || bytes < 4 << 20 ? 7 : 0;
}
int cublasSetMathMode(handle_t *handle, int mode) {
  handle->mode = mode;
  return 0;
}

static float get(const void *at, int type, size_t i) {
  if (type == 0) return ((const float *)at)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static void set(void *at, int type, size_t i, float x) {
  if (type == 0) {
    ((float *)at)[i] = x;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  ((uint16_t *)at)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// multiply makes a product, with a bias where there is one.
static int multiply(handle_t *handle, int transa, int transb, int m, int n, int k, float alpha, const void *a,
                    int type, int lda, const void *b, int ldb, float beta, void *c, int ctype, int ldc, int compute,
                    const void *bias) {
  if (handle->stream == NULL || handle->workspace == NULL || handle->mode != 16) return 1;
  if ((type != 0 && type != 14) || (ctype != 0 && ctype != 14) || compute != (type == 0 ? 69 : 68)) return 15;
  if (lda < (transa ? k : m) || ldb < (transb ? n : k) || ldc < m || m < 1 || n < 1 || k < 1) return 7;
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      float sum = 0;
      for (int l = 0; l < k; l++)
        sum += get(a, type, transa ? l + (size_t)i * lda : i + (size_t)l * lda) *
               get(b, type, transb ? j + (size_t)l * ldb : l + (size_t)j * ldb);
      size_t at = i + (size_t)j * ldc;
      sum = alpha * sum + (beta == 0 ? 0 : beta * get(c, ctype, at));
      set(c, ctype, at, bias == NULL ? sum : sum + get(bias, ctype, i));
    }
  return 0;
}

int cublasGemmEx(handle_t *handle, int transa, int transb, int m, int n, int k, const float *alpha, const void *a,
                 int atype, int lda, const void *b, int btype, int ldb, const float *beta, void *c, int ctype, int ldc,
                 int compute, int algorithm) {
  if (atype != btype || algorithm != -1) return 15;
  return multiply(handle, transa, transb, m, n, k, *alpha, a, atype, lda, b, ldb, *beta, c, ctype, ldc, compute, NULL);
}

#ifndef FAIL
#define FAIL ""
#endif
#define FAILS(name) \
  if (strcmp(FAIL, name) == 0) return 3

typedef struct {
  int compute, trans[2], epilogue;
  const void *bias;
} operation_t;
typedef struct {
  int type, rows, columns, ld;
} layout_t;
typedef struct {
  size_t workspace;
  int schemes, alignments[4];
} preference_t;
typedef struct {
  size_t algorithm[8], workspace;
  int state;
} result_t;

static int live; // objects

// make returns an object, of which there are never more than those of a few products.
static int make(void *to, size_t size) {
  if (live == 64) return 3;
  live++;
  *(void **)to = calloc(1, size);
  return 0;
}

static int drop(void *object) {
  if (object != NULL) live--;
  free(object);
  return 0;
}

static int keep(void *to, size_t size, const void *value, size_t bytes) {
  if (value == NULL || size != bytes) return 7;
  memcpy(to, value, size);
  return 0;
}

int cublasLtMatmulDescCreate(operation_t **o, int compute, int scale) {
  FAILS("cublasLtMatmulDescCreate");
  if (scale != 0) return 15;
  int status = make(o, sizeof **o);
  if (status == 0) (*o)->compute = compute;
  return status;
}
int cublasLtMatmulDescDestroy(operation_t *o) { return drop(o); }
int cublasLtMatmulDescSetAttribute(operation_t *o, int attribute, const void *value, size_t bytes) {
  FAILS("cublasLtMatmulDescSetAttribute");
  switch (attribute) {
    case 3:
    case 4:
      return keep(&o->trans[attribute - 3], sizeof(int), value, bytes);
    case 7:
      return keep(&o->epilogue, sizeof(int), value, bytes);
    case 8:
      return keep(&o->bias, sizeof o->bias, value, bytes);
  }
  return 7;
}

int cublasLtMatrixLayoutCreate(layout_t **l, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  FAILS("cublasLtMatrixLayoutCreate");
  int status = make(l, sizeof **l);
  if (status == 0) **l = (layout_t){type, rows, columns, ld};
  return status;
}
int cublasLtMatrixLayoutDestroy(layout_t *l) { return drop(l); }

int cublasLtMatmulPreferenceCreate(preference_t **p) {
  FAILS("cublasLtMatmulPreferenceCreate");
  return make(p, sizeof **p);
}
int cublasLtMatmulPreferenceDestroy(preference_t *p) {
  drop(p);
  FAILS("cublasLtMatmulPreferenceDestroy");
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(preference_t *p, int attribute, const void *value, size_t bytes) {
  FAILS("cublasLtMatmulPreferenceSetAttribute");
  if (attribute == 1) return keep(&p->workspace, sizeof p->workspace, value, bytes);
  if (attribute == 3) return keep(&p->schemes, sizeof p->schemes, value, bytes);
  return attribute < 5 || attribute > 8 ? 7 : keep(&p->alignments[attribute - 5], sizeof(int), value, bytes);
}

int cublasLtMatmulAlgoGetHeuristic(handle_t *handle, operation_t *o, layout_t *a, layout_t *b, layout_t *c, layout_t *d,
                                   preference_t *p, int wanted, result_t *results, int *found) {
  FAILS("cublasLtMatmulAlgoGetHeuristic");
  if (handle == NULL) return 1;
  if (wanted < 1 || c != d || o->epilogue != 4 || p->schemes != 2 || p->workspace < 4 << 20) return 7;
  for (int i = 0; i < 4; i++)
    if (p->alignments[i] % 16 != 0 || (uintptr_t)o->bias % 16 != 0) return 15; // and *found is as it was
  *results = (result_t){.algorithm = {(size_t)a->rows << 32 | b->columns}};
  *found = 1;
  return 0;
}

int cublasLtMatmul(handle_t *handle, operation_t *o, const float *alpha, const void *a, layout_t *la, const void *b,
                   layout_t *lb, const float *beta, const void *c, layout_t *lc, void *d, layout_t *ld,
                   const size_t *algorithm, void *workspace, size_t bytes, void *stream) {
  FAILS("cublasLtMatmul");
  if (*algorithm != ((size_t)la->rows << 32 | lb->columns) || c != d || lc != ld) return 7;
  if (workspace != handle->workspace || bytes < 4 << 20 || stream != handle->stream || *beta != 0) return 7;
  if (la->type != lb->type || la->type != lc->type || o->bias == NULL) return 15;
  return multiply(handle, o->trans[0], o->trans[1], lc->rows, lc->columns, o->trans[0] ? la->rows : la->columns, *alpha,
                  a, la->type, la->ld, b, lb->ld, *beta, d, lc->type, lc->ld, o->compute, o->bias);
}
