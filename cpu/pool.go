//go:build cgo && amd64

package cpu

/*
#include <stdlib.h>
#include "kernels.h"

static gk_ctx *new_context(int threads, size_t scratch_bytes, int isa) {
  gk_ctx *ctx = malloc(sizeof *ctx);
  if (ctx == NULL) return NULL;
  *ctx = (gk_ctx){.pool = gk_pool_new(threads, scratch_bytes), .isa = isa};
  if (ctx->pool != NULL) return ctx;
  free(ctx);
  return NULL;
}

static void free_context(gk_ctx *ctx) {
  gk_pool_free(ctx->pool);
  free(ctx);
}
*/
import "C"

import "fmt"

// scratchBytes is what each thread may use while an operation runs: packed blocks and partial sums
// of matrix products, a block of attention scores. Only pages that are touched take memory.
const scratchBytes = 24 << 20

// kernels runs operations on a pool of threads of its own. One operation at a time: a stream owns one.
type kernels struct {
	ctx *C.gk_ctx
}

// newPool starts a pool of threads (the caller's and threads-1 of C) that computes at the given level.
func newPool(threads int, isa ISA) (*kernels, error) {
	if threads < 1 {
		return nil, fmt.Errorf("cpu: a pool needs at least 1 thread, not %d", threads)
	}
	if best := Detect(); isa < Generic || isa > best {
		return nil, fmt.Errorf("cpu: instruction set %v is asked for, this machine has %v", isa, best)
	}
	ctx := C.new_context(C.int(threads), scratchBytes, C.int(isa))
	if ctx == nil {
		return nil, fmt.Errorf("cpu: no memory or threads for a pool of %d threads; ask for fewer threads", threads)
	}
	return &kernels{ctx: ctx}, nil
}

// close ends the threads and frees the scratch. No operation may be running.
func (k *kernels) close() {
	if k.ctx != nil {
		C.free_context(k.ctx)
		k.ctx = nil
	}
}

func (k *kernels) threads() int { return int(C.gk_pool_threads(k.ctx.pool)) }

func (k *kernels) isa() ISA { return ISA(k.ctx.isa) }
