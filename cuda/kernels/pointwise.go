package kernels

import (
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// Bound by memory: they want as many threads as a multiprocessor has.
var pointwiseKernels = slices.Concat(
	kernelsOf[swiGLUArgs]("pointwise", "swi_glu", 256, 6),
	kernelsOf[swiGLUBackwardArgs]("pointwise", "swi_glu_backward", 256, 6),
)

type swiGLUArgs struct {
	gate, up, out uint64
	n             int64
	vector        uint32
}

type swiGLUBackwardArgs struct {
	gate, up, dout, dgate, dup uint64
	n                          int64
	vector                     uint32
}

// packs returns how many blocks of 256 threads have 16 bytes of typ a thread.
func packs(n int, typ device.DType) uint32 { return cover(n, 256*16/int(typ.Size())) }

func swiGLU(o *device.SwiGLU) ([]Launch, error) {
	kernel, err := named("swi_glu", o.Gate.Type)
	if err != nil {
		return nil, err
	}
	return []Launch{line(kernel, packs(o.N, o.Gate.Type), 256, pack(swiGLUArgs{
		at(o.Gate), at(o.Up), at(o.Out), int64(o.N), aligned(o.Gate, o.Up, o.Out),
	}))}, nil
}

func swiGLUBackward(o *device.SwiGLUBackward) ([]Launch, error) {
	kernel, err := named("swi_glu_backward", o.Gate.Type)
	if err != nil {
		return nil, err
	}
	return []Launch{line(kernel, packs(o.N, o.Gate.Type), 256, pack(swiGLUBackwardArgs{
		at(o.Gate), at(o.Up), at(o.DOut), at(o.DGate), at(o.DUp), int64(o.N), aligned(o.Gate, o.Up, o.DOut, o.DGate, o.DUp),
	}))}, nil
}
