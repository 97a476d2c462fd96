// The slots of libcuda.a (libcuda.sh), and what fills them.
#ifndef GOFSDP_WITNESS_SLOTS_H
#define GOFSDP_WITNESS_SLOTS_H

#include "../table.h"

extern void *cu_slots[];
extern const char *const cu_names[];
extern const int cu_count, cu_missed; // of functions; of the last one that was called while its slot was empty

// Fills slots from a table, and with what the binding calls and a table has not. Of the table's functions
// that have no slot it returns the first one's name, NULL where there is none.
const char *witness_simulate(const gofsdp_driver *table);

// Fills slots from a library that dlopen has opened. It returns how many.
int witness_open(void *library);

#endif
