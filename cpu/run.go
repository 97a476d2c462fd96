//go:build cgo && amd64

package cpu

/*
#cgo noescape gk_run
#cgo nocallback gk_run
#cgo noescape gk_run_reduce_sum
#cgo nocallback gk_run_reduce_sum
#include "ops.h"
*/
import "C"

import (
	"math"
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

// Run implements device.Executor: one cgo call for an operation, no allocation. An operation on types
// for which there is no kernel, or for which the scratch is too small, runs its Reference.
func (k *kernels) Run(op device.Op) error {
	ran := false
	var err error
	switch o := op.(type) {
	case *device.MatMul:
		if ran = computed(o.A) && computed(o.C); ran {
			k.matMul(o)
		}
	case *device.BiasBackward:
		ran = k.biasBackward(o)
	case *device.AddRMSNorm:
		ran = k.addRMSNorm(o)
	case *device.AddRMSNormBackward:
		ran = k.addRMSNormBackward(o)
	case *device.QKNormRoPE:
		ran, err = k.qkNormRoPE(o)
	case *device.QKNormRoPEBackward:
		ran, err = k.qkNormRoPEBackward(o)
	case *device.Attention:
		ran, err = k.attention(o)
	case *device.AttentionBackward:
		ran, err = k.attentionBackward(o)
	case *device.AttentionDecode:
		ran, err = k.attentionDecode(o)
	case *device.Embed:
		ran, err = k.embed(o)
	case *device.EmbedBackward:
		ran, err = k.embedBackward(o)
	case *device.SwiGLU:
		ran = k.swiGLU(o)
	case *device.SwiGLUBackward:
		ran = k.swiGLUBackward(o)
	case *device.HeadLoss:
		ran, err = k.headLoss(o)
	case *device.ReduceSum:
		ran = k.reduceSum(o)
	case *device.SumSquares:
		ran = k.vector(C.GK_OP_SUM_SQUARES, o.X, o.Out, o.N)
	case *device.CheckFinite:
		ran = k.vector(C.GK_OP_CHECK_FINITE, o.X, o.Flag, o.N)
	case *device.AdamW:
		ran = k.adamW(o)
	case *device.Cast:
		ran = k.cast(o)
	case *device.Copy:
		ran = k.copy(o)
	case *device.Fill:
		ran = k.fill(o)
	}
	if !ran && err == nil {
		op.Reference()
	}
	return err
}

// Close implements device.Executor.
func (k *kernels) Close() error { k.close(); return nil }

// run calls the kernel of an operation for operands of type t. It says whether it ran.
func (k *kernels) run(op C.int, t device.DType, args unsafe.Pointer) bool {
	return C.gk_run(k.ctx, op, ctype(t), args) == 0
}

func ctype(t device.DType) C.int {
	if t == device.BF16 {
		return C.GK_BF16
	}
	return C.GK_F32
}

// computed says whether kernels take the tensor's type.
func computed(t device.Tensor) bool { return t.Type == device.F32 || t.Type == device.BF16 }

// single says whether kernels take a statistic's type, or it is absent.
func single(t device.Tensor) bool { return t.Type == device.F32 || t.Absent() }

func floatsAt(t device.Tensor) *C.float { return (*C.float)(t.Pointer()) }
func intsAt(t device.Tensor) *C.int32_t { return (*C.int32_t)(t.Pointer()) }
func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// inside returns an error where an element is not from low to high: kernels trust what they index by.
func inside(op, operand string, t device.Tensor, low, high int) error {
	high = min(high, math.MaxInt32)
	for i, x := range t.I32() {
		if int(x) < low || int(x) > high {
			return &device.IndexError{Op: op, Operand: operand, Index: i, Value: x, Low: int32(low), High: int32(high)}
		}
	}
	return nil
}

// insideStarts is inside for attention's Start: none lies behind its row.
func insideStarts(op string, t device.Tensor, seqLen int) error {
	for i, x := range t.I32() {
		if row := int32(i % seqLen); x < 0 || x > row {
			return &device.IndexError{Op: op, Operand: "Start", Index: i, Value: x, Low: 0, High: row}
		}
	}
	return nil
}
