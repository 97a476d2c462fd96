// A driver for tests: its calls do at once what they are asked, on the host, and are written down. The
// test sees and sets what is in a file beside the library (control), which both have mapped.
#define _GNU_SOURCE
#include "table.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
  int32_t version, init, devices, major;
  int32_t fail_code, fail_skip; // the call named fail returns the code, after so many that do not
  char fail[64];
  int32_t held;   // events do not fire
  int32_t silent; // nothing is written down
  int32_t live;   // contexts, streams, events, modules and memory that are not given back
  int32_t used;   // bytes of log
  char log[1 << 20];
} control_t;

static control_t *control(void) {
  static control_t *mapped;
  if (mapped != NULL) return mapped;
  Dl_info info;
  char path[4096];
  dladdr((void *)control, &info);
  snprintf(path, sizeof path, "%s.control", info.dli_fname);
  int file = open(path, O_RDWR);
  void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(control_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) {
    perror(path);
    abort();
  }
  close(file);
  return mapped = at;
}

// note writes a call down and says what it must return.
static CUresult note(const char *name, const char *format, ...) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  control_t *c = control();
  pthread_mutex_lock(&lock);
  if (!c->silent) {
    va_list list;
    va_start(list, format);
    char *at = c->log + c->used;
    size_t left = sizeof c->log - c->used;
    int n = snprintf(at, left, "%s ", name);
    n += vsnprintf(at + n, left - n, format, list);
    va_end(list);
    c->log[c->used + n] = '\n';
    c->used += n + 1;
  }
  int fails = strcmp(c->fail, name) == 0 && c->fail_skip-- <= 0;
  pthread_mutex_unlock(&lock);
  return fails ? c->fail_code : 0;
}

static _Thread_local CUcontext current;
static char context[1]; // its address is the one context

#define INVALID_VALUE 1
#define INVALID_CONTEXT 201
#define INVALID_HANDLE 400
#define NOTE(...)                                                                                                      \
  do {                                                                                                                 \
    CUresult noted = note(__func__, __VA_ARGS__);                                                                      \
    if (noted != 0) return noted;                                                                                      \
  } while (0)
#define INSIDE(...)                                                                                                    \
  do {                                                                                                                 \
    NOTE(__VA_ARGS__);                                                                                                 \
    if (current != context) return INVALID_CONTEXT;                                                                    \
  } while (0)

static void *made(size_t bytes, int value) {
  control()->live++;
  void *at = aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(at, value, bytes);
  return at;
}

static CUresult gone(void *at) {
  if (at == NULL) return INVALID_HANDLE;
  control()->live--;
  free(at);
  return 0;
}

CUresult cuInit(unsigned flags) {
  NOTE("%u", flags);
  return control()->init;
}
CUresult cuDriverGetVersion(int *version) {
  NOTE("");
  *version = control()->version;
  return 0;
}
CUresult cuGetErrorName(CUresult error, const char **text) {
  *text = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
  return *text == NULL ? INVALID_VALUE : 0;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == 700 ? "an illegal memory access was encountered" : error == 2 ? "out of memory" : NULL;
  return *text == NULL ? INVALID_VALUE : 0;
}
CUresult cuDeviceGetCount(int *count) {
  NOTE("");
  *count = control()->devices;
  return 0;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  NOTE("%d", ordinal);
  if (ordinal < 0 || ordinal >= control()->devices) return 101;
  *device = ordinal;
  return 0;
}
CUresult cuDeviceGetName(char *name, int len, CUdevice device) {
  NOTE("");
  snprintf(name, len, "Test GPU %d", device);
  return 0;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  NOTE("");
  for (int i = 0; i < 16; i++) uuid->bytes[i] = 16 * device + i;
  return 0;
}
CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice device) {
  NOTE("");
  snprintf(id, len, "0000:%02x:00.0", device + 1);
  return 0;
}
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  NOTE("%d %d", attribute, device);
  switch (attribute) {
  case 16: *value = 58; return 0;
  case 41: *value = 1; return 0;
  case 75: *value = control()->major; return 0;
  case 76: *value = 9; return 0;
  case 97: *value = 99 << 10; return 0;
  }
  return INVALID_VALUE;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  NOTE("%d", device);
  *bytes = (size_t)24 << 30;
  return 0;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice device) {
  NOTE("%d", device);
  control()->live++;
  *c = context;
  return 0;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  NOTE("%d", device);
  control()->live--;
  return 0;
}
CUresult cuCtxSetCurrent(CUcontext c) {
  NOTE("%s", c == NULL ? "none" : "context");
  current = c;
  return 0;
}
CUresult cuCtxGetCurrent(CUcontext *c) {
  *c = current;
  return 0;
}
CUresult cuCtxSynchronize(void) {
  INSIDE("");
  return 0;
}
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  INSIDE("");
  *least = 0;
  *greatest = -5;
  return 0;
}
CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
  INSIDE("");
  *unused = 1 << 20;
  *total = (size_t)24 << 30;
  return 0;
}
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  INSIDE("%zu", bytes);
  *address = (CUdeviceptr)(uintptr_t)made(bytes, 0xff);
  return 0;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
  INSIDE("");
  return gone((void *)(uintptr_t)address);
}
CUresult cuMemHostAlloc(void **host, size_t bytes, unsigned flags) {
  INSIDE("%zu %u", bytes, flags);
  *host = made(bytes, 0xff);
  return 0;
}
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host, unsigned flags) {
  INSIDE("%u", flags);
  *address = (CUdeviceptr)(uintptr_t)host;
  return 0;
}
CUresult cuMemFreeHost(void *host) {
  INSIDE("");
  return gone(host);
}

