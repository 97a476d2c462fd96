package kernels

import (
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// Rows and heads that make several parts, the last of which is shorter, and whose key-value heads leave parts empty.
func TestGradientsOfTheHeadsWeightsAreSummedInParts(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	for _, c := range []struct {
		typ               device.DType
		rows, heads, size int
	}{
		{device.F32, 701, 24, 16},
		{device.BF16, 701, 24, 16},
		{device.F32, 1501, 24, 2},
		{device.BF16, 1501, 24, 2},
		{device.F32, 1300, 24, 2},
		{device.BF16, 1300, 24, 2},
		{device.F32, 2100, 24, 2},
		{device.F32, 2740, 24, 2},
		{device.BF16, 2740, 24, 2},
		{device.BF16, 2100, 24, 2},
		// Ends in each of the four turns that a thread makes at once.
		{device.F32, 100, 1, 8},
		{device.F32, 612, 1, 2},
		{device.F32, 1124, 1, 8},
		{device.F32, 1636, 1, 2},
		{device.F32, 2148, 1, 8},
		{device.BF16, 100, 1, 2},
		{device.BF16, 612, 1, 16},
		{device.BF16, 1124, 1, 2},
		{device.BF16, 1636, 1, 16},
		{device.BF16, 2148, 1, 2},
		{device.F32, 612, 1, 8},
		{device.F32, 1124, 1, 2},
		{device.F32, 1636, 1, 8},
		{device.F32, 2148, 1, 2},
		{device.BF16, 612, 1, 2},
		{device.BF16, 1124, 1, 16},
		{device.BF16, 1636, 1, 2},
		{device.BF16, 2148, 1, 16},
	} {
		const kvHeads, positions = 1, 5
		typ, rows, heads, size := c.typ, c.rows, c.heads, c.size
		q, k, stat := rows*heads*size, rows*kvHeads*size, device.F32
		o := &device.QKNormRoPEBackward{
			DQOut: memory.Normal(typ, q, 0, 1), DKOut: memory.Normal(typ, k, 0, 1), Q: memory.Normal(typ, q, 0, 1), K: memory.Normal(typ, k, 0, 1),
			QWeight: memory.Gains(typ, size), KWeight: memory.Gains(typ, size),
			QRStd: memory.Normal(stat, rows*heads, 1, 0.1), KRStd: memory.Normal(stat, rows*kvHeads, 1, 0.1),
			Pos:   memory.Ints(rows, func(i int) int { return i % positions }),
			Cos:   memory.Floats(stat, positions*size/2, func(i int) float64 { return math.Cos(float64(i)) }),
			Sin:   memory.Floats(stat, positions*size/2, func(i int) float64 { return math.Sin(float64(i)) }),
			Parts: memory.Blank(stat, device.QKNormParts(rows, heads)*2*size), DQ: memory.Blank(typ, q), DK: memory.Blank(typ, k),
			DQWeight: memory.Normal(stat, size, 0, 1), DKWeight: memory.Normal(typ, size, 0, 1),
			Rows: rows, Heads: heads, KVHeads: kvHeads, HeadSize: size, Positions: positions, Accumulate: true,
		}
		if err := o.Check(); err != nil {
			t.Fatal(err)
		}
		if err := verify(memory, rng, o, schedules...); err != nil {
			t.Errorf("%s: %v", device.Format(o), err)
		}
	}
}
