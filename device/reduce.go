package device

import (
	"fmt"
	"math"
)

// ReduceSum computes Dst = Σ Srcs, sources in order, added in fp32 and rounded
// once. It is how host collectives reduce; sources are ranks in rank order.
type ReduceSum struct {
	Srcs []Tensor `op:"r"` // each [N]; one of them may be Dst
	Dst  Tensor   `op:"w"` // [N]; F32 or the type of the sources

	N int
}

// Check implements Op.
func (o *ReduceSum) Check() error {
	c := check(o)
	c.positive("N", o.N)
	c.positive("the number of sources", len(o.Srcs))
	for i, s := range o.Srcs {
		c.tensor(fmt.Sprintf("Srcs[%d]", i), s, false, o.N, F32, BF16, F64)
		if s.Type != o.Srcs[0].Type {
			c.failf("Srcs[%d] is %s, Srcs[0] is %s", i, s.Type, o.Srcs[0].Type)
		}
	}
	types := []DType{F32}
	if len(o.Srcs) > 0 {
		types = append(types, o.Srcs[0].Type)
	}
	c.tensor("Dst", o.Dst, false, o.N, types...)
	return c.err()
}

// Cost implements Op.
func (o *ReduceSum) Cost() Cost {
	return Cost{int64(o.N) * int64(len(o.Srcs)), bytesOf(o.Srcs...) + o.Dst.Bytes()}
}

// Reference implements Op. F64 is added in float64, and takes no memory: ranks
// agree by it in every step, and no device needs a kernel for so few numbers.
func (o *ReduceSum) Reference() {
	if o.Dst.Type == F64 {
		dst := o.Dst.F64()
		for i := range dst { // the sources first: one of them may be Dst
			sum := o.Srcs[0].F64()[i]
			for _, s := range o.Srcs[1:] {
				sum += s.F64()[i]
			}
			dst[i] = sum
		}
		return
	}
	sum := load(o.Srcs[0])
	for _, s := range o.Srcs[1:] {
		for i, x := range load(s) {
			sum[i] += x
			if s.Type != F64 {
				sum[i] = float64(float32(sum[i])) // the same as a float32 addition
			}
		}
	}
	store(o.Dst, sum)
}

// NormBlock is the number of elements whose squares are summed on their own
// before the sums are added, so that a norm does not depend on how a vector is
// split at multiples of it.
const NormBlock = 1024

// NormBlocks returns how many blocks of NormBlock elements n are, the last of
// which may be shorter.
func NormBlocks(n int) int { return (n + NormBlock - 1) / NormBlock }

// SumSquares computes Out[0] = Σ x² in float64: blocks of NormBlock elements
// each by itself, 16 interleaved partial sums (element i to sum i mod 16, added
// in the order 0..15 at the block's end), then the blocks' sums in order. A NaN
// or an infinity in X makes Out not finite. These bits are part of the
// contract: every implementation gives them, so one that has many cores keeps
// the blocks' sums in Parts until it adds them.
type SumSquares struct {
	X     Tensor `op:"r"`       // [N]
	Parts Tensor `op:"scratch"` // [NormBlocks(N)] F64
	Out   Tensor `op:"w"`       // [1] F64

	N int
}

// Check implements Op.
func (o *SumSquares) Check() error {
	c := check(o)
	c.positive("N", o.N)
	c.tensor("X", o.X, false, o.N, F32, BF16, F64)
	c.tensor("Parts", o.Parts, false, NormBlocks(o.N), F64)
	c.tensor("Out", o.Out, false, 1, F64)
	return c.err()
}

// Cost implements Op.
func (o *SumSquares) Cost() Cost { return Cost{2 * int64(o.N), o.X.Bytes()} }

// Reference implements Op.
func (o *SumSquares) Reference() {
	xs, total := load(o.X), 0.0
	for len(xs) > 0 {
		n := min(len(xs), NormBlock)
		var lanes [16]float64
		for i, x := range xs[:n] {
			lanes[i%16] += float64(x * x) // the conversion forbids fusing
		}
		block := 0.0
		for _, lane := range lanes {
			block += lane
		}
		total += block
		xs = xs[n:]
	}
	o.Out.F64()[0] = total
}

// CheckFinite sets Flag[0] to 1 where X holds a NaN or an infinity, else to 0.
type CheckFinite struct {
	X    Tensor `op:"r"` // [N]
	Flag Tensor `op:"w"` // [1] I32

	N int
}

// Check implements Op.
func (o *CheckFinite) Check() error {
	c := check(o)
	c.positive("N", o.N)
	c.tensor("X", o.X, false, o.N, F32, BF16, F64)
	c.tensor("Flag", o.Flag, false, 1, I32)
	return c.err()
}

// Cost implements Op.
func (o *CheckFinite) Cost() Cost { return Cost{0, o.X.Bytes()} }

// Reference implements Op.
func (o *CheckFinite) Reference() {
	o.Flag.I32()[0] = 0
	for _, x := range load(o.X) {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			o.Flag.I32()[0] = 1
		}
	}
}