// A stream has its name in the log: s1, s2 by the order in which streams were made.
typedef struct {
  int number;
} stream_t;
static int number(CUstream s) { return s == NULL ? 0 : ((stream_t *)s)->number; }

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream s) {
  INSIDE("s%d %zu", number(s), bytes);
  memcpy((void *)(uintptr_t)to, from, bytes);
  return 0;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream s) {
  INSIDE("s%d %zu", number(s), bytes);
  memcpy(to, (void *)(uintptr_t)from, bytes);
  return 0;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
  INSIDE("s%d %zu", number(s), bytes);
  memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
  return 0;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream s) {
  INSIDE("s%d %#x %zu", number(s), value, count);
  memset((void *)(uintptr_t)to, value, count);
  return 0;
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream s) {
  INSIDE("s%d %#x %zu", number(s), value, count);
  for (size_t i = 0; i < count; i++) ((unsigned short *)(uintptr_t)to)[i] = value;
  return 0;
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream s) {
  INSIDE("s%d %#x %zu", number(s), value, count);
  for (size_t i = 0; i < count; i++) ((unsigned *)(uintptr_t)to)[i] = value;
  return 0;
}
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  INSIDE("%u %d", flags, priority);
  static int streams;
  stream_t *s = made(sizeof *s, 0);
  s->number = ++streams;
  *stream = s;
  return 0;
}
CUresult cuStreamDestroy_v2(CUstream s) {
  INSIDE("s%d", number(s));
  return gone(s);
}
CUresult cuStreamQuery(CUstream s) {
  INSIDE("s%d", number(s));
  return 0;
}
CUresult cuStreamSynchronize(CUstream s) {
  INSIDE("s%d", number(s));
  return 0;
}
CUresult cuStreamWaitEvent(CUstream s, CUevent event, unsigned flags) {
  INSIDE("s%d %u", number(s), flags);
  return event == NULL ? INVALID_HANDLE : 0;
}
CUresult cuEventCreate(CUevent *event, unsigned flags) {
  INSIDE("%u", flags);
  *event = made(1, 0);
  return 0;
}
CUresult cuEventRecord(CUevent event, CUstream s) {
  INSIDE("s%d", number(s));
  return event == NULL ? INVALID_HANDLE : 0;
}
CUresult cuEventQuery(CUevent event) {
  INSIDE("");
  return event == NULL ? INVALID_HANDLE : control()->held ? 600 : 0;
}
CUresult cuEventSynchronize(CUevent event) {
  INSIDE("");
  while (*(volatile int32_t *)&control()->held) usleep(100);
  return event == NULL ? INVALID_HANDLE : 0;
}
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  INSIDE("");
  *milliseconds = 1;
  return from == NULL || to == NULL ? INVALID_HANDLE : 0;
}
CUresult cuEventDestroy_v2(CUevent event) {
  INSIDE("");
  return gone(event);
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
  if (count == 2 && options[0] == 5 && options[1] == 6)
    snprintf(values[0], (size_t)values[1], "ptxas fatal : line 7 of %.12s\n", (const char *)image);
  INSIDE("");
  *module = made(1, 0);
  return 0;
}
CUresult cuModuleUnload(CUmodule module) {
  INSIDE("");
  return gone(module);
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  INSIDE("%s", name);
  if (module == NULL) return INVALID_HANDLE;
  *function = strdup(name); // a function is its name; it stays, as a driver's does with its module
  return 0;
}
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
  INSIDE("%d %s", attribute, (char *)function);
  *value = 100 + attribute;
  return 0;
}
CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  INSIDE("%s %d %d", (char *)function, attribute, value);
  return 0;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream s, void **parameters, void **extra) {
  INSIDE("s%d %s %ux%ux%u of %ux%ux%u, %u, first argument %#llx", number(s), (char *)function, gx, gy, gz, bx, by, bz,
         shared, *(unsigned long long *)parameters[0]);
  return extra != NULL ? INVALID_VALUE : 0;
}
#ifndef WITHOUT_GRAPHS
CUresult cuStreamBeginCapture_v2(CUstream s, int mode) {
  INSIDE("s%d %d", number(s), mode);
  return 0;
}
CUresult cuStreamEndCapture(CUstream s, CUgraph *graph) {
  INSIDE("s%d", number(s));
  *graph = made(1, 0);
  return 0;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
  INSIDE("%llu", flags);
  *executable = made(1, 0);
  return graph == NULL ? INVALID_HANDLE : 0;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream s) {
  INSIDE("s%d", number(s));
  return executable == NULL ? INVALID_HANDLE : 0;
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
  INSIDE("");
  return gone(executable);
}
CUresult cuGraphDestroy(CUgraph graph) {
  INSIDE("");
  return gone(graph);
}
#endif
