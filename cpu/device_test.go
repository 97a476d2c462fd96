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
		for round := range 3 {
			for _, c := range optest.Cases(t, rng, typ) {
				t.Run(fmt.Sprintf("%v/%d/%s", typ, round, c.Name), func(t *testing.T) {
					memory := optest.NewMemory(t, rng)
					want := memory.Clone(c.Op)
					terms := termsOfDX(want)
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
}

// tolerance is optest's, for the sum, where a result is a difference of larger terms: their rounding
// errors stay when they cancel. In AttentionBackward rows that see few keys have terms several times
// as large as the mean.
func tolerance(op device.Op, terms float64) float64 {
	allowed := optest.Tolerance(op)
	switch o := op.(type) {
	case *device.AttentionBackward:
		return 4 * allowed
	case *device.AddRMSNormBackward:
		return allowed * max(1, terms/rms(o.DX))
	}
	return allowed
}

// termsOfDX is the root mean square of RStd·DOut·Weight, from which AddRMSNormBackward subtracts;
// 0 of another operation. It must be taken before the operation has run.
func termsOfDX(op device.Op) float64 {
	o, ok := op.(*device.AddRMSNormBackward)
	if !ok {
		return 0
	}
	squares := 0.0
	for i := range o.Rows * o.Dim {
		x := optest.At(o.RStd, i/o.Dim) * optest.At(o.DOut, i) * optest.At(o.Weight, i%o.Dim)
		squares += x * x
	}
	return math.Sqrt(squares / float64(o.Rows*o.Dim))
}

func rms(t device.Tensor) float64 {
	squares := 0.0
	for i := range int(t.Len) {
		squares += optest.At(t, i) * optest.At(t, i)
	}
	return math.Sqrt(squares / float64(t.Len))
}
