// Package pairwise chooses cases for tests with many factors: a few in which
// every two values of different factors meet, since most mistakes need no more
// than two, or all of them where there is time. It knows what a factor is and
// nothing of what is tested.
package pairwise

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Factor is one thing in which cases of type T differ.
type Factor[T any] []Value[T]

// Value is a choice of a factor: its name in messages, and what it does to a
// case.
type Value[T any] struct {
	Name string
	Set  func(*T)
}

// Of returns the factor of a name with the listed values, which set puts into a
// case.
func Of[T, V any](name string, set func(*T, V), values ...V) Factor[T] {
	f := make(Factor[T], len(values))
	for i, v := range values {
		f[i] = Value[T]{fmt.Sprintf("%s %v", name, v), func(c *T) { set(c, v) }}
	}
	return f
}

// Case is one choice of each factor.
type Case[T any] struct {
	Name string // its values', in the order of factors
	It   T
}

// Product returns all cases that are valid; nil takes all. The last factor
// changes fastest.
func Product[T any](factors []Factor[T], valid func(T) bool) (all []Case[T]) {
	for _, c := range choices(factors, valid) {
		all = append(all, build(factors, c))
	}
	return all
}

// Cover returns valid cases in which every two values meet that meet in any
// valid case, by taking again and again the case with the most pairs that are
// new. Of equal ones the seed decides.
func Cover[T any](factors []Factor[T], valid func(T) bool, seed uint64) (cover []Case[T]) {
	all := choices(factors, valid)
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	p := newPairs(factors)
	for _, c := range all {
		p.missing += p.turn(c, false)
	}
	// What a case would add can only become less, so those that had less at the
	// last look need no other.
	last := make([]int, len(all))
	for i, c := range all {
		last[i] = p.count(c)
	}
	for p.missing > 0 {
		best, most := 0, 0
		for i, c := range all {
			if last[i] <= most {
				continue
			}
			if last[i] = p.count(c); last[i] > most {
				best, most = i, last[i]
			}
		}
		p.missing -= p.turn(all[best], true)
		cover = append(cover, build(factors, all[best]))
	}
	return cover
}

// choices lists the valid cases by the index of each factor's value.
func choices[T any](factors []Factor[T], valid func(T) bool) (all [][]int) {
	at := make([]int, len(factors))
	for {
		if valid == nil || valid(set(factors, at)) {
			all = append(all, append([]int(nil), at...))
		}
		i := len(at) - 1
		for ; i >= 0; i-- {
			if at[i]++; at[i] < len(factors[i]) {
				break
			}
			at[i] = 0
		}
		if i < 0 {
			return all
		}
	}
}

func set[T any](factors []Factor[T], at []int) (it T) {
	for i, f := range factors {
		f[at[i]].Set(&it)
	}
	return it
}

func build[T any](factors []Factor[T], at []int) Case[T] {
	names := make([]string, len(factors))
	for i, f := range factors {
		names[i] = f[at[i]].Name
	}
	return Case[T]{strings.Join(names, ", "), set(factors, at)}
}

// pairs remembers which pairs of values have met.
type pairs struct {
	first   []int  // by factor: the number of its first value, counted over all factors
	values  int    // of all factors
	met     []bool // by number of the one value, and of the other
	missing int    // pairs that can meet and have not
}

func newPairs[T any](factors []Factor[T]) *pairs {
	p := &pairs{}
	for _, f := range factors {
		p.first = append(p.first, p.values)
		p.values += len(f)
	}
	p.met = make([]bool, p.values*p.values)
	for i := range p.met {
		p.met[i] = true // until a case shows that it can be
	}
	return p
}

// turn marks the pairs of a case as met or not, and returns how many were
// otherwise.
func (p *pairs) turn(c []int, met bool) (changed int) {
	for i := range c {
		row := p.met[(p.first[i]+c[i])*p.values:]
		for j := i + 1; j < len(c); j++ {
			if x := &row[p.first[j]+c[j]]; *x != met {
				*x = met
				changed++
			}
		}
	}
	return changed
}

// count returns how many of a case's pairs have not met.
func (p *pairs) count(c []int) (n int) {
	for i := range c {
		row := p.met[(p.first[i]+c[i])*p.values:]
		for j := i + 1; j < len(c); j++ {
			if !row[p.first[j]+c[j]] {
				n++
			}
		}
	}
	return n
}
