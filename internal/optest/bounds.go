package optest

import (
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// Bounds are how far each element of an operand may be from the reference's,
// by the operand's name, before the last rounding. What they do not name must
// be equal in all bits, so nil asks for bits alone.
type Bounds map[string][]float64

// step is the relative change of inputs by which derivatives are measured in
// float64: small enough that its square is nothing, large enough that 2⁻⁵³ is
// nothing beside it.
const step = 0x1p-20

// Bounds returns those of an fp32 implementation of op, which has not run and
// is left as it is.
//
// The best that rounding allows is the right result, a few roundings off, of
// inputs that are a few roundings off (Higham, Accuracy and Stability of
// Numerical Algorithms, section 1.5). How far that is from the reference, the
// reference itself says: where each input x_j changes by a random ±δ·x_j,
// result i changes by a random number of deviation δ·√Σ(x_j·∂f_i/∂x_j)². This
// is large where large terms cancel, however small the result is. So an
// element may be off by Tolerance times the largest of its own such deviation
// over δ, which few draws measure roughly, that of its whole operand, the
// operand's root mean square and what cancels inside of op.
func (m Memory) Bounds(op device.Op) Bounds {
	tolerance := Tolerance(op)
	if tolerance == 0 {
		return nil
	}
	s := m.newSensitivity(op)
	// Many draws where few elements are there to average over.
	draws := min(max(4, 1<<20/max(1, op.Cost().FLOPs)), 32)
	for range draws {
		s.draw()
	}
	bounds, inner := Bounds{}, inner(op)
	for _, o := range s.operands {
		base, squares := s.base[o.T.Addr], s.squares[o.T.Addr]
		if base == nil {
			continue
		}
		least := max(rms(base), inner[o.Name])
		all := 0.0
		for _, x := range squares {
			all += x
		}
		least = max(least, math.Sqrt(all/float64(int(draws)*max(1, len(squares)))))
		bound := make([]float64, len(squares))
		for i, x := range squares {
			bound[i] = (tolerance + rounded(op, o.Name)) * max(least, math.Sqrt(x/float64(draws)))
		}
		bounds[o.Name] = bound
	}
	return bounds
}

// rounded returns how much farther an operand may be off, in the same measure,
// where the contract allows to round what is computed on the way to bf16 before
// it is multiplied. Each probability or score gradient of attention is then off
// by a relative 2⁻⁹ at most, and 0.4·2⁻⁹ in the root mean square; a sum of such
// products changes like that of values (of keys, of queries) that are off by as
// much, which is the measure. Four times the most is ten deviations: some
// thousand elements need five, the rest is for the roughness of the measure.
func rounded(op device.Op, operand string) float64 {
	switch o := op.(type) {
	case *device.Attention:
		if o.Q.Type == device.BF16 && operand == "Out" {
			return 4 * 0x1p-9
		}
	case *device.AttentionBackward:
		if o.Q.Type == device.BF16 {
			return 4 * 0x1p-9
		}
	}
	return 0
}

// inner returns the size of terms inside of an operation that cancel while its
// inputs hardly matter, by operand: a softmax that is nearly all at one place
// is 1 less a little there, and the logarithm of a sum is as far off as its
// argument is relative to 1.
func inner(op device.Op) map[string]float64 {
	switch o := op.(type) {
	case *device.Attention:
		return map[string]float64{"LSE": 1}
	case *device.HeadLoss:
		inner := map[string]float64{"Loss": 1}
		if o.Backward {
			inner["Logits"] = math.Abs(At(o.Scale, 0))
		}
		return inner
	}
	return nil
}

// sensitivity sums the squares of how the results of an operation change, in
// float64, as its inputs do.
type sensitivity struct {
	Memory
	op       device.Op
	operands []device.Operand // those of real numbers
	inputs   map[device.Addr][]float64
	base     map[device.Addr][]float64 // results of the inputs as they are
	squares  map[device.Addr][]float64 // of (result − base)/step
}

// newSensitivity copies op to float64. A bf16 copy of parameters is left out:
// Compare knows its bits.
func (m Memory) newSensitivity(op device.Op) *sensitivity {
	s := &sensitivity{
		Memory: m, op: device.Clone(op),
		inputs: map[device.Addr][]float64{}, base: map[device.Addr][]float64{}, squares: map[device.Addr][]float64{},
	}
	if o, ok := s.op.(*device.AdamW); ok {
		o.Copy, o.Stochastic = device.Tensor{}, false
	}
	s.operands = slices.DeleteFunc(device.Operands(s.op), func(o device.Operand) bool { return !o.T.Type.Float() })
	copies := map[device.Addr]device.Tensor{}
	for _, o := range s.operands {
		from := *o.T
		if _, ok := copies[from.Addr]; !ok {
			copies[from.Addr] = m.Blank(device.F64, int(from.Len))
			copy(copies[from.Addr].F64(), values(from))
		}
		*o.T = copies[from.Addr]
		if o.Access&device.Read != 0 {
			s.inputs[o.T.Addr] = values(*o.T)
		}
	}
	s.op.Reference()
	for _, o := range s.operands {
		if o.Access&device.Write != 0 && !o.Scratch {
			s.base[o.T.Addr], s.squares[o.T.Addr] = values(*o.T), make([]float64, o.T.Len)
		}
	}
	return s
}

// draw adds the squares of one change of all inputs.
func (s *sensitivity) draw() {
	for _, o := range s.operands {
		to, signs := o.T.F64(), uint64(0)
		for i, x := range s.inputs[o.T.Addr] {
			if i%64 == 0 {
				signs = s.rng.Uint64()
			}
			to[i] = x * (1 + step*(1-2*float64(signs>>(i%64)&1)))
		}
	}
	s.op.Reference()
	seen := map[device.Addr]bool{}
	for _, o := range s.operands {
		base, squares := s.base[o.T.Addr], s.squares[o.T.Addr]
		if base == nil || seen[o.T.Addr] {
			continue
		}
		seen[o.T.Addr] = true
		for i, x := range o.T.F64() {
			change := (x - base[i]) / step
			squares[i] += change * change
		}
	}
}

// values returns the elements of a tensor of real numbers.
func values(t device.Tensor) []float64 {
	xs := make([]float64, t.Len)
	switch t.Type {
	case device.F64:
		copy(xs, t.F64())
	case device.F32:
		for i, x := range t.F32() {
			xs[i] = float64(x)
		}
	case device.BF16:
		for i, x := range t.BF16() {
			xs[i] = float64(device.FromBF16(x))
		}
	}
	return xs
}

func rms(xs []float64) float64 {
	squares := 0.0
	for _, x := range xs {
		squares += x * x
	}
	return math.Sqrt(squares / float64(max(1, len(xs))))
}
