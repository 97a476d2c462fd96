// Libraries of which only the version is asked: compiled with -DNCCL=22907, or with -DPROPERTY=name and
// -DMAJOR=13. With -DCOMPLETE all that gofsdp calls of NCCL or cuBLAS is there, too, and fails.
#ifdef NCCL
int ncclGetVersion(int *version) {
  *version = NCCL;
  return 0;
}
#ifdef COMPLETE
#undef NCCL
#define ncclGetVersion another_version
#include "../nccl/table.h"
#define FAILS(result, name, parameters, arguments)                                                                     \
  result name parameters { return (result)3; }
NCCL(FAILS)
#endif
#else
int PROPERTY(int part, int *number) {
  if (part < 0 || part > 2) return 7;
  *number = part == 0 ? MAJOR : part;
  return 0;
}
#ifdef COMPLETE
#include "blas.h"
#define FAILS(name, symbol, parameters, arguments)                                                                     \
  cublasStatus_t name parameters __asm__(symbol);                                                                      \
  cublasStatus_t name parameters { return 14; }
BLAS(FAILS)
#endif
#endif
