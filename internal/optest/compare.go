package optest

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/device"
)

// Tolerance returns how far an fp32 implementation may be from the reference,
// as a share of an operand's root mean square; 0: not at all.
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
// ran elsewhere from equal inputs. What is only read, and everything at a
// tolerance of 0, must be equal in all bits; a written number may differ by
// tolerance times the operand's root mean square plus its own roundoff. Scratch
// is not compared.
func Compare(got, want device.Op, tolerance float64) error {
	var errs []error
	wanted := device.Operands(want)
	written := map[device.Addr]bool{}
	for _, o := range wanted {
		written[o.T.Addr] = written[o.T.Addr] || o.Access&device.Write != 0
	}
	for i, g := range device.Operands(got) {
		if g.Scratch {
			continue
		}
		t := tolerance
		if !written[wanted[i].T.Addr] || g.T.Type == device.I32 {
			t = 0
		}
		if err := compare(*g.T, *wanted[i].T, t); err != nil {
			errs = append(errs, fmt.Errorf("%s.%s: %w", device.Name(got), g.Name, err))
		}
	}
	return errors.Join(errs...)
}

func compare(got, want device.Tensor, tolerance float64) error {
	if tolerance == 0 && bytes.Equal(Bytes(got), Bytes(want)) {
		return nil
	}
	n, squares := int(want.Len), 0.0
	for i := range n {
		squares += At(want, i) * At(want, i)
	}
	rms := math.Sqrt(squares / float64(n))
	wrong, worst, at := 0, 0.0, 0
	for i := range n {
		g, w := At(got, i), At(want, i)
		over := math.Abs(g-w) / (tolerance*rms + roundoff(want.Type)*math.Abs(w))
		if tolerance == 0 {
			over = 0
			if size := int(want.Type.Size()); !bytes.Equal(Bytes(got)[i*size:][:size], Bytes(want)[i*size:][:size]) {
				over = math.Inf(1)
			}
		}
		if g == w && tolerance > 0 || over <= 1 {
			continue
		}
		if wrong++; wrong == 1 || over > worst {
			worst, at = over, i
		}
	}
	if wrong == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d elements differ; [%d] is %v, want %v (%.3g times what is allowed)",
		wrong, n, at, At(got, at), At(want, at), worst)
}
