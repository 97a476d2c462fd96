//go:build sim && cgo && linux

#include "blas.h"

const gofsdp_blas *calls_blas_table;

#define INDEX(name, symbol, parameters, arguments) index_##name,
enum { BLAS(INDEX) functions };

#define COUNT(name, symbol, parameters, arguments) {#name, 0, 0},
static calls_count counts[] = {BLAS(COUNT)};

calls_count *const calls_blas_counts = counts;
const int calls_blas_functions = functions;

static cublasStatus_t note(int index, cublasStatus_t status) {
  __atomic_fetch_add(status == 0 ? &counts[index].succeeded : &counts[index].refused, 1, __ATOMIC_RELAXED);
  return status;
}

#define CALL(name, symbol, parameters, arguments)                                                                      \
  cublasStatus_t call_##name parameters { return note(index_##name, calls_blas_table->name arguments); }
BLAS(CALL)
