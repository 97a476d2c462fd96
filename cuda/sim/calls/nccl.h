#ifndef GOFSDP_SIM_CALLS_NCCL_H
#define GOFSDP_SIM_CALLS_NCCL_H

#include "../../../nccl/table.h"

// call_NAME calls the function NAME of calls_nccl_table, and counts.
#define DECLARE(result, name, parameters, arguments) result call_##name parameters;
NCCL(DECLARE)
#undef DECLARE

extern const gofsdp_nccl *calls_nccl_table;

// How often a function has answered 0 or, as of a pointer, something; and how often it has not.
typedef struct {
  const char *name;
  long succeeded, refused;
} calls_nccl_count;

extern calls_nccl_count *const calls_nccl_counts; // one a function
extern const int calls_nccl_functions;

#endif
