//go:build sim && cgo && linux

#include "nccl.h"

const gofsdp_nccl *calls_nccl_table;

#define INDEX(result, name, parameters, arguments) index_##name,
enum { NCCL(INDEX) functions };

#define COUNT(result, name, parameters, arguments) {#name, 0, 0},
static calls_nccl_count counts[] = {NCCL(COUNT)};

calls_nccl_count *const calls_nccl_counts = counts;
const int calls_nccl_functions = functions;

static ncclResult_t note(int index, ncclResult_t result) {
  __atomic_fetch_add(result == 0 || result == 7 ? &counts[index].succeeded : &counts[index].refused, 1,
                     __ATOMIC_RELAXED);
  return result;
}

// Texts are never refused: "unknown" counts as that.
static const char *note_text(int index, const char *text) {
  note(index, 0);
  note(index, text[0] == 'u' || text[0] == 0);
  return text;
}

#define CALL(result, name, parameters, arguments)                                                                      \
  result call_##name parameters {                                                                                      \
    return _Generic((result)0, ncclResult_t: note, const char *: note_text)(index_##name,                              \
                                                                            calls_nccl_table->name arguments);         \
  }
NCCL(CALL)
