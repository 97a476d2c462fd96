//go:build cgo && amd64

package cpu

// #include "ops.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

func (k *kernels) biasBackward(o *device.BiasBackward) bool {
	if !computed(o.DOut) || !computed(o.DBias) {
		return false
	}
	args := C.gk_bias_backward_args{
		dout: o.DOut.Pointer(), dbias: o.DBias.Pointer(), m: C.int64_t(o.M), n: C.int64_t(o.N),
		dbias_type: ctype(o.DBias.Type), accumulate: flag(o.Accumulate),
	}
	return k.run(C.GK_OP_BIAS_BACKWARD, o.DOut.Type, unsafe.Pointer(&args))
}

func (k *kernels) swiGLU(o *device.SwiGLU) bool {
	args := C.gk_swiglu_args{gate: o.Gate.Pointer(), up: o.Up.Pointer(), out: o.Out.Pointer(), n: C.int64_t(o.N)}
	return computed(o.Gate) && k.run(C.GK_OP_SWIGLU, o.Gate.Type, unsafe.Pointer(&args))
}

func (k *kernels) swiGLUBackward(o *device.SwiGLUBackward) bool {
	args := C.gk_swiglu_args{
		gate: o.Gate.Pointer(), up: o.Up.Pointer(), dout: o.DOut.Pointer(),
		dgate: o.DGate.Pointer(), dup: o.DUp.Pointer(), n: C.int64_t(o.N),
	}
	return computed(o.Gate) && k.run(C.GK_OP_SWIGLU_BACKWARD, o.Gate.Type, unsafe.Pointer(&args))
}

// reduceSum lets C read the sources' addresses from the operation itself.
func (k *kernels) reduceSum(o *device.ReduceSum) bool {
	if !computed(o.Srcs[0]) || !computed(o.Dst) {
		return false
	}
	args := C.gk_reduce_sum_args{
		stride: C.int64_t(unsafe.Sizeof(device.Tensor{})), count: C.int64_t(len(o.Srcs)),
		dst: o.Dst.Pointer(), n: C.int64_t(o.N), dst_type: ctype(o.Dst.Type),
	}
	return C.gk_run_reduce_sum(k.ctx, ctype(o.Srcs[0].Type), &args, unsafe.Pointer(&o.Srcs[0].Addr)) == 0
}

// vector runs an operation that makes one number of a vector.
func (k *kernels) vector(op C.int, x, out device.Tensor, n int) bool {
	args := C.gk_vector_args{x: x.Pointer(), out: out.Pointer(), n: C.int64_t(n)}
	return computed(x) && k.run(op, x.Type, unsafe.Pointer(&args))
}

func (k *kernels) adamW(o *device.AdamW) bool {
	if !single(o.Param) || !single(o.Hyper) || !computed(o.Grad) {
		return false
	}
	args := C.gk_adamw_args{
		param: floatsAt(o.Param), m: floatsAt(o.M), v: floatsAt(o.V), grad: o.Grad.Pointer(), hyper: floatsAt(o.Hyper),
		copy: (*C.gk_bf16)(o.Copy.Pointer()), n: C.int64_t(o.N),
		beta1: C.float(o.Beta1), beta2: C.float(o.Beta2), eps: C.float(o.Eps), weight_decay: C.float(o.WeightDecay),
		stochastic: flag(o.Stochastic), seed: C.uint64_t(o.Seed), index: C.int64_t(o.Index),
	}
	return k.run(C.GK_OP_ADAMW, o.Grad.Type, unsafe.Pointer(&args))
}

func (k *kernels) cast(o *device.Cast) bool {
	if !computed(o.Src) || !computed(o.Dst) {
		return false
	}
	args := C.gk_move_args{src: o.Src.Pointer(), dst: o.Dst.Pointer(), n: C.int64_t(o.N), dst_type: ctype(o.Dst.Type)}
	return k.run(C.GK_OP_CAST, o.Src.Type, unsafe.Pointer(&args))
}

func (k *kernels) copy(o *device.Copy) bool {
	args := C.gk_move_args{src: o.Src.Pointer(), dst: o.Dst.Pointer(), n: C.int64_t(o.N), size: C.int64_t(o.Src.Type.Size())}
	return k.run(C.GK_OP_COPY, device.F32, unsafe.Pointer(&args))
}

func (k *kernels) fill(o *device.Fill) bool {
	var bits uint64
	switch o.Dst.Type {
	case device.F32:
		bits = uint64(math.Float32bits(o.Value))
	case device.BF16:
		bits = uint64(device.ToBF16(o.Value))
	case device.I32:
		bits = uint64(uint32(int32(o.Value)))
	case device.F64:
		bits = math.Float64bits(float64(o.Value))
	}
	args := C.gk_move_args{dst: o.Dst.Pointer(), n: C.int64_t(o.N), size: C.int64_t(o.Dst.Type.Size()), bits: C.uint64_t(bits)}
	return k.run(C.GK_OP_FILL, device.F32, unsafe.Pointer(&args))
}
