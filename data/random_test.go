package data

import (
	"fmt"
	"testing"
)

// The first outputs of SplitMix64 from state 0 are published with Vigna's code
// and used as test vectors by many libraries; 1234567 is Rosetta Code's.
func TestTheGeneratorIsSplitMix64(t *testing.T) {
	cases := []struct {
		state uint64
		want  []uint64
	}{
		{0, []uint64{0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F}},
		{1234567, []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423}},
	}
	for _, c := range cases {
		r := random{c.state}
		for i, want := range c.want {
			if got := r.next(); got != want {
				t.Errorf("state %d, output %d: %#x, want %#x", c.state, i, got, want)
			}
		}
	}
}

// A run that resumes under a later version of this program has to see the same
// packs.
func TestOrdersNeverChange(t *testing.T) {
	docs := allDocs(10)
	r := random{key(42, useDocuments, 3)}
	r.shuffle(docs)
	if got, want := fmt.Sprint(docs), "[8 2 7 0 6 4 5 1 3 9]"; got != want {
		t.Errorf("the order of seed 42, epoch 3 is %s, it was %s", got, want)
	}
}

// Above 2^63 almost half of all draws are rejected; accepted ones stay uniform.
func TestBelowIsUniformForLargeNumbersToo(t *testing.T) {
	const n, draws = 3 << 62, 30000
	counts := [3]int{}
	r := random{2}
	for range draws {
		counts[r.below(n)>>62]++
	}
	for i, c := range counts {
		if c < draws/3-5*82 || c > draws/3+5*82 {
			t.Errorf("third %d was drawn %d times of %d", i, c, draws)
		}
	}
}

func TestBelowIsUniform(t *testing.T) {
	const n, draws = 7, 70000
	counts := make([]int, n)
	r := random{1}
	for range draws {
		counts[r.below(n)]++
	}
	for i, c := range counts {
		// Five standard deviations of a binomial count.
		if c < draws/n-5*93 || c > draws/n+5*93 {
			t.Errorf("%d was drawn %d times of %d, want about %d", i, c, draws, draws/n)
		}
	}
}
