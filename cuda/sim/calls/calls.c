//go:build sim && cgo && linux

#include "calls.h"

const gofsdp_driver *calls_table;

#define INDEX(name, symbol, parameters, arguments) index_##name,
enum { DRIVER(INDEX) functions };

#define COUNT(name, symbol, parameters, arguments) {#name, 0, 0},
static calls_count counts[] = {DRIVER(COUNT)};

calls_count *const calls_counts = counts;
const int calls_functions = functions;

static CUresult note(int index, CUresult result) {
  __atomic_fetch_add(result == 0 ? &counts[index].succeeded : &counts[index].refused, 1, __ATOMIC_RELAXED);
  return result;
}

#define CALL(name, symbol, parameters, arguments)                                                                      \
  CUresult call_##name parameters { return note(index_##name, calls_table->name arguments); }
DRIVER(CALL)
