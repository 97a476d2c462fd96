#ifndef GOFSDP_SIM_CALLS_H
#define GOFSDP_SIM_CALLS_H

#include <stdint.h>
#include "../../table.h"

// call_NAME calls the function NAME of calls_table, and counts.
#define DECLARE(name, symbol, parameters, arguments) CUresult call_##name parameters;
DRIVER(DECLARE)
#undef DECLARE

extern const gofsdp_driver *calls_table;

// How often a function has succeeded, and how often it has not.
typedef struct {
  const char *name;
  long succeeded, refused;
} calls_count;

extern calls_count *const calls_counts; // one a function
extern const int calls_functions;

#endif
