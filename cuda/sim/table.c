//go:build sim && cgo && linux

// The table of the simulator's own functions. What _cgo_export.h declares has
// Go's types, so the functions are declared here once more, with the driver's.
#include "../table.h"

#define DECLARE(name, symbol, parameters, arguments) CUresult sim_##name parameters;
DRIVER(DECLARE)

#define ENTRY(name, symbol, parameters, arguments) .name = sim_##name,
const gofsdp_driver sim_table = {DRIVER(ENTRY)};
