// A cuBLAS for tests: products are made at once, plainly, on the host's memory, which the test's driver
// gives out for the device's. A handle without stream or workspace, or a wrong leading dimension, is refused.
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

int cublasGemmEx(handle_t *handle, int transa, int transb, int m, int n, int k, const float *alpha, const void *a,
                 int atype, int lda, const void *b, int btype, int ldb, const float *beta, void *c, int ctype, int ldc,
                 int compute, int algorithm) {
  if (handle->stream == NULL || handle->workspace == NULL || handle->mode != 16) return 1;
  if (atype != btype || (atype != 0 && atype != 14) || (ctype != 0 && ctype != 14) || algorithm != -1) return 15;
  if (compute != (atype == 0 ? 69 : 68)) return 15;
  if (lda < (transa ? k : m) || ldb < (transb ? n : k) || ldc < m || m < 1 || n < 1 || k < 1) return 7;
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      float sum = 0;
      for (int l = 0; l < k; l++)
        sum += get(a, atype, transa ? l + (size_t)i * lda : i + (size_t)l * lda) *
               get(b, btype, transb ? j + (size_t)l * ldb : l + (size_t)j * ldb);
      size_t at = i + (size_t)j * ldc;
      set(c, ctype, at, *alpha * sum + (*beta == 0 ? 0 : *beta * get(c, ctype, at)));
    }
  return 0;
}
