//go:build cgo && amd64

package cpu

import (
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// Whole vectors are rounded by other instructions than a tensor's end, and those for bf16 would take
// denormal numbers for zeros.
func TestEveryLevelRoundsToBF16AsTheContractSays(t *testing.T) {
	rng := optest.Rand(t)
	kinds := map[string]func() uint32{
		"any bits":     rng.Uint32,
		"denormals":    func() uint32 { return rng.Uint32() & 0x807fffff },
		"ties":         func() uint32 { return rng.Uint32()&0xffff0000 | 0x8000 },
		"about a tie":  func() uint32 { return rng.Uint32()&0xffff0000 | 0x7fff + rng.Uint32()&3 },
		"not numbers":  func() uint32 { return rng.Uint32() | 0x7f800000 },
		"the greatest": func() uint32 { return rng.Uint32()&0x8000ffff | 0x7f7f0000 },
		"one denormal among normal numbers": func() uint32 {
			if rng.IntN(100) == 0 {
				return rng.Uint32() & 0x807fffff
			}
			return math.Float32bits(float32(rng.NormFloat64()))
		},
	}
	memory := optest.NewMemory(t, rng)
	for name, bits := range kinds {
		const n = 1000 // whole steps, whole vectors and a part of one
		src := memory.Blank(device.F32, n)
		for i := range n {
			src.F32()[i] = math.Float32frombits(bits())
		}
		for _, isa := range levels() {
			op := &device.Cast{Src: src, Dst: memory.Blank(device.BF16, n), N: n}
			if err := pool(t, 1, isa).Run(op); err != nil {
				t.Fatal(err)
			}
			for i, x := range src.F32() {
				if got, want := op.Dst.BF16()[i], device.ToBF16(x); got != want {
					t.Fatalf("%v: %s: %#08x at %d becomes %#04x, want %#04x", isa, name, math.Float32bits(x), i, got, want)
				}
			}
		}
	}
}
