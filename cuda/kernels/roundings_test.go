package kernels

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// Attention may round probabilities and their gradients to bf16, which hides how results are rounded, unless these have
// no more than 8 bits. Scores that are next to nothing give all of a row's keys one probability, the reciprocal of a
// power of two here, or a little more or less: to nearest it is rounded to that, and so is what is made of it and of
// small integers. Of one operand of the backward only the other two have random numbers.
//
// How many numbers may be rounded otherwise is a statistic, so these are always the same ones.
func TestAttentionRoundsResultsToNearest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	memory := optest.NewMemory(t, rng)
	for _, size := range []int{64, 128} {
		for _, heads := range []int{1, 2, 3} { // of several, each sums by itself
			for exact, scale := range map[string][2]float64{"DQ": {0x1p-22, 1}, "DK": {1, 0x1p-22}, "DV": {0x1p-22, 1}} {
				if err := roundsToNearest(memory, rng, size, heads, exact, scale[0], scale[1]); err != nil {
					t.Errorf("heads of %d, %d on one, %s: %v", size, heads, exact, err)
				}
			}
		}
	}
}

// roundsToNearest looks at one result of the backward, and at that of the forward.
func roundsToNearest(memory optest.Memory, rng *rand.Rand, size, heads int, exact string, queries, keys float64) error {
	shape := attentionShape{device.BF16, 1, 192, heads, 1, size, func(row int) int {
		return row + 1 - min(64, 1<<(bits.Len(uint(row+1))-1))
	}}
	forward, back := shape.operations(memory)
	forward.Scale, back.Scale = 0.125, 0.125
	for _, t := range []struct {
		device.Tensor
		by float64
	}{{forward.Q, queries}, {forward.K, keys}} {
		for i := range int(t.Len) {
			optest.Set(t.Tensor, i, t.by*optest.At(t.Tensor, i))
		}
	}
	if exact != "DV" { // probabilities' gradients are ±1, ±2 or ±3, of neighbours other ones
		for i := range int(back.V.Len) {
			optest.Set(back.V, i, 0)
			if i%size == 0 {
				optest.Set(back.V, i, float64(1-i/size%2*2))
			}
		}
		for i := range int(back.DOut.Len) {
			optest.Set(back.DOut, i, float64(1+rng.IntN(3)))
		}
	}
	ops := []device.Op{back}
	if exact == "DV" {
		f := memory.Clone(forward).(*device.Attention) // whose sums of few values are often halfway between two of bf16
		for i := range f.Start.I32() {
			f.Start.I32()[i] = int32(max(0, i-62))
		}
		ops = append(ops, f)
	}
	forward.Reference()
	for _, op := range ops {
		bounds := memory.Bounds(op)
		for _, name := range []string{exact, "Out"} {
			for i := range bounds[name] {
				bounds[name][i] *= 0x1p-12 // without what bf16 leaves out
			}
		}
		if err := verifyWithin(memory, op, bounds); err != nil {
			return fmt.Errorf("%s: %w", device.Name(op), err)
		}
	}
	return nil
}

// A probability is a power and has a relative error, as long as the target's is not near 1.
func TestGradientsOfLogitsAreRoundedToNearest(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	for _, vocab := range []int{512*8*7 + 8*300, 512*7 + 301, 512 * 2} {
		op := headLossOf(memory, device.BF16, vocab, []int{3, vocab - 1, vocab / 2}, true, func(int) float64 { return rng.NormFloat64() })
		want := memory.Clone(op).(*device.HeadLoss)
		want.Reference()
		bounds := memory.Bounds(op)
		for i := range bounds["Logits"] {
			bounds["Logits"][i] = 0x1p-18 * math.Abs(optest.At(want.Logits, i))
		}
		if err := verifyWithin(memory, op, bounds); err != nil {
			t.Errorf("%d logits: %v", vocab, err)
		}
	}
}

