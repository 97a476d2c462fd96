package optest

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/device"
)

// Tolerance returns how far an fp32 implementation may be from the reference,
// as a share of the root mean square of what is added up (see Bounds); 0: not
// at all.
//
// A sum of n independent terms of deviation σ has a deviation of σ√n. Adding
// them in fp32 rounds partial sums of about σ√k by up to u = 2⁻²⁴ of each, a
// random walk of length σ·u·√Σk ≈ σ·u·n/√2, so √(n/2)·u of the result. Eight
// of that leaves room for the largest of some thousand elements and for
// operations that chain two sums.
func Tolerance(op device.Op) float64 {
	var n int
	switch o := op.(type) {
	case *device.MatMul:
		n = o.K
	case *device.BiasBackward:
		n = o.M
	case *device.AddRMSNorm:
		n = o.Dim
	case *device.AddRMSNormBackward:
		n = max(o.Rows, o.Dim)
	case *device.QKNormRoPE:
		n = o.HeadSize
	case *device.QKNormRoPEBackward:
		n = max(o.Rows*o.Heads, o.HeadSize)
	case *device.Attention:
		n = max(o.SeqLen, o.HeadSize)
	case *device.AttentionBackward:
		n = max(o.SeqLen*o.Heads/o.KVHeads, o.HeadSize)
	case *device.AttentionDecode:
		n = max(o.CacheLen, o.HeadSize)
	case *device.EmbedBackward:
		n = o.Rows
	case *device.HeadLoss:
		n = o.Vocab
	case *device.SwiGLU, *device.SwiGLUBackward, *device.AdamW:
		n = 1
	default: // bits are the contract
		return 0
	}
	return 8 * math.Sqrt(float64(n+8)) * 0x1p-24
}

// roundoff is what rounding at the store may differ by, relative to the
// element: a computing error may tip it to the neighbour, one unit in the last
// place. In fp32, where it is the format of computing too, four units.
func roundoff(typ device.DType) float64 {
	switch typ {
	case device.BF16:
		return 0x1p-7
	case device.F32:
		return 0x1p-21
	}
	return 0
}

// Compare returns where got, which has run somewhere, differs from want, which
// ran elsewhere from equal inputs. A number that bounds name may differ by what
// they say plus its own roundoff, in bf16 no more of them than rounding to nearest
// lets differ; all else must be equal in all bits. Within
// bounds a bf16 copy of parameters must have the bits that belong to got's own.
// Scratch is not compared.
func Compare(got, want device.Op, bounds Bounds) error {
	var errs []error
	wanted := device.Operands(want)
	for i, g := range device.Operands(got) {
		if g.Scratch {
			continue
		}
		var err error
		a, isAdamW := got.(*device.AdamW)
		switch bound, ok := bounds[g.Name]; {
		case ok:
			err = compare(*g.T, *wanted[i].T, bound, alike(got, g.Name))
		case isAdamW && bounds != nil && g.Name == "Copy":
			err = compareCopy(a)
		default:
			err = compareBits(*g.T, *wanted[i].T)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.%s: %w", device.Name(got), g.Name, err))
		}
	}
	return errors.Join(errs...)
}

// alike returns how many neighbours may be off by one error: a probability that
// is rounded on the way is in all numbers of a head.
func alike(op device.Op, operand string) int {
	if rounded(op, operand) == 0 {
		return 1
	}
	switch o := op.(type) {
	case *device.Attention:
		return o.HeadSize
	case *device.AttentionBackward:
		return o.HeadSize
	}
	return 1
}

func compare(got, want device.Tensor, bound []float64, alike int) error {
	wrong, worst, at := 0, 0.0, 0
	gs, ws := values(got), values(want)
	for i, w := range ws {
		g := gs[i]
		over := math.Abs(g-w) / (bound[i] + roundoff(want.Type)*math.Abs(w))
		if g == w || over <= 1 {
			continue
		}
		if wrong++; wrong == 1 || over > worst {
			worst, at = over, i
		}
	}
	if wrong == 0 {
		if want.Type == device.BF16 {
			return errors.Join(roundings(gs, ws, bound), bias(gs, ws, alike))
		}
		return nil
	}
	return fmt.Errorf("%d of %d elements differ; [%d] is %v, want %v (%.3g times what is allowed)",
		wrong, want.Len, at, gs[at], ws[at], worst)
}

