package pairwise

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// dish has a value of each of some factors.
type dish [6]int

func factors(sizes ...int) (all []Factor[dish]) {
	for i, n := range sizes {
		var values []int
		for v := range n {
			values = append(values, v)
		}
		all = append(all, Of(fmt.Sprintf("f%d", i), func(d *dish, v int) { d[i] = v }, values...))
	}
	return all
}

// met lists the pairs of values that meet in any of the cases.
func met(cases []Case[dish], factors int) map[[4]int]bool {
	all := map[[4]int]bool{}
	for _, c := range cases {
		for i := range factors {
			for j := range i {
				all[[4]int{j, c.It[j], i, c.It[i]}] = true
			}
		}
	}
	return all
}

func TestEveryPairThatCanMeetMeetsInACoverOfValidCases(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		sizes := make([]int, 1+r.IntN(len(dish{})))
		for i := range sizes {
			sizes[i] = 1 + r.IntN(4)
		}
		// A few pairs of values that may not meet.
		forbidden := map[[4]int]bool{}
		for range r.IntN(6) {
			i, j := r.IntN(len(sizes)), r.IntN(len(sizes))
			forbidden[[4]int{i, r.IntN(sizes[i]), j, r.IntN(sizes[j])}] = true
		}
		valid := func(d dish) bool {
			for f := range forbidden {
				if f[0] != f[2] && d[f[0]] == f[1] && d[f[2]] == f[3] {
					return false
				}
			}
			return true
		}
		f := factors(sizes...)
		all, cover := Product(f, valid), Cover(f, valid, seed)
		want, got := met(all, len(sizes)), met(cover, len(sizes))
		for _, c := range cover {
			if !valid(c.It) {
				t.Errorf("%v is forbidden", c.It)
			}
		}
		if len(got) != len(want) || len(cover) > len(all) {
			t.Errorf("%d cases of %d of the factors %v without %v have %d pairs of %d; the seed is %d", len(cover), len(all), sizes, forbidden, len(got), len(want), seed)
		}
	}
}

func TestACoverIsSmall(t *testing.T) {
	// No cover of these has fewer than 4 × 4 cases, all of them are 4,096.
	f := factors(4, 4, 4, 4, 4, 4)
	if n := len(Cover(f, nil, 1)); n > 28 {
		t.Errorf("the cover has %d cases", n)
	}
	if n := len(Product(f, nil)); n != 4096 {
		t.Errorf("there are %d cases", n)
	}
}

func TestTheSameSeedGivesTheSameCover(t *testing.T) {
	f := factors(3, 4, 2, 3)
	names := func(seed uint64) (all []string) {
		for _, c := range Cover(f, nil, seed) {
			all = append(all, c.Name)
		}
		return all
	}
	if !slices.Equal(names(1), names(1)) {
		t.Error("two covers of one seed differ")
	}
	if slices.Equal(names(1), names(2)) {
		t.Error("the seed changes nothing")
	}
}

func TestACaseIsNamedByItsValuesInTheOrderOfFactors(t *testing.T) {
	type drink struct {
		hot  bool
		name string
	}
	all := Product([]Factor[drink]{
		Of("hot", func(d *drink, x bool) { d.hot = x }, false, true),
		Of("is", func(d *drink, x string) { d.name = x }, "tea", "milk"),
	}, func(d drink) bool { return d.hot || d.name != "tea" })
	want := []Case[drink]{{"hot false, is milk", drink{false, "milk"}}, {"hot true, is tea", drink{true, "tea"}}, {"hot true, is milk", drink{true, "milk"}}}
	if !slices.Equal(all, want) {
		t.Errorf("%v, want %v", all, want)
	}
}
