//go:build sim && cgo && linux

// The table of the simulator's NCCL, as table.c is the driver's.
#include "../../nccl/table.h"

#define DECLARE(result, name, parameters, arguments) result sim_##name parameters;
NCCL(DECLARE)

#define ENTRY(result, name, parameters, arguments) .name = sim_##name,
const gofsdp_nccl sim_nccl = {NCCL(ENTRY)};

char sim_nccl_last[1024];