// roundings requires that bf16 was rounded to nearest. A number that is computed
// as much as its bound off is rounded to another neighbour if the middle between
// two lies within the bound, which it does with a probability of bound over the
// neighbours' distance at most. Six deviations of the sum of these, and three
// where it is small, are room for chance; other roundings tip every second number.
func roundings(gs, ws, bound []float64) error {
	other, expected := 0, 0.0
	for i, w := range ws {
		if w-w != 0 {
			continue
		}
		if gs[i] != w {
			other++
		}
		share := 1.0
		if w != 0 {
			_, e := math.Frexp(w)
			share = min(1, bound[i]/math.Ldexp(1, max(e-8, -133)))
		}
		expected += share
	}
	if allowed := expected + 6*math.Sqrt(expected) + 3; float64(other) > allowed {
		return fmt.Errorf("%d of %d elements are not the nearest bf16, %.1f may be: they are rounded otherwise", other, len(ws), allowed)
	}
	return nil
}

// bias requires that bf16 is as often above as below what is wanted, where errors
// of more than a unit in the last place hide how it was rounded. Numbers of half
// the root mean square or more are counted, a unit each at most; so their mean,
// in units away from zero, has a deviation of 1/√groups at most, where groups of
// neighbours are alike. Rounding towards zero makes it half a unit less.
func bias(gs, ws []float64, alike int) error {
	least, sum, n := rms(ws)/2, 0.0, 0
	for i, w := range ws {
		if w-w != 0 || w == 0 || math.Abs(w) < least {
			continue
		}
		_, e := math.Frexp(w)
		sum += max(-1, min(1, (math.Abs(gs[i])-math.Abs(w))/math.Ldexp(1, e-8)))
		n++
	}
	if mean, allowed := sum/float64(max(1, n)), 6/math.Sqrt(float64(n)/float64(alike)); math.Abs(mean) > allowed {
		return fmt.Errorf("the %d larger elements are %.2f units in the last place from zero in the mean, %.2f may be", n, mean, allowed)
	}
	return nil
}

func compareBits(got, want device.Tensor) error {
	if bytes.Equal(Bytes(got), Bytes(want)) {
		return nil
	}
	wrong, at, size := 0, 0, int(want.Type.Size())
	for i := range int(want.Len) {
		if bytes.Equal(Bytes(got)[i*size:][:size], Bytes(want)[i*size:][:size]) {
			continue
		}
		if wrong++; wrong == 1 {
			at = i
		}
	}
	return fmt.Errorf("%d of %d elements have other bits; [%d] is %v, want %v", wrong, want.Len, at, At(got, at), At(want, at))
}

// compareCopy holds the Copy against the rounded Param of the same operation.
func compareCopy(o *device.AdamW) error {
	for i := range o.N {
		p, step := float32(At(o.Param, i)), uint64(At(o.Hyper, device.HyperStep))
		want := device.ToBF16(p)
		if o.Stochastic {
			want = device.StochasticBF16(p, device.Random(o.Seed, step, uint64(o.Index)+uint64(i)))
		}
		if got := o.Copy.BF16()[i]; got != want {
			return fmt.Errorf("[%d] is %v, want %v, which is Param's %v rounded", i, device.FromBF16(got), device.FromBF16(want), p)
		}
	}
	return nil
}

// KeepsPoison requires that what is not finite in want is not finite in got.
func KeepsPoison(got, want device.Op) error {
	wanted := device.Operands(want)
	for i, g := range device.Operands(got) {
		if g.Scratch || !g.T.Type.Float() {
			continue
		}
		for j := range int(g.T.Len) {
			w, x := At(*wanted[i].T, j), At(*g.T, j)
			if w-w != 0 && x-x == 0 {
				return fmt.Errorf("%s[%d] is %v, want %v", g.Name, j, x, w)
			}
		}
	}
	return nil
}
