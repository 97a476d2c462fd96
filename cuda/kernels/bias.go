package kernels

import (
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// There are few blocks, so each has as many threads as it may.
var biasKernels = slices.Concat(
	kernelsOf[biasBackwardArgs]("bias", "bias_backward", 1024, 1),
	mixed[biasBackwardArgs]("bias", "bias_backward", 1024, 1),
)

type biasBackwardArgs struct {
	dout, dbias               uint64
	rows                      int64
	width, vector, accumulate uint32
}

func biasBackward(o *device.BiasBackward) ([]Launch, error) {
	kernel, err := namedMixed("bias_backward", o.DOut.Type, o.DBias.Type)
	if err != nil {
		return nil, err
	}
	vector, columns := alignedRows(o.N, o.DOut), 2 // of a block
	if vector == 1 {
		columns *= 16 / int(o.DOut.Type.Size())
	}
	return []Launch{line(kernel, cover(o.N, columns), 1024, pack(biasBackwardArgs{
		at(o.DOut), at(o.DBias), int64(o.M), uint32(o.N), vector, flag(o.Accumulate),
	}))}, nil
}
