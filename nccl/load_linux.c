#include "load.h"

#include <dlfcn.h>
#include <string.h>

int gofsdp_nccl_fill(void *library, gofsdp_nccl *table, const char **missing, int most) {
#define ENTRY(result, name, parameters, arguments) {#name, offsetof(gofsdp_nccl, name)},
  static const struct {
    const char *symbol;
    size_t at;
  } entries[] = {NCCL(ENTRY)};
#undef ENTRY
  int lacks = 0;
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    void *address = dlsym(library, entries[i].symbol);
    if (address == NULL && lacks++ < most) missing[lacks - 1] = entries[i].symbol;
    memcpy((char *)table + entries[i].at, &address, sizeof address); // POSIX: as wide as a function's
  }
  return lacks;
}
