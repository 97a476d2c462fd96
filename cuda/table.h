// The driver's functions that gofsdp calls, as a table of pointers: filled from libcuda.so.1 by load.c,
// or by whoever stands in for it. Nothing of NVIDIA's is linked or included: types and signatures are
// written down here as the driver API's reference of CUDA 12.2 has them.
//
// DRIVER lists each function once: name as it is called here, symbol, parameters, arguments. The symbols
// with _v2 and _v3 are those that cuda.h's macros choose.
#ifndef GOFSDP_CUDA_TABLE_H
#define GOFSDP_CUDA_TABLE_H

#include <stddef.h>

typedef int CUresult;  // 0: CUDA_SUCCESS
typedef int CUdevice;  // an ordinal
typedef void *CUcontext, *CUstream, *CUevent, *CUmodule, *CUfunction, *CUgraph, *CUgraphExec;
typedef unsigned long long CUdeviceptr; // never a pointer of the host's
typedef void (*CUhostFn)(void *);
typedef struct {
  unsigned char bytes[16];
} CUuuid;

#define DRIVER(F)                                                                                                      \
  F(cuInit, "cuInit", (unsigned flags), (flags))                                                                       \
  F(cuDriverGetVersion, "cuDriverGetVersion", (int *version), (version))                                               \
  F(cuGetErrorName, "cuGetErrorName", (CUresult error, const char **text), (error, text))                              \
  F(cuGetErrorString, "cuGetErrorString", (CUresult error, const char **text), (error, text))                          \
  F(cuDeviceGetCount, "cuDeviceGetCount", (int *count), (count))                                                       \
  F(cuDeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal), (device, ordinal))                                   \
  F(cuDeviceGetName, "cuDeviceGetName", (char *name, int len, CUdevice device), (name, len, device))                   \
  F(cuDeviceGetUuid, "cuDeviceGetUuid_v2", (CUuuid * uuid, CUdevice device), (uuid, device))                           \
  F(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char *id, int len, CUdevice device), (id, len, device))               \
  F(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, CUdevice device),                        \
    (value, attribute, device))                                                                                        \
  F(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *bytes, CUdevice device), (bytes, device))                        \
  F(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device), (context, device))   \
  F(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device), (device))                            \
  F(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext context), (context))                                                \
  F(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext * context), (context))                                              \
  F(cuCtxSynchronize, "cuCtxSynchronize", (), ())                                                                      \
  F(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int *least, int *greatest), (least, greatest))        \
  F(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *unused, size_t *total), (unused, total))                                 \
  F(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * address, size_t bytes), (address, bytes))                              \
  F(cuMemFree, "cuMemFree_v2", (CUdeviceptr address), (address))                                                       \
  F(cuMemHostAlloc, "cuMemHostAlloc", (void **host, size_t bytes, unsigned flags), (host, bytes, flags))               \
  F(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", (CUdeviceptr * address, void *host, unsigned flags),    \
    (address, host, flags))                                                                                            \
  F(cuMemFreeHost, "cuMemFreeHost", (void *host), (host))                                                              \
  F(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),      \
    (to, from, bytes, stream))                                                                                         \
  F(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *to, CUdeviceptr from, size_t bytes, CUstream stream),            \
    (to, from, bytes, stream))                                                                                         \
  F(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),      \
    (to, from, bytes, stream))                                                                                         \
  F(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),          \
    (to, value, count, stream))                                                                                        \
  F(cuMemsetD16Async, "cuMemsetD16Async", (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),       \
    (to, value, count, stream))                                                                                        \
  F(cuMemsetD32Async, "cuMemsetD32Async", (CUdeviceptr to, unsigned value, size_t count, CUstream stream),             \
    (to, value, count, stream))                                                                                        \
  F(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", (CUstream * stream, unsigned flags, int priority),       \
    (stream, flags, priority))                                                                                         \
  F(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream), (stream))                                                \
  F(cuStreamQuery, "cuStreamQuery", (CUstream stream), (stream))                                                       \
  F(cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream), (stream))                                           \
  F(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags), (stream, event, flags))  \
  F(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, int mode), (stream, mode))                      \
  F(cuStreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph * graph), (stream, graph))                     \
  F(cuGraphInstantiate, "cuGraphInstantiateWithFlags",                                                                 \
    (CUgraphExec * executable, CUgraph graph, unsigned long long flags), (executable, graph, flags))                   \
  F(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec executable, CUstream stream), (executable, stream))                   \
  F(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec executable), (executable))                                  \
  F(cuGraphDestroy, "cuGraphDestroy", (CUgraph graph), (graph))                                                        \
  F(cuEventCreate, "cuEventCreate", (CUevent * event, unsigned flags), (event, flags))                                 \
  F(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream), (event, stream))                                 \
  F(cuEventQuery, "cuEventQuery", (CUevent event), (event))                                                            \
  F(cuEventSynchronize, "cuEventSynchronize", (CUevent event), (event))                                                \
  F(cuEventElapsedTime, "cuEventElapsedTime", (float *milliseconds, CUevent from, CUevent to),                         \
    (milliseconds, from, to))                                                                                          \
  F(cuEventDestroy, "cuEventDestroy_v2", (CUevent event), (event))                                                     \
  F(cuModuleLoadDataEx, "cuModuleLoadDataEx",                                                                          \
    (CUmodule * module, const void *image, unsigned count, int *options, void **values),                               \
    (module, image, count, options, values))                                                                           \
  F(cuModuleUnload, "cuModuleUnload", (CUmodule module), (module))                                                     \
  F(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction * function, CUmodule module, const char *name),            \
    (function, module, name))                                                                                          \
  F(cuFuncGetAttribute, "cuFuncGetAttribute", (int *value, int attribute, CUfunction function),                        \
    (value, attribute, function))                                                                                      \
  F(cuFuncSetAttribute, "cuFuncSetAttribute", (CUfunction function, int attribute, int value),                         \
    (function, attribute, value))                                                                                      \
  F(cuLaunchKernel, "cuLaunchKernel",                                                                                  \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
     unsigned block_z, unsigned shared, CUstream stream, void **parameters, void **extra),                             \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra))

#define DRIVER_FIELD(name, symbol, parameters, arguments) CUresult(*name) parameters;

// gofsdp_driver is what a Driver calls through; every entry is there.
typedef struct {
  DRIVER(DRIVER_FIELD)
} gofsdp_driver;

#undef DRIVER_FIELD

#endif
