#ifndef GOFSDP_SIM_CALLS_BLAS_H
#define GOFSDP_SIM_CALLS_BLAS_H

#include "../../blas.h"
#include "calls.h"

// call_NAME calls the function NAME of calls_blas_table, and counts.
#define DECLARE(name, symbol, parameters, arguments) cublasStatus_t call_##name parameters;
BLAS(DECLARE)
#undef DECLARE

extern const gofsdp_blas *calls_blas_table;
extern calls_count *const calls_blas_counts; // one a function
extern const int calls_blas_functions;

#endif
