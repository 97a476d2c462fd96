//go:build cgo && amd64

package cpu

import (
	"fmt"
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// levels are those of this machine.
func levels() (all []ISA) {
	for isa := Generic; isa <= Detect(); isa++ {
		all = append(all, isa)
	}
	return all
}

// pool returns kernels that end with the test.
func pool(t testing.TB, threads int, isa ISA) *kernels {
	t.Helper()
	k, err := newPool(threads, isa)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	return k
}

func TestEveryOperationIsItsReferenceAndTheSameAtEveryLevelAndNumberOfThreads(t *testing.T) {
	rng := optest.Rand(t)
	type machine struct {
		name string
		isa  ISA
		*kernels
	}
	var machines []machine
	for _, isa := range levels() {
		for threads := 1; threads <= 3; threads++ {
			machines = append(machines, machine{fmt.Sprintf("%v, %d threads", isa, threads), isa, pool(t, threads, isa)})
		}
	}
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, c := range optest.Cases(t, rng, typ) {
			t.Run(fmt.Sprintf("%v/%s", typ, c.Name), func(t *testing.T) {
				memory := optest.NewMemory(t, rng)
				want := memory.Clone(c.Op)
				terms := termsOf(want)
				want.Reference()
				allowed := tolerance(want, terms)
				var first device.Op
				for _, m := range machines {
					got := memory.Clone(c.Op)
					if err := m.Run(got); err != nil {
						t.Fatalf("%s: %v", m.name, err)
					}
					if err := optest.Compare(got, want, allowed); err != nil {
						t.Errorf("%s: %v", m.name, err)
					}
					if _, product := got.(*device.MatMul); product && typ == device.BF16 && m.isa == AVX512BF16 && m.threads() == 1 {
						first = nil // bf16 products have bits of their own there
					}
					if first == nil {
						first = got
					} else if err := optest.Compare(got, first, 0); err != nil {
						t.Errorf("%s has other bits: %v", m.name, err)
					}
				}
			})
		}
	}
}

// tolerance is optest's, for the sum, where a result is a difference of larger terms: their rounding
// errors stay when they cancel, which over few elements shows. In AttentionBackward rows that see few
// keys have terms several times as large as the mean.
func tolerance(op device.Op, terms float64) float64 {
	allowed := optest.Tolerance(op)
	switch o := op.(type) {
	case *device.AttentionBackward:
		return 4 * allowed
	case *device.AddRMSNormBackward:
		return allowed * max(1, terms/rms(o.DX))
	case *device.SwiGLUBackward:
		return allowed * max(1, terms/rms(o.DGate))
	case *device.AdamW:
		return allowed * max(1, terms/rms(o.M))
	}
	return allowed
}

// termsOf is the root mean square of the terms that may cancel; 0 where there are none. It must be
// taken before the operation has run.
func termsOf(op device.Op) float64 {
	var n int
	var term func(i int) float64
	switch o := op.(type) {
	case *device.AddRMSNormBackward: // of DX
		n, term = o.Rows*o.Dim, func(i int) float64 {
			return optest.At(o.RStd, i/o.Dim) * optest.At(o.DOut, i) * optest.At(o.Weight, i%o.Dim)
		}
	case *device.SwiGLUBackward: // of DGate
		n, term = o.N, func(i int) float64 {
			return optest.At(o.DOut, i) * optest.At(o.Up, i) / (1 + math.Exp(-optest.At(o.Gate, i)))
		}
	case *device.AdamW: // of M
		n, term = o.N, func(i int) float64 { return optest.At(o.M, i) }
	}
	squares := 0.0
	for i := range n {
		squares += term(i) * term(i)
	}
	return math.Sqrt(squares / float64(max(n, 1)))
}

func rms(t device.Tensor) float64 {
	squares := 0.0
	for i := range int(t.Len) {
		squares += optest.At(t, i) * optest.At(t, i)
	}
	return math.Sqrt(squares / float64(t.Len))
}