// Of what is computed in fp32 and rounded once, hardly any number has other bits than the reference's, wherever a
// thread has it: rounded to zero, half of the numbers of a place would.
func TestEachPlaceOfAThreadIsRoundedToNearest(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	normal := func(n int) device.Tensor { return memory.Normal(device.BF16, n, 0, 1) }
	blank := func(n int) device.Tensor { return memory.Blank(device.BF16, n) }
	table := func(f func(float64) float64) device.Tensor {
		return memory.Floats(device.F32, 7*64, func(i int) float64 { return f(float64(i)) })
	}
	const rows, dim, heads, size = 24, 1024, 3, 128
	n, q, k := rows*dim, rows*heads*size, rows*size
	norm := &device.AddRMSNorm{
		X: normal(n), Residual: normal(n), Weight: memory.Gains(device.BF16, dim), Sum: blank(n), Out: blank(n),
		RStd: memory.Blank(device.F32, rows), Rows: rows, Dim: dim, Eps: 1e-6,
	}
	rope := &device.QKNormRoPE{
		Q: normal(q), K: normal(k), QWeight: memory.Gains(device.BF16, size), KWeight: memory.Gains(device.BF16, size),
		Pos: memory.Ints(rows, func(i int) int { return i % 7 }), Cos: table(math.Cos), Sin: table(math.Sin),
		QOut: blank(q), KOut: blank(k), QRStd: memory.Blank(device.F32, rows*heads), KRStd: memory.Blank(device.F32, rows),
		Rows: rows, Heads: heads, KVHeads: 1, HeadSize: size, Positions: 7, Eps: 1e-6,
	}
	for _, op := range []device.Op{
		norm, rope,
		&device.AddRMSNormBackward{
			DOut: normal(n), DSum: normal(n), Sum: normal(n), Weight: norm.Weight, RStd: memory.Normal(device.F32, rows, 1, 0.1),
			DX: blank(n), DWeight: memory.Blank(device.F32, dim), Rows: rows, Dim: dim,
		},
		&device.QKNormRoPEBackward{
			DQOut: normal(q), DKOut: normal(k), Q: rope.Q, K: rope.K, QWeight: rope.QWeight, KWeight: rope.KWeight,
			QRStd: memory.Normal(device.F32, rows*heads, 1, 0.1), KRStd: memory.Normal(device.F32, rows, 1, 0.1),
			Pos: rope.Pos, Cos: rope.Cos, Sin: rope.Sin, Parts: memory.Blank(device.F32, device.QKNormParts(rows, heads)*2*size),
			DQ: blank(q), DK: blank(k), DQWeight: memory.Blank(device.F32, size), DKWeight: memory.Blank(device.F32, size),
			Rows: rows, Heads: heads, KVHeads: 1, HeadSize: size, Positions: 7,
		},
		&device.SwiGLU{Gate: normal(n), Up: normal(n), Out: blank(n), N: n},
		&device.SwiGLUBackward{Gate: normal(n), Up: normal(n), DOut: normal(n), DGate: blank(n), DUp: blank(n), N: n},
	} {
		for _, op := range []device.Op{op, shifted(memory, op)} {
			if recorder != nil {
				recorder(op, nearest)
				continue
			}
			want := memory.Clone(op)
			want.Reference()
			if err := run(op, schedules[0], 0); err != nil {
				t.Error(err)
			} else if err := nearest(op, want); err != nil {
				t.Error(err)
			}
		}
	}
}

// nearest requires that of all results in bf16 few have other bits than those wanted, in each place of 1,024.
func nearest(got, want device.Op) error {
	wanted := device.Operands(want)
	for i, g := range device.Operands(got) {
		if g.Scratch || g.T.Type != device.BF16 || g.Access&device.Write == 0 {
			continue
		}
		places := map[[2]int][2]int{}
		for j, x := range g.T.BF16() {
			at := [2]int{j % 1024 / 256, j % 8}
			n := places[at]
			n[0]++
			if x != wanted[i].T.BF16()[j] {
				n[1]++
			}
			places[at] = n
		}
		for at, n := range places {
			if 10*n[1] > n[0] {
				return fmt.Errorf("%s.%s: %d of %d numbers in place %v have other bits", device.Name(got), g.Name, n[1], n[0], at)
			}
		}
	}
	return nil
}

// verifyWithin is verify within bounds of its own, in one schedule.
func verifyWithin(memory optest.Memory, op device.Op, bounds optest.Bounds) error {
	near := func(got, want device.Op) error { return optest.Compare(got, want, bounds) }
	if recorder != nil {
		recorder(op, near)
		return nil
	}
	want := memory.Clone(op)
	want.Reference()
	if err := run(op, schedules[0], 0); err != nil {
		return err
	}
	return near(op, want)
}
