package bench

import (
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

func tensor(typ device.DType, n int) device.Tensor {
	return device.Tensor{Type: typ, Len: int64(n)}
}

func product(m, n, k int) *device.MatMul {
	return &device.MatMul{A: tensor(device.F32, m*k), B: tensor(device.F32, k*n), C: tensor(device.F32, m*n), M: m, N: n, K: k}
}

func TestOperationsAreOneWhereNameSizesAndTypesAre(t *testing.T) {
	elsewhere := product(2, 3, 4)
	elsewhere.A.Off, elsewhere.A.Buf = 256, 7
	adds := product(2, 3, 4)
	adds.Accumulate = true
	mixed := product(2, 3, 4)
	mixed.C.Type = device.F64
	update := func(decay float32, seed uint64, index int64) device.Op {
		x := tensor(device.F32, 5)
		return &device.AdamW{Param: x, M: x, V: x, Grad: x, Hyper: tensor(device.F32, device.HyperLen), N: 5, WeightDecay: decay, Seed: seed, Index: index}
	}
	for sentence, c := range map[string]struct {
		a, b device.Op
		one  bool
	}{
		"elsewhere in memory":               {product(2, 3, 4), elsewhere, true},
		"of another size":                   {product(2, 3, 4), product(2, 4, 3), false},
		"with another switch":               {product(2, 3, 4), adds, false},
		"with a result of another type":     {product(2, 3, 4), mixed, false},
		"of another name":                   {product(2, 3, 4), update(0, 0, 0), false},
		"with other factors, seed or index": {update(0.1, 1, 2), update(0, 3, 4), true},
	} {
		col := newCollection(InStep)
		col.add(c.a, 1)
		col.add(c.b, 1)
		if one := len(col.list) == 1; one != c.one {
			t.Errorf("%s: one is %v, want %v", sentence, one, c.one)
		}
	}
}

func TestPartsSharesAndLossesAddUp(t *testing.T) {
	r := rates{f32: 24, bf16: 24, bandwidth: 1e9}
	c := newCollection(InStep)
	for range 2 { // runs of 10 s: small 2×2 s, large 1×4 s, and 2 s of nothing
		c.add(product(2, 3, 2), 1)
		c.add(product(2, 3, 2), 3)
		c.add(product(4, 3, 2), 4)
		if sum := c.endRun(r); sum != 8 {
			t.Errorf("the operations of a run took %v s, want 8", sum)
		}
	}
	list := sorted(c, 10, r)
	if len(list) != 2 || list[0].Shape != "M=2 N=3 K=2" || list[1].Shape != "M=4 N=3 K=2" {
		t.Fatalf("%+v, want the small product before the large one: it loses more", list)
	}
	// 24 FLOPs take 1 s and took 2; 48 take 2 and took 4.
	for i, want := range []Operation{{Count: 2, FLOPs: 24, Part: 0.4, Lost: 0.2}, {Count: 1, FLOPs: 48, Part: 0.4, Lost: 0.2}} {
		got := list[i]
		if got.Count != want.Count || got.FLOPs != want.FLOPs || !near(got.Part, want.Part) || !near(got.Lost, want.Lost) ||
			got.Bound != ByCompute || got.Within.Share != (Spread{0.5, 0.5, 0.5, 2}) {
			t.Errorf("%d: %+v, want %+v and half of the limit", i, got, want)
		}
	}
	kinds := c.kinds(10)
	if len(kinds) != 1 {
		t.Fatalf("%+v, want one kind", kinds)
	}
	if k := kinds[0]; k.Name != "MatMul" || k.Count != 3 || k.Seconds.Median != 8 || !near(k.Part, 0.8) || !near(k.Share.Median, 0.5) || !near(k.Lost, 0.4) {
		t.Errorf("%+v", k)
	}
}

func TestWhatIsFasterThanItsLimitLosesNothing(t *testing.T) {
	r := rates{f32: 1, bf16: 1, bandwidth: 1e9}
	c := newCollection(InStep)
	c.add(product(1, 1, 1), 0.5)
	c.endRun(r)
	if o := sorted(c, 1, r)[0]; o.Lost != 0 || o.Within.Share.Median != 4 {
		t.Errorf("share %v and lost %v, want 4 and 0", o.Within.Share.Median, o.Lost)
	}
}

func TestWithoutAnOptimizerThereAreNoOthers(t *testing.T) {
	c := newCollection(InStep)
	c.add(product(1, 1, 1), 1)
	if got := others(c).list; len(got) != 0 {
		t.Errorf("%d operations on no memory", len(got))
	}
}
