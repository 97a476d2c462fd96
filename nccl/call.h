// What Go calls of NCCL's through a table, since Go cannot call C's pointers.
#ifndef GOFSDP_NCCL_CALL_H
#define GOFSDP_NCCL_CALL_H

#include "table.h"

#include <stdint.h>
#include <time.h>

static inline ncclResult_t call_ncclGetVersion(const gofsdp_nccl *t, int *version) {
  return t->ncclGetVersion(version);
}
static inline ncclResult_t call_ncclGetUniqueId(const gofsdp_nccl *t, ncclUniqueId *id) {
  return t->ncclGetUniqueId(id);
}
static inline ncclResult_t call_ncclCommFinalize(const gofsdp_nccl *t, ncclComm_t comm) {
  return t->ncclCommFinalize(comm);
}
static inline ncclResult_t call_ncclCommDestroy(const gofsdp_nccl *t, ncclComm_t comm) {
  return t->ncclCommDestroy(comm);
}
static inline ncclResult_t call_ncclCommAbort(const gofsdp_nccl *t, ncclComm_t comm) { return t->ncclCommAbort(comm); }
static inline const char *call_ncclGetErrorString(const gofsdp_nccl *t, ncclResult_t r) {
  return t->ncclGetErrorString(r);
}
static inline const char *call_ncclGetLastError(const gofsdp_nccl *t, ncclComm_t comm) {
  return t->ncclGetLastError(comm);
}

// How a communicator is: its asynchronous error, or why even that cannot be told.
static inline ncclResult_t gofsdp_state(const gofsdp_nccl *t, ncclComm_t comm) {
  ncclResult_t state = 0, r = t->ncclCommGetAsyncError(comm, &state);
  return r != 0 ? r : state;
}

enum { IN_PROGRESS = 7 };

// Waits up to a millisecond or so for a communicator that has a call under way.
static inline ncclResult_t gofsdp_settle(const gofsdp_nccl *t, ncclComm_t comm) {
  const struct timespec pause = {0, 5000};
  ncclResult_t r = gofsdp_state(t, comm);
  for (int i = 0; r == IN_PROGRESS && i < 20; i++) {
    nanosleep(&pause, NULL);
    r = gofsdp_state(t, comm);
  }
  return r;
}

// Begins to join a communicator without waiting for the others. The texts may go when it returns.
static inline ncclResult_t gofsdp_join(const gofsdp_nccl *t, ncclComm_t *comm, int ranks, const ncclUniqueId *id,
                                       int rank, const char *net, const char *name) {
  ncclConfig_t config = {
      .size = sizeof config,      .magic = NCCL_CONFIG_MAGIC,  .version = NCCL_CONFIG_VERSION, .blocking = 0,
      .cgaClusterSize = INT_MIN,  .minCTAs = INT_MIN,          .maxCTAs = INT_MIN,             .netName = net,
      .splitShare = INT_MIN,      .trafficClass = INT_MIN,     .commName = name,               .collnetEnable = INT_MIN,
      .CTAPolicy = INT_MIN,       .shrinkShare = INT_MIN,      .nvlsCTAs = INT_MIN,
  };
  return t->ncclCommInitRankConfig(comm, ranks, *id, rank, &config);
}

// One call of a collective. Addresses are numbers, which Go's garbage collector leaves alone.
typedef struct {
  int kind, type, root;
  uint64_t send, recv;
  size_t count;
} gofsdp_collective;

enum { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, REDUCE, BROADCAST };

static inline ncclResult_t gofsdp_one(const gofsdp_nccl *t, ncclComm_t comm, const gofsdp_collective *c, void *stream) {
  enum { SUM = 0 }; // ncclRedOp_t
  const void *send = (const void *)(uintptr_t)c->send;
  void *recv = (void *)(uintptr_t)c->recv;
  switch (c->kind) {
  case ALL_GATHER:
    return t->ncclAllGather(send, recv, c->count, c->type, comm, stream);
  case REDUCE_SCATTER:
    return t->ncclReduceScatter(send, recv, c->count, c->type, SUM, comm, stream);
  case ALL_REDUCE:
    return t->ncclAllReduce(send, recv, c->count, c->type, SUM, comm, stream);
  case REDUCE:
    return t->ncclReduce(send, recv, c->count, c->type, SUM, c->root, comm, stream);
  default:
    return t->ncclBroadcast(send, recv, c->count, c->type, c->root, comm, stream);
  }
}

// Starts the calls of a collective; several are a group, which NCCL starts as one.
static inline ncclResult_t gofsdp_launch(const gofsdp_nccl *t, ncclComm_t comm, const gofsdp_collective *calls, int n,
                                         void *stream) {
  if (n == 1) return gofsdp_one(t, comm, calls, stream);
  ncclResult_t r = t->ncclGroupStart();
  if (r != 0) return r;
  for (int i = 0; i < n && (r == 0 || r == IN_PROGRESS); i++) r = gofsdp_one(t, comm, &calls[i], stream);
  ncclResult_t end = t->ncclGroupEnd();
  return r == 0 || r == IN_PROGRESS ? end : r;
}

#endif
