package kernels

import (
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func TestAnIndexOutsideOfItsRangeStopsTheKernel(t *testing.T) {
	rng := optest.Rand(t)
	tried := map[string]bool{}
	for _, typ := range []device.DType{device.F32, device.BF16} {
		memory := optest.NewMemory(t, rng)
		for _, c := range optest.Cases(t, rng, typ) {
			var operand string
			var end int
			switch o := c.Op.(type) {
			case *device.Embed:
				operand, end = "IDs", o.Vocab
			case *device.EmbedBackward:
				operand, end = "IDs", o.Vocab
			case *device.QKNormRoPE:
				operand, end = "Pos", o.Positions
			case *device.QKNormRoPEBackward:
				operand, end = "Pos", o.Positions
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
				for _, wrong := range []int32{-1, int32(end), 1<<31 - 1, -1 << 31} {
					index[at] = wrong
					for _, op := range []device.Op{c.Op, shifted(memory, c.Op)} {
						if err := stops(op); err != nil {
							t.Errorf("%s with %s[%d] = %d: %v", c.Name, o.Name, at, wrong, err)
						}
					}
				}
				index[at] = right
				tried[device.Name(c.Op)+typ.String()] = true
			}
		}
	}
	for _, types := range [][2]device.DType{{device.F32, device.F32}, {device.BF16, device.BF16}, {device.BF16, device.F32}} {
		memory := optest.NewMemory(t, rng)
		for _, dim := range []int{16, 5} {
			for _, wrong := range []int{-1, 7} {
				op := embedBackwardOf(memory, types[0], types[1], 3, dim, 7, func(i int) int { return []int{2, wrong, 1}[i] })
				if err := stops(op); err != nil {
					t.Errorf("%s: %v", device.Format(op), err)
				}
			}
		}
	}
	if len(tried) != 8 {
		t.Errorf("only tried %v", tried)
	}
}
