#define _GNU_SOURCE
#include "load.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

void *gofsdp_open(const char *name, char **why) {
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *text = dlerror();
    *why = strdup(text != NULL ? text : "dlopen gives no reason");
  }
  return library;
}

void gofsdp_close(void *library) { dlclose(library); }

const char *gofsdp_path(void *library) {
  struct link_map *map = NULL;
  return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL ? map->l_name : NULL;
}

typedef struct {
  const char *symbol;
  size_t at; // in the table
} entry;

static int fill(void *library, void *table, const entry *entries, size_t n, const char **missing, int most) {
  int lacks = 0;
  for (size_t i = 0; i < n; i++) {
    void *address = dlsym(library, entries[i].symbol);
    if (address == NULL && lacks++ < most) missing[lacks - 1] = entries[i].symbol;
    memcpy((char *)table + entries[i].at, &address, sizeof address); // POSIX: as wide as a function's
  }
  return lacks;
}

int gofsdp_fill(void *library, gofsdp_driver *table, const char **missing, int most) {
#define ENTRY(name, symbol, parameters, arguments) {symbol, offsetof(gofsdp_driver, name)},
  static const entry entries[] = {DRIVER(ENTRY)};
#undef ENTRY
  return fill(library, table, entries, sizeof entries / sizeof *entries, missing, most);
}

int gofsdp_fill_blas(void *library, gofsdp_blas *table, const char **missing, int most) {
#define ENTRY(name, symbol, parameters, arguments) {symbol, offsetof(gofsdp_blas, name)},
  static const entry entries[] = {BLAS(ENTRY)};
#undef ENTRY
  return fill(library, table, entries, sizeof entries / sizeof *entries, missing, most);
}

int gofsdp_nccl_version(void *library) {
  int (*get)(int *);
  int version = -1;
  *(void **)&get = dlsym(library, "ncclGetVersion");
  return get != NULL && get(&version) == 0 ? version : -1;
}

int gofsdp_cublas_version(void *library, const char *symbol, int part) {
  int (*get)(int, int *); // cublasGetProperty: 0 major, 1 minor, 2 patch
  int number = -1;
  *(void **)&get = dlsym(library, symbol);
  return get != NULL && get(part, &number) == 0 ? number : -1;
}
