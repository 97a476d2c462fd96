package device_test

import (
	"bytes"
	"math"
	"testing"

	. "github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// The textbook's order: Loshchilov and Hutter's algorithm 2 with moments
// corrected for their bias one by one, and decay of the parameter as it was.
func TestAdamWFollowsTheTextbook(t *testing.T) {
	trials(t, 3, func(t *testing.T, m optest.Memory, between func(int, int) int) {
		n := between(1, 30)
		op := &AdamW{
			Param: m.Normal(F64, n, 0, 1), M: m.Floats(F64, n, func(int) float64 { return 0 }), V: m.Floats(F64, n, func(int) float64 { return 0 }),
			Grad: m.Blank(F64, n), Hyper: m.Blank(F64, HyperLen), N: n, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1,
		}
		beta1, beta2, eps, decay := float64(op.Beta1), float64(op.Beta2), float64(op.Eps), float64(op.WeightDecay)
		theta, first, second := values(op.Param), make([]float64, n), make([]float64, n)
		for step := 1.0; step <= 10; step++ {
			lr, clip := 0.01*step, 1/step
			h := op.Hyper.F64()
			h[HyperLR], h[HyperGradScale], h[HyperStep] = lr, clip, step
			h[HyperBias1], h[HyperBias2] = 1/(1-math.Pow(beta1, step)), 1/math.Sqrt(1-math.Pow(beta2, step))
			for i := range n {
				grad := math.Sin(float64(i) + step)
				op.Grad.F64()[i] = grad
				g := clip * grad
				first[i] = beta1*first[i] + (1-beta1)*g
				second[i] = beta2*second[i] + (1-beta2)*g*g
				mHat, vHat := first[i]/(1-math.Pow(beta1, step)), second[i]/(1-math.Pow(beta2, step))
				theta[i] -= lr * (mHat/(math.Sqrt(vHat)+eps) + decay*theta[i])
			}
			mustRun(t, op)
		}
		near(t, "parameters", values(op.Param), theta...)
		near(t, "first moments", values(op.M), first...)
		near(t, "second moments", values(op.V), second...)
	})
}

// still returns an AdamW that leaves parameters as they are and so only rounds.
func still(m optest.Memory, param Tensor, seed uint64, step float64) *AdamW {
	n := int(param.Len)
	zero := func(int) float64 { return 0 }
	return &AdamW{
		Param: param, M: m.Floats(F32, n, zero), V: m.Floats(F32, n, zero), Grad: m.Floats(F32, n, zero),
		Hyper: m.Floats(F32, HyperLen, func(i int) float64 {
			if i == HyperStep {
				return step
			}
			return 0
		}),
		Copy: m.Blank(BF16, n), N: n, Eps: 1, Stochastic: true, Seed: seed, Index: 1000,
	}
}

func TestStochasticRoundingIsUnbiased(t *testing.T) {
	rng := optest.Rand(t)
	m := optest.NewMemory(t, rng)
	const n = 100_000
	for _, x := range []float64{1 + 0x1p-9, -(1 + 3*0x1p-9), 0.3, -1e-3, 12345.678} {
		op := still(m, m.Floats(F32, n, func(int) float64 { return x }), rng.Uint64(), 7)
		mustRun(t, op)
		x, low, mean := float64(float32(x)), math.Inf(1), 0.0
		for i := range n {
			got := optest.At(op.Copy, i)
			low = min(low, got)
			mean += got / n
		}
		gap := math.Ldexp(1, math.Ilogb(x)-7)
		for i := range n {
			if got := optest.At(op.Copy, i); math.Abs(got-x) >= gap {
				t.Fatalf("%v is rounded to %v, no neighbour", x, got)
			}
		}
		p := (x - low) / gap // of rounding up
		if sigma := gap * math.Sqrt(p*(1-p)/n); math.Abs(mean-x) > 6*sigma {
			t.Errorf("the mean of %v is %v, %v standard deviations away", x, mean, math.Abs(mean-x)/sigma)
		}
	}
}

func TestStochasticRoundingKeepsWhatBF16Holds(t *testing.T) {
	m := optest.NewMemory(t, nil)
	for b := range 1 << 16 {
		x := FromBF16(uint16(b))
		for _, random := range []uint64{0, 0xffff, math.MaxUint64} {
			if got := StochasticBF16(x, random); x == x && got != uint16(b) || x != x && !isNaN(got) {
				t.Fatalf("%v becomes %v", x, FromBF16(got))
			}
		}
	}
	op := still(m, m.Floats(F32, 3, func(i int) float64 { return []float64{math.Inf(1), math.Inf(-1), math.NaN()}[i] }), 1, 1)
	mustRun(t, op)
	if got := values(op.Copy); !math.IsInf(got[0], 1) || !math.IsInf(got[1], -1) || !math.IsNaN(got[2]) {
		t.Fatal(got)
	}
}

func TestStochasticRoundingDependsOnSeedStepAndIndexAlone(t *testing.T) {
	rng := optest.Rand(t)
	m := optest.NewMemory(t, rng)
	const n = 500
	param := m.Normal(F32, n, 0, 1)
	bits := func(seed uint64, step float64, index, split int64) []byte {
		whole := m.Blank(BF16, n)
		for _, r := range [][2]int64{{split, n - split}, {0, split}} { // the second part first
			op := still(m, param.Slice(r[0], r[1]), seed, step)
			op.Copy, op.Index = whole.Slice(r[0], r[1]), index+r[0]
			mustRun(t, op)
		}
		return optest.Bytes(whole)
	}
	want := bits(1, 2, 3, 100)
	if !bytes.Equal(bits(1, 2, 3, 1+rng.Int64N(n-1)), want) {
		t.Error("the split changes the bits")
	}
	for name, other := range map[string][]byte{"seed": bits(2, 2, 3, 100), "step": bits(1, 3, 3, 100), "index": bits(1, 2, 4, 100)} {
		if bytes.Equal(other, want) {
			t.Errorf("another %s gives the same bits", name)
		}
	}
}

// A new parameter a hair above the middle of two bf16 is stored as the middle,
// in fp32; the copy must be what rounding the stored one gives.
func TestTheCopyIsTheParameterAsStored(t *testing.T) {
	m := optest.NewMemory(t, nil)
	middle := 1 + 0x1p-8
	op := still(m, m.Floats(F32, 1, func(int) float64 { return middle }), 1, 1)
	op.Stochastic, op.WeightDecay = false, -0x1p-40
	op.Hyper.F32()[HyperLR] = 1
	mustRun(t, op)
	if p, c := optest.At(op.Param, 0), optest.At(op.Copy, 0); p != middle || c != 1 {
		t.Fatalf("stored %v, copied %v", p, c)
	}
}
