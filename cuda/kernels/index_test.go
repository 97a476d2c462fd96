package kernels

import (
	"errors"
	"testing"

	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func TestAnIndexOutsideOfItsRangeStopsTheKernel(t *testing.T) {
	rng := optest.Rand(t)
	tried := map[string]bool{}
	for _, c := range optest.Cases(t, rng, device.F32) {
		var operand string
		switch c.Op.(type) {
		case *device.Embed, *device.EmbedBackward:
			operand = "IDs"
		case *device.QKNormRoPE, *device.QKNormRoPEBackward:
			operand = "Pos"
		default:
			continue
		}
		for _, o := range device.Operands(c.Op) {
			if o.Name != operand {
				continue
			}
			index := o.T.I32()
			at := rng.IntN(len(index))
			right := index[at]
			for _, wrong := range []int32{-1, 1<<31 - 1, -1 << 31} {
				index[at] = wrong
				var fault *ptx.Fault
				if err := run(c.Op, schedules[0], 0); !errors.As(err, &fault) || fault.Kind != ptx.Undefined {
					t.Errorf("%s with %s[%d] = %d: %v, want a trap", c.Name, o.Name, at, wrong, err)
				}
			}
			index[at] = right
			tried[device.Name(c.Op)] = true
		}
	}
	if len(tried) != 4 {
		t.Errorf("only tried %v", tried)
	}
}
