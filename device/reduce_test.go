package device_test

import (
	"slices"
	"testing"

	. "github.com/gofsdp/gofsdp/device"
)

func TestASumInF64IsAddedInTheOrderOfSourcesWithoutTakingMemory(t *testing.T) {
	d := closing(t, NewReference())
	a, b, c := mustAlloc(t, d, F64, 3), mustAlloc(t, d, F64, 3), mustAlloc(t, d, F64, 3)
	set := func() {
		copy(a.F64(), []float64{1, 1e16, -1e16})
		copy(b.F64(), []float64{2, 1, 1e16})
		copy(c.F64(), []float64{4, -1e16, 1})
	}
	for _, dst := range []Tensor{a, b, c, mustAlloc(t, d, F64, 3)} {
		op := &ReduceSum{Srcs: []Tensor{a, b, c}, Dst: dst, N: 3}
		set()
		op.Reference()
		if want := []float64{7, 0, 1}; !slices.Equal(dst.F64(), want) {
			t.Errorf("the sum is %v, want %v", dst.F64(), want)
		}
		if n := testing.AllocsPerRun(10, op.Reference); n != 0 {
			t.Errorf("it allocates %v times", n)
		}
	}
}
