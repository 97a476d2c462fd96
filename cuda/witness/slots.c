//go:build cu && cgo && linux && amd64

#define _GNU_SOURCE
#include "slots.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static const gofsdp_driver *simulated;

// As the driver API's reference has them beside those of the table.
static CUresult load_data(CUmodule *module, const void *image) {
  return simulated->cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

static CUresult create_stream(CUstream *stream, unsigned flags) {
  return simulated->cuStreamCreateWithPriority(stream, flags, 0);
}

// Empties all slots: of another driver none may stay.
static void clear(void) {
  static void **empty;
  size_t bytes = cu_count * sizeof *cu_slots;
  if (empty != NULL) {
    memcpy(cu_slots, empty, bytes);
  } else if ((empty = malloc(bytes)) != NULL) {
    memcpy(empty, cu_slots, bytes);
  } else {
    abort();
  }
}

static int fill(const char *name, void *function) {
  for (int i = 0; i < cu_count; i++)
    if (strcmp(cu_names[i], name) == 0) {
      cu_slots[i] = function;
      return 1;
    }
  return 0;
}

const char *witness_simulate(const gofsdp_driver *table) {
  simulated = table;
  clear();
#define ENTRY(name, symbol, parameters, arguments)                                                                     \
  if (!fill(symbol, (void *)table->name)) return symbol;
  DRIVER(ENTRY)
#undef ENTRY
  if (!fill("cuModuleLoadData", (void *)load_data)) return "cuModuleLoadData";
  if (!fill("cuStreamCreate", (void *)create_stream)) return "cuStreamCreate";
  return NULL;
}

int witness_open(void *library) {
  int filled = 0;
  clear();
  for (int i = 0; i < cu_count; i++) {
    void *function = dlsym(library, cu_names[i]);
    if (function == NULL) continue;
    cu_slots[i] = function;
    filled++;
  }
  return filled;
}
