package kernels

import (
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func TestEveryOperationIsLoweredToKernelsOfTheTable(t *testing.T) {
	rng := optest.Rand(t)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, c := range optest.Cases(t, rng, typ) {
			launches, err := Lower(c.Op)
			if (err != nil) != refused(c.Op) {
				t.Errorf("%s: %v, want an error: %v", c.Name, err, refused(c.Op))
			}
			for _, l := range launches {
				i := slices.IndexFunc(All(), func(k Kernel) bool { return k.Name == l.Kernel })
				if i < 0 {
					t.Fatalf("%s: %s is not in the table", c.Name, l.Kernel)
				}
				k := All()[i]
				if threads := l.Block[0] * l.Block[1] * l.Block[2]; threads == 0 || threads > uint32(k.Threads) {
					t.Errorf("%s: %s is started with %v threads, it is made for %d", c.Name, l.Kernel, l.Block, k.Threads)
				}
				if l.Grid[0]*l.Grid[1]*l.Grid[2] == 0 || l.Shared > uint32(k.Shared) || len(l.Args) != int(k.Args.Size()) {
					t.Errorf("%s: %+v does not fit %+v", c.Name, l, k)
				}
			}
		}
	}
}

// refused says that a case of optest asks for what kernels need not do.
func refused(op device.Op) bool {
	switch o := op.(type) {
	case *device.MatMul:
		return true
	case *device.Attention:
		return o.HeadSize != 64 && o.HeadSize != 128
	case *device.AttentionBackward:
		return o.HeadSize != 64 && o.HeadSize != 128
	case *device.AttentionDecode:
		return o.HeadSize != 64 && o.HeadSize != 128
	}
	return false
}

func TestWhatHasNoKernelIsNamed(t *testing.T) {
	n := int(maxGrid) * 3000
	for want, op := range map[string]device.Op{
		"cuda: MatMul: it has no kernel here": &device.MatMul{},
		"cuda: SwiGLU: operands of f64":       &device.SwiGLU{Gate: device.Tensor{Type: device.F64}},
		"cuda: SwiGLU: swi_glu_bf16 in 3145727999 × 1 × 1 blocks is larger than a grid may be": &device.SwiGLU{
			Gate: device.Tensor{Type: device.BF16}, N: n,
		},
	} {
		if l, err := Lower(op); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Lower: %v, %v; want an error with %q", l, err, want)
		}
	}
}
