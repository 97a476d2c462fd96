// One function for each of the driver's, which calls it through a table: Go cannot call C's pointers.
#ifndef GOFSDP_CUDA_CALL_H
#define GOFSDP_CUDA_CALL_H

#include "table.h"

#define ALSO(...) , ##__VA_ARGS__
#define CALL(name, symbol, parameters, arguments)                                                                      \
  static inline CUresult call_##name(const gofsdp_driver *driver ALSO parameters) { return driver->name arguments; }
DRIVER(CALL)
#undef CALL
#undef ALSO

// A kernel's start, ready to be made any number of times. The driver copies the arguments at each.
typedef struct {
  CUfunction function;
  unsigned grid[3], block[3], shared;
  void *arguments; // the packed struct that is the kernel's one parameter
} gofsdp_launch;

static inline CUresult gofsdp_start(const gofsdp_driver *driver, const gofsdp_launch *l, CUstream stream) {
  void *parameters[] = {l->arguments};
  return driver->cuLaunchKernel(l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2],
                                l->shared, stream, parameters, NULL);
}

// Loads PTX. What the driver's compiler complains of stands in log, ended by a zero.
static inline CUresult gofsdp_compile(const gofsdp_driver *driver, CUmodule *module, const char *text, char *log,
                                      size_t size) {
  enum { ERROR_LOG_BUFFER = 5, ERROR_LOG_BUFFER_SIZE_BYTES = 6 }; // CUjit_option
  int options[] = {ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {log, (void *)size};
  log[0] = 0;
  CUresult r = driver->cuModuleLoadDataEx(module, text, 2, options, values);
  log[size - 1] = 0;
  return r;
}

// The two calls that any thread may need: in the context for their time alone. The thread keeps what
// it had, since it may be that of another device.
static inline CUresult gofsdp_within(const gofsdp_driver *driver, CUcontext context, CUresult (*call)(CUevent),
                                     CUevent event) {
  CUcontext before;
  CUresult r = driver->cuCtxGetCurrent(&before);
  if (r != 0) return r;
  if (before == context) return call(event);
  if ((r = driver->cuCtxSetCurrent(context)) != 0) return r;
  r = call(event);
  CUresult back = driver->cuCtxSetCurrent(before);
  return r != 0 ? r : back;
}

static inline CUresult gofsdp_await(const gofsdp_driver *driver, CUcontext context, CUevent event) {
  return gofsdp_within(driver, context, driver->cuEventSynchronize, event);
}

static inline CUresult gofsdp_query(const gofsdp_driver *driver, CUcontext context, CUevent event) {
  return gofsdp_within(driver, context, driver->cuEventQuery, event);
}

#endif
