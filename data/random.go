package data

import "math/bits"

// The random numbers of this package are functions of (seed, use, x) and of
// nothing else. The generator is SplitMix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", OOPSLA 2014) with the constants of
// Vigna's public-domain version. Orders of documents and packs follow from it,
// so a change here changes every run: a test pins its output.

// golden is 2^64 divided by the golden ratio, made odd: the increment of
// SplitMix64.
const golden = 0x9E3779B97F4A7C15

// use separates random numbers that serve different ends.
type use uint64

const (
	useHoldout   use = 1 // which documents are held out
	useDocuments use = 2 // the order of documents in an epoch
	usePacks     use = 3 // the order of packs in an epoch
)

// mix is the output function of SplitMix64: a bijection of 64 bits.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// key folds seed, use and x into one state:
// mix(mix(mix(seed + golden) ^ use) + golden ^ x).
func key(seed uint64, u use, x uint64) uint64 {
	return mix((mix(mix(seed+golden)^uint64(u)) + golden) ^ x)
}

// random is a SplitMix64 generator.
type random struct{ state uint64 }

func (r *random) next() uint64 {
	r.state += golden
	return mix(r.state)
}

// below returns a uniform number in [0, n), n > 0, by Lemire's multiplication
// with rejection ("Fast random integer generation in an interval", 2019).
func (r *random) below(n uint64) uint64 {
	hi, lo := bits.Mul64(r.next(), n)
	if lo < n {
		for threshold := -n % n; lo < threshold; {
			hi, lo = bits.Mul64(r.next(), n)
		}
	}
	return hi
}

// shuffle puts order into a random order (Fisher and Yates, from the end).
func (r *random) shuffle(order []int32) {
	for i := len(order) - 1; i > 0; i-- {
		j := r.below(uint64(i) + 1)
		order[i], order[j] = order[j], order[i]
	}
}

// unit maps a key to [0, 1) with 53 bits.
func unit(k uint64) float64 { return float64(k>>11) / (1 << 53) }
