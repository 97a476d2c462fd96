//go:build sim && cgo && linux

// The tables of the simulator's own functions. What _cgo_export.h declares has
// Go's types, so the functions are declared here once more, with NVIDIA's.
#include "../blas.h"
#include "../table.h"

#define DECLARE(name, symbol, parameters, arguments) CUresult sim_##name parameters;
DRIVER(DECLARE)

#define DECLARE_BLAS(name, symbol, parameters, arguments) cublasStatus_t sim_##name parameters;
BLAS(DECLARE_BLAS)

#define ENTRY(name, symbol, parameters, arguments) .name = sim_##name,
const gofsdp_driver sim_table = {DRIVER(ENTRY)};
const gofsdp_blas sim_blas_table = {BLAS(ENTRY)};
