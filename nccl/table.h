// NCCL's functions that gofsdp calls, as a table of pointers, like the driver's in cuda/table.h. Nothing of
// NVIDIA's is linked or included: types, numbers and signatures are written down here as NCCL's API
// reference of 2.27 to 2.30 has them.
//
// NCCL lists each function once: what it returns, its name and symbol, parameters, arguments.
#ifndef GOFSDP_NCCL_TABLE_H
#define GOFSDP_NCCL_TABLE_H

#include <limits.h>
#include <stddef.h>

typedef int ncclResult_t; // 0: ncclSuccess, 7: ncclInProgress
typedef void *ncclComm_t;
typedef struct {
  char bytes[128];
} ncclUniqueId;

// The configuration of a communicator as 2.27 has it: later versions read as much as its size says and fill
// in the rest. An int that is INT_MIN and a pointer that is NULL are not set.
typedef struct {
  size_t size; // 72
  unsigned magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare, trafficClass;
  const char *commName;
  int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs;
} ncclConfig_t;

#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 22700u

_Static_assert(sizeof(ncclConfig_t) == 72, "the size of 2.27");
_Static_assert(offsetof(ncclConfig_t, netName) == 32 && offsetof(ncclConfig_t, trafficClass) == 44 &&
                   offsetof(ncclConfig_t, commName) == 48 && offsetof(ncclConfig_t, nvlsCTAs) == 68,
               "the places of 2.27");

#define NCCL(F)                                                                                                        \
  F(ncclResult_t, ncclGetVersion, (int *version), (version))                                                           \
  F(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id), (id))                                                          \
  F(ncclResult_t, ncclCommInitRankConfig,                                                                              \
    (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config), (comm, ranks, id, rank, config))  \
  F(ncclResult_t, ncclCommFinalize, (ncclComm_t comm), (comm))                                                         \
  F(ncclResult_t, ncclCommDestroy, (ncclComm_t comm), (comm))                                                          \
  F(ncclResult_t, ncclCommAbort, (ncclComm_t comm), (comm))                                                            \
  F(const char *, ncclGetErrorString, (ncclResult_t result), (result))                                                 \
  F(const char *, ncclGetLastError, (ncclComm_t comm), (comm))                                                         \
  F(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *error), (comm, error))                        \
  F(ncclResult_t, ncclAllGather,                                                                                       \
    (const void *send, void *recv, size_t sendcount, int type, ncclComm_t comm, void *stream),                         \
    (send, recv, sendcount, type, comm, stream))                                                                       \
  F(ncclResult_t, ncclReduceScatter,                                                                                   \
    (const void *send, void *recv, size_t recvcount, int type, int op, ncclComm_t comm, void *stream),                 \
    (send, recv, recvcount, type, op, comm, stream))                                                                   \
  F(ncclResult_t, ncclAllReduce,                                                                                       \
    (const void *send, void *recv, size_t count, int type, int op, ncclComm_t comm, void *stream),                     \
    (send, recv, count, type, op, comm, stream))                                                                       \
  F(ncclResult_t, ncclReduce,                                                                                          \
    (const void *send, void *recv, size_t count, int type, int op, int root, ncclComm_t comm, void *stream),           \
    (send, recv, count, type, op, root, comm, stream))                                                                 \
  F(ncclResult_t, ncclBroadcast,                                                                                       \
    (const void *send, void *recv, size_t count, int type, int root, ncclComm_t comm, void *stream),                   \
    (send, recv, count, type, root, comm, stream))                                                                     \
  F(ncclResult_t, ncclGroupStart, (void), ())                                                                          \
  F(ncclResult_t, ncclGroupEnd, (void), ())

#define NCCL_FIELD(result, name, parameters, arguments) result(*name) parameters;

// gofsdp_nccl is what communicators call through; every entry is there.
typedef struct {
  NCCL(NCCL_FIELD)
} gofsdp_nccl;

#undef NCCL_FIELD

#endif
