//go:build cgo && amd64

package cpu

/*
#cgo noescape matmul
#cgo nocallback matmul
#cgo LDFLAGS: -lm -lpthread

#include "gemm.h"

enum { TRANS_A = 1, TRANS_B = 2, ACCUMULATE = 4, BF16_AB = 8, BF16_C = 16 };

static void matmul(gk_ctx *ctx, const void *a, const void *b, const void *bias, void *c,
                   int64_t m, int64_t n, int64_t k, int flags) {
  gk_matmul_args args = {
      .a = a, .b = b, .bias = bias, .c = c, .m = m, .n = n, .k = k,
      .trans_a = (flags & TRANS_A) != 0,
      .trans_b = (flags & TRANS_B) != 0,
      .accumulate = (flags & ACCUMULATE) != 0,
      .dtype_a = flags & BF16_AB ? GK_BF16 : GK_F32,
      .dtype_b = flags & BF16_AB ? GK_BF16 : GK_F32,
      .dtype_c = flags & BF16_C ? GK_BF16 : GK_F32,
  };
  gk_matmul(ctx, &args);
}
*/
import "C"

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

// The scratch must hold what gk_matmul asks for, or this does not compile.
const _ = uint(scratchBytes - C.GK_MATMUL_SCRATCH)

// matMul computes a checked product of F32 or BF16 operands; gemm.h says which bits come out.
// It blocks until C is written, in one cgo call, and allocates nothing.
func (k *kernels) matMul(o *device.MatMul) {
	var flags C.int
	if o.TransA {
		flags |= C.TRANS_A
	}
	if o.TransB {
		flags |= C.TRANS_B
	}
	if o.Accumulate {
		flags |= C.ACCUMULATE
	}
	if o.A.Type == device.BF16 {
		flags |= C.BF16_AB
	}
	if o.C.Type == device.BF16 {
		flags |= C.BF16_C
	}
	var bias unsafe.Pointer
	if !o.Bias.Absent() {
		bias = o.Bias.Pointer()
	}
	C.matmul(k.ctx, o.A.Pointer(), o.B.Pointer(), bias, o.C.Pointer(),
		C.int64_t(o.M), C.int64_t(o.N), C.int64_t(o.K), flags)
}
