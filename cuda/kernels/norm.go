package kernels

import (
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// Rows are kept in registers, 64 of them a thread, so that each is read once:
// half of a multiprocessor's threads, with some packs under way each, still
// keep its memory busy.
var normKernels = slices.Concat(
	kernelsOf[addRMSNormArgs]("norm", "add_rms_norm", 256, 4),
	kernelsOf[addRMSNormBackwardArgs]("norm", "add_rms_norm_backward", 256, 4),
	kernelsOf[addRMSNormBackwardArgs]("norm", "add_rms_norm_weights", 512, 2),
)

type addRMSNormArgs struct {
	x, residual, weight, sum, out, rstd uint64
	rows, dim                           int64
	eps                                 float32
	warps, vector                       uint32
}

type addRMSNormBackwardArgs struct {
	dout, dsum, sum, weight, rstd, dx, dweight uint64
	rows, dim                                  int64
	warps, vector, accumulate, wide            uint32
}

// rowWarps returns how many of a block's 8 warps share a row of so many bytes:
// as few as can keep it, with keep packs of 16 bytes a thread, or of one
// element where packs cannot be moved.
func rowWarps(dim int, typ device.DType, vector uint32, keep int) uint32 {
	packs := dim
	if vector != 0 {
		packs = dim * int(typ.Size()) / 16
	}
	warps := 1
	for warps < 8 && warps*32*keep < packs {
		warps *= 2
	}
	return uint32(warps)
}

// wholePacks says, as a kernel's argument, that dim elements are a whole
// multiple of 16 bytes.
func wholePacks(dim int, typ device.DType) uint32 { return flag(int64(dim)*typ.Size()%16 == 0) }

func addRMSNorm(o *device.AddRMSNorm) ([]Launch, error) {
	kernel, err := named("add_rms_norm", o.X.Type)
	if err != nil {
		return nil, err
	}
	vector := aligned(o.X, o.Residual, o.Weight, o.Sum, o.Out) & wholePacks(o.Dim, o.X.Type)
	warps := rowWarps(o.Dim, o.X.Type, vector, 4)
	return []Launch{line(kernel, cover(o.Rows, int(8/warps)), 256, pack(addRMSNormArgs{
		at(o.X), at(o.Residual), at(o.Weight), at(o.Sum), at(o.Out), at(o.RStd), int64(o.Rows), int64(o.Dim), o.Eps, warps, vector,
	}))}, nil
}

// addRMSNormBackward computes DWeight first, for DX may be DOut.
func addRMSNormBackward(o *device.AddRMSNormBackward) ([]Launch, error) {
	typ := o.DOut.Type
	kernel, err := named("add_rms_norm_backward", typ)
	if err != nil {
		return nil, err
	}
	weights, _ := named("add_rms_norm_weights", typ)
	vector := aligned(o.DOut, o.DSum, o.Sum, o.Weight, o.DX) & wholePacks(o.Dim, typ)
	warps := rowWarps(o.Dim, typ, vector, 2)
	args := pack(addRMSNormBackwardArgs{
		at(o.DOut), at(o.DSum), at(o.Sum), at(o.Weight), at(o.RStd), at(o.DX), at(o.DWeight), int64(o.Rows), int64(o.Dim),
		warps, vector, flag(o.Accumulate), flag(o.DWeight.Type == device.F32),
	})
	return []Launch{
		line(weights, cover(o.Dim, 32/int(typ.Size())), 512, args),
		line(kernel, cover(o.Rows, int(8/warps)), 256, args),
	}, nil
}
