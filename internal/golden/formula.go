// Package golden gives tests the numbers that Hugging Face transformers and PyTorch came to.
//
// It knows the formula that weights and token ids come from, and the layout of the cases under
// model/testdata/golden, which tools/golden/model/make.py writes, and of the runs under
// fsdp/testdata/fsdp2, which tools/golden/fsdp2/make.py writes. It must not know the packages that
// it helps to test, so that each of them may use it.
package golden

import (
	"hash/fnv"
	"math"
	"strings"
)

// Words returns the first n values of the 64-bit stream that belongs to a name: splitmix64
// (Steele, Lea and Flood, 2014) whose state starts at the name's FNV-1a hash.
func Words(name string, n int) []uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	state := h.Sum64()
	words := make([]uint64, n)
	for i := range words {
		state += 0x9E3779B97F4A7C15
		z := state
		z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
		z = (z ^ z>>27) * 0x94D049BB133111EB
		words[i] = z ^ z>>31
	}
	return words
}

// Weight returns the parameter of that Hugging Face name and shape, row-major: uniform in c ± a,
// where norms have a = 0.2 and c = 1, biases a = 0.2, the embedding a = 0.2, and a matrix
// [out, in] has a = 1.5/√in.
func Weight(name string, shape ...int) []float32 {
	n := 1
	for _, d := range shape {
		n *= d
	}
	a, c := spread(name, shape)
	values := make([]float32, n)
	for i, z := range Words(name, n) {
		u := float64(z>>11) * 0x1p-53
		// The conversion forbids a fused multiply-add, which would round differently.
		values[i] = float32(float64((2*u-1)*a) + c)
	}
	return values
}

func spread(name string, shape []int) (a, c float64) {
	switch {
	case strings.HasSuffix(name, "norm.weight"):
		return 0.2, 1
	case strings.HasSuffix(name, ".bias"), strings.HasSuffix(name, "embed_tokens.weight"):
		return 0.2, 0
	default:
		return 1.5 / math.Sqrt(float64(shape[1])), 0
	}
}

// IDs returns n token ids of the stream of that name, each below vocab.
func IDs(name string, n, vocab int) []int32 {
	ids := make([]int32, n)
	for i, z := range Words(name, n) {
		ids[i] = int32(z % uint64(vocab))
	}
	return ids
}
