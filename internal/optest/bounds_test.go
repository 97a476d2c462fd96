package optest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

// The product of a and −b is added to the third number.
func TestASmallDifferenceOfLargeTermsHasTheirRoom(t *testing.T) {
	memory := NewMemory(t, Rand(t))
	one := func(x float64) device.Tensor { return memory.Floats(device.F32, 1, func(int) float64 { return x }) }
	roundoff := func(a, b, c float64) float64 {
		return memory.Bounds(&device.MatMul{A: one(a), B: one(-b), C: one(c), M: 1, N: 1, K: 1, Accumulate: true})["C"][0] / 0x1p-24
	}
	if got := roundoff(1000, 1000, 1e6+1); got < 1e6 {
		t.Errorf("10⁶+1 − 1000·1000 may be off by %v units", got)
	}
	if got := roundoff(1, 1, 2); got > 100 {
		t.Errorf("2 − 1·1 may be off by %v units", got)
	}
}

// mutants are mistakes in what an implementation reads of an operand.
var mutants = []struct {
	name   string
	mutate func(xs []float32, sign func() float32)
}{
	{"every element is off by a ten-thousandth", func(xs []float32, sign func() float32) {
		for i := range xs {
			xs[i] *= 1 + 1e-4*sign()
		}
	}},
	{"the largest element is left out", func(xs []float32, _ func() float32) {
		most := 0
		for i, x := range xs {
			if math.Abs(float64(x)) > math.Abs(float64(xs[most])) {
				most = i
			}
		}
		xs[most] = 0
	}},
}

// What attention may round to bf16 on the way leaves no room for a forgotten value.
func TestBoundsOfAttentionInBF16HaveNoRoomForAMissingTerm(t *testing.T) {
	rng := Rand(t)
	memory := NewMemory(t, rng)
	found := map[string]bool{} // by operand
	for round := 0; round < 20 && (round == 0 || slices.Contains(slices.Collect(maps.Values(found)), false)); round++ {
		g := generator{memory, device.BF16, device.F32}
		for _, op := range []device.Op{g.attention(), g.attentionBackward()} {
			bounds, want := memory.Bounds(op), memory.Clone(op)
			want.Reference()
			for i, o := range device.Operands(op) {
				if o.Access&device.Read == 0 || o.T.Type != device.BF16 {
					continue
				}
				got := memory.Clone(op)
				x := device.Operands(got)[i].T.BF16()
				right := slices.Clone(x)
				most := 0
				for j := range x {
					if math.Abs(float64(device.FromBF16(x[j]))) > math.Abs(float64(device.FromBF16(x[most]))) {
						most = j
					}
				}
				x[most] = 0
				got.Reference()
				copy(x, right) // what is only read is compared in all bits
				key := device.Name(op) + "." + o.Name
				found[key] = found[key] || Compare(got, want, bounds) != nil
			}
		}
	}
	for key, yes := range found {
		if !yes {
			t.Errorf("not noticed: the largest element of %s is left out", key)
		}
	}
}

// A term may matter too little in one case; in one of some it must be missed.
func TestBoundsHaveNoRoomForAWrongTerm(t *testing.T) {
	rng := Rand(t)
	sign := func() float32 { return float32(1 - 2*rng.IntN(2)) }
	found := map[string]bool{} // by operand and mutant
	for round := 0; round < 20 && (round == 0 || slices.Contains(slices.Collect(maps.Values(found)), false)); round++ {
		t.Run(fmt.Sprint(round), func(t *testing.T) { // memory of its own
			memory := NewMemory(t, rng)
			for _, c := range Cases(t, rng, device.F32) {
				bounds, want := memory.Bounds(c.Op), memory.Clone(c.Op)
				if bounds == nil {
					continue
				}
				want.Reference()
				for i, o := range device.Operands(c.Op) {
					if o.Access&device.Read == 0 || !o.T.Type.Float() {
						continue
					}
					for _, m := range mutants {
						key := device.Name(c.Op) + "." + o.Name + ": " + m.name
						if found[key] {
							continue
						}
						got := memory.Clone(c.Op)
						x := device.Operands(got)[i].T.F32()
						right := slices.Clone(x)
						m.mutate(x, sign)
						wrong := slices.Clone(x)
						got.Reference()
						if slices.Equal(x, wrong) { // what is only read is compared in all bits
							copy(x, right)
						}
						found[key] = Compare(got, want, bounds) != nil
					}
				}
			}
		})
	}
	for key, yes := range found {
		if !yes {
			t.Errorf("not noticed: of %s", key)
		}
	}
}
