package report

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// everyWay is rankSum by its definition: all ways to divide the values.
func everyWay(a, b []float64) float64 {
	values := slices.Concat(a, b)
	rank := func(x float64) float64 {
		below, equal := 0, 0
		for _, y := range values {
			switch {
			case y < x:
				below++
			case y == x:
				equal++
			}
		}
		return float64(below) + float64(equal+1)/2
	}
	mean := float64(len(a)) * float64(len(values)+1) / 2
	far := func(chosen int) (float64, int) {
		sum, n := 0.0, 0
		for i, x := range values {
			if chosen>>i&1 == 1 {
				sum, n = sum+rank(x), n+1
			}
		}
		return math.Abs(sum - mean), n
	}
	seen, _ := far(1<<len(a) - 1)
	as, every := 0, 0
	for chosen := range 1 << len(values) {
		if d, n := far(chosen); n == len(a) {
			every++
			if d >= seen {
				as++
			}
		}
	}
	return float64(as) / float64(every)
}

func TestTheRankSumIsThatOfAllWaysToDivideTheValues(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 200 {
		a, b := make([]float64, 1+random.IntN(6)), make([]float64, 1+random.IntN(6))
		for j := range a {
			a[j] = float64(random.IntN(1 + i%12)) // with ties
		}
		for j := range b {
			b[j] = float64(random.IntN(1+i%12) + i%3)
		}
		if got, want := rankSum(a, b), everyWay(a, b); math.Abs(got-want) > 1e-12 {
			t.Errorf("%v and %v: %g, want %g", a, b, got, want)
		}
	}
}

func TestTheNormalDistributionAgreesWithTheExactCount(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 1))
	for range 20 {
		a, b := make([]float64, 30), make([]float64, 30)
		for i := range a {
			a[i], b[i] = math.Round(20*random.NormFloat64()), math.Round(20*random.NormFloat64()+8)
		}
		ranks, sum := doubledRanks(a, b), 0
		for _, r := range ranks[:len(a)] {
			sum += r
		}
		exact, normal := rankSum(a, b), normalRankSum(ranks, len(a), math.Abs(float64(sum-30*61)))
		if math.Abs(exact-normal) > 0.003+0.1*exact {
			t.Errorf("exact %g, normal %g", exact, normal)
		}
	}
}

func TestSamplesThatAreApartHaveTheLeastP(t *testing.T) {
	for _, c := range []struct {
		n, m int
		want float64
	}{{5, 5, 1. / 126}, {15, 15, 2. / 155117520}, {4, 3, 2. / 35}, {1, 1, 1}} {
		a, b := make([]float64, c.n), make([]float64, c.m)
		for i := range a {
			a[i] = float64(i)
		}
		for i := range b {
			b[i] = float64(100 + i)
		}
		if got := rankSum(a, b); math.Abs(got/c.want-1) > 1e-9 || math.Abs(leastP(c.n, c.m)/c.want-1) > 1e-9 {
			t.Errorf("%d and %d values: p %g, least %g, want %g", c.n, c.m, got, leastP(c.n, c.m), c.want)
		}
	}
	if p := leastP(0, 5); p != 1 {
		t.Errorf("the least p of no values is %g, want 1", p)
	}
	equal := make([]float64, 40)
	if p := rankSum(equal, equal); p != 1 {
		t.Errorf("values that are all equal have p %g, want 1", p)
	}
}

// The example in Benjamini and Hochberg's paper: of its 15 p values
// four are significant at 0.05.
func TestAdjustedValuesAreThoseOfThePaper(t *testing.T) {
	ps := []float64{0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1}
	shuffled := slices.Clone(ps)
	slices.Reverse(shuffled)
	found := 0
	for i, p := range adjusted(shuffled) {
		if p < shuffled[i] || p > 1 {
			t.Errorf("%g became %g", shuffled[i], p)
		}
		if p <= 0.05 {
			found++
		}
	}
	if found != 4 {
		t.Errorf("%d are significant, want 4", found)
	}
	if got, want := adjusted(ps)[3], 0.0095*15/4; math.Abs(got-want) > 1e-12 {
		t.Errorf("the fourth is adjusted to %g, want %g", got, want)
	}
}
