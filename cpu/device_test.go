//go:build cgo && amd64

package cpu

import (
	"fmt"
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

// hasProducts says whether an operation multiplies matrices with the bf16 dot product where there is one.
func hasProducts(op device.Op) bool {
	switch op.(type) {
	case *device.MatMul, *device.Attention, *device.AttentionBackward:
		return true
	}
	return false
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
				bounds := memory.Bounds(want)
				want.Reference()
				var first device.Op
				for _, m := range machines {
					got := memory.Clone(c.Op)
					if err := m.Run(got); err != nil {
						t.Fatalf("%s: %v", m.name, err)
					}
					if err := optest.Compare(got, want, bounds); err != nil {
						t.Errorf("%s: %v", m.name, err)
					}
					if typ == device.BF16 && m.isa == AVX512BF16 && m.threads() == 1 && hasProducts(got) {
						first = nil // bf16 products have bits of their own there
					}
					if first == nil {
						first = got
					} else if err := optest.Compare(got, first, nil); err != nil {
						t.Errorf("%s has other bits: %v", m.name, err)
					}
				}
			})
		}
	}
}
