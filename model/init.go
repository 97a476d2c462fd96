package model

import (
	"hash/fnv"
	"math"
	"sync"

	"github.com/gofsdp/gofsdp/device"
)

// RopeTables returns the cosines and sines of positions 0..n-1, [n,HeadSize/2]
// row-major. As Hugging Face does, frequencies and angles are rounded to fp32;
// with RopeScaling, the frequencies are blended as Llama 3.1's are.
func (c Config) RopeTables(n int) (cos, sin []float32) {
	half := c.HeadSize / 2
	freq := make([]float32, half)
	for i := range freq {
		freq[i] = 1 / float32(math.Pow(c.RopeTheta, float64(float32(2*i)/float32(c.HeadSize))))
	}
	if s := c.RopeScaling; s != nil {
		s.apply(freq)
	}
	cos, sin = make([]float32, n*half), make([]float32, n*half)
	for p := range n {
		for i, f := range freq {
			angle := float64(float32(p) * f)
			cos[p*half+i], sin[p*half+i] = float32(math.Cos(angle)), float32(math.Sin(angle))
		}
	}
	return cos, sin
}

// apply keeps wavelengths below OriginalMaxPositions/HighFreqFactor, divides
// the frequency of those above OriginalMaxPositions/LowFreqFactor by Factor,
// and blends linearly between (Llama 3.1's reference code and transformers'
// modeling_rope_utils.py agree on this formula).
func (s *Llama3Scaling) apply(freq []float32) {
	old := float64(s.OriginalMaxPositions)
	for i, f := range freq {
		wave := 2 * math.Pi / float64(f)
		switch {
		case wave < old/s.HighFreqFactor:
		case wave > old/s.LowFreqFactor:
			freq[i] = f / float32(s.Factor)
		default:
			smooth := (old/wave - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
			freq[i] = float32((1-smooth)*float64(f)/s.Factor + smooth*float64(f))
		}
	}
}

// InitParam fills dst with elements first, first+1, … of a fresh parameter.
// Every element is a pure function of (seed, name, index), so it does not
// depend on who makes it.
func (c Config) InitParam(dst []float32, p Param, seed uint64, first int) {
	switch p.Init {
	case One, Zero:
		v := float32(0)
		if p.Init == One {
			v = 1
		}
		for i := range dst {
			dst[i] = v
		}
	case Normal:
		h := fnv.New64a()
		h.Write([]byte(p.Name))
		key, quantiles, std := device.RandomKey(seed, h.Sum64()), normalQuantiles(), float32(c.InitStd)
		for i := range dst {
			r := device.RandomAt(key, uint64(first+i))
			bin, frac := r>>(64-quantileBits), float32(r<<quantileBits>>40)*(1.0/(1<<24))
			lo, hi := quantiles[bin], quantiles[bin+1]
			dst[i] = std * (lo + frac*(hi-lo))
		}
	}
}

const quantileBits = 12

// normalQuantiles returns the standard normal's quantiles at multiples of
// 2^−12; the outermost two, which are infinite, are cut where the tail's mean
// of its bin lies right. Linear between them, a draw costs one look-up and no
// logarithm, and no weight is farther out than 4 standard deviations.
var normalQuantiles = sync.OnceValue(func() *[1<<quantileBits + 1]float32 {
	const n = 1 << quantileBits
	var q [n + 1]float32
	for i := 1; i < n; i++ {
		q[i] = float32(math.Sqrt2 * math.Erfinv(2*float64(i)/n-1))
	}
	// The mean of the lowest bin is −n·φ(q[1]); linear, it is (q[0]+q[1])/2.
	tail := n * math.Exp(-float64(q[1])*float64(q[1])/2) / math.Sqrt(2*math.Pi)
	q[0] = float32(-2*tail - float64(q[1]))
	q[n] = -q[0]
	return &q
})
