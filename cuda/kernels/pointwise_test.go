package kernels

import (
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func TestTheSigmoidIsRightOverItsWholeRange(t *testing.T) {
	const n = 4096
	memory := optest.NewMemory(t, optest.Rand(t))
	for typ, allowed := range map[device.DType]float64{
		device.F32:  0x1p-22, // four roundings
		device.BF16: 0x1p-8,  // the store's alone
	} {
		op := &device.SwiGLU{
			Gate: memory.Floats(typ, n, func(i int) float64 { return 240 * (float64(i)/n - 0.5) }),
			Up:   memory.Floats(typ, n, func(int) float64 { return 1 }),
			Out:  memory.Blank(typ, n), N: n,
		}
		if err := run(op, schedules[0], 0); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			x, got := optest.At(op.Gate, i), optest.At(op.Out, i)
			// Below the normal numbers, what is flushed to zero.
			if want := x / (1 + math.Exp(-x)); math.Abs(got-want) > allowed*math.Abs(want)+0x1p-118 {
				t.Fatalf("%s: x·σ(x) of %v is %v, want %v", typ, x, got, want)
			}
		}
	}
}
