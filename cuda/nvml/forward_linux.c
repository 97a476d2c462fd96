//go:build cgo && linux

// NVML's functions as the program has them: each calls the library's, once there is one. go-nvml leaves them
// undefined, and a program with undefined functions starts only where they are looked for when they are called:
// not where LD_BIND_NOW is set, or where a compiler links with -z now, as distributions have it.
//
// They are hidden, so that no library of the process takes them for NVML's.
#include "forward.h"

#include "functions.h"

#include <dlfcn.h>
#include <stddef.h>

enum { FUNCTION_NOT_FOUND = 13 }; // nvmlReturn_t

// All of them take numbers and pointers, six at most of those that are called here, which go in registers: one
// that takes fewer does not look at the others.
typedef long (*function)(long, long, long, long, long, long);

#define NUMBER(name) number_##name,
enum { FUNCTIONS(NUMBER) count };
#define NAME(name) #name,
static const char *const names[] = {FUNCTIONS(NAME)};
static function functions[count];

#define FORWARD(name)                                                                                                  \
  __attribute__((visibility("hidden"))) long name(long a, long b, long c, long d, long e, long f) {                    \
    function call = functions[number_##name];                                                                          \
    return call != NULL ? call(a, b, c, d, e, f) : FUNCTION_NOT_FOUND;                                                 \
  }
FUNCTIONS(FORWARD)

const char *gofsdp_nvml_open(const char *file) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return dlerror();
  // Without these go-nvml has nothing to begin with.
  if (dlsym(library, "nvmlErrorString") == NULL || dlsym(library, "nvmlInit_v2") == NULL) {
    dlclose(library);
    return "it is no NVML: it has no nvmlInit_v2";
  }
  for (int i = 0; i < count; i++) *(void **)&functions[i] = dlsym(library, names[i]);
  return NULL;
}
