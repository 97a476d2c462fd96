package device

import "math"

// What AdamW's Hyper holds, by index.
const (
	HyperLR        = iota // learning rate of this step
	HyperGradScale        // multiplies the gradient: the clip factor
	HyperBias1            // 1/(1−Beta1^t), t counted from 1
	HyperBias2            // 1/√(1−Beta2^t)
	HyperStep             // t, exact below 2²⁴; the seed of stochastic rounding
	HyperLen              // the number of values
)

// AdamW updates a range of parameters that share one decay (Loshchilov and
// Hutter, arXiv 1711.05101, in PyTorch's order of operations):
//
//	g = Grad·GradScale
//	Param = Param·(1 − LR·WeightDecay)
//	M = M + (1−Beta1)·(g − M)
//	V = Beta2·V + (1−Beta2)·g²
//	Param = Param − LR·Bias1·M / (√V·Bias2 + Eps)
//
// Copy, where present, is Param as stored, rounded to bf16: to nearest even, or
// where Stochastic is set by StochasticBF16. The random number for element i of
// the range is Random(Seed, step, Index+i), so it does not depend on how the
// parameters are split.
type AdamW struct {
	Param Tensor `op:"rw"` // [N] F32: master weights
	M     Tensor `op:"rw"` // [N] F32
	V     Tensor `op:"rw"` // [N] F32
	Grad  Tensor `op:"r"`  // [N] F32 or BF16
	Hyper Tensor `op:"r"`  // [HyperLen] F32
	Copy  Tensor `op:"w"`  // [N] BF16 or absent: the weights that compute

	N                              int
	Beta1, Beta2, Eps, WeightDecay float32
	Stochastic                     bool
	Seed                           uint64
	Index                          int64 // logical index of the first element
}

// Check implements Op.
func (o *AdamW) Check() error {
	c := check(o)
	c.positive("N", o.N)
	c.tensor("Param", o.Param, false, o.N, F32, F64)
	c.tensor("M", o.M, false, o.N, o.Param.Type)
	c.tensor("V", o.V, false, o.N, o.Param.Type)
	c.tensor("Grad", o.Grad, false, o.N, append(wide(o.Param.Type), BF16)...)
	c.tensor("Hyper", o.Hyper, false, HyperLen, wide(o.Param.Type)...)
	c.tensor("Copy", o.Copy, true, o.N, BF16)
	if o.Stochastic && o.Copy.Absent() {
		c.failf("stochastic rounding without a bf16 copy")
	}
	return c.err()
}

// Cost implements Op.
func (o *AdamW) Cost() Cost {
	return Cost{12 * int64(o.N), 2*bytesOf(o.Param, o.M, o.V) + bytesOf(o.Grad, o.Copy)}
}

// Reference implements Op. M and V enter Param before they are rounded.
func (o *AdamW) Reference() {
	param, m, v, grad, hyper := load(o.Param), load(o.M), load(o.V), load(o.Grad), load(o.Hyper)
	beta1, beta2, lr := float64(o.Beta1), float64(o.Beta2), hyper[HyperLR]
	for i := range param {
		g := grad[i] * hyper[HyperGradScale]
		param[i] *= 1 - lr*float64(o.WeightDecay)
		m[i] += (1 - beta1) * (g - m[i])
		v[i] = beta2*v[i] + (1-beta2)*g*g
		param[i] -= lr * hyper[HyperBias1] * m[i] / (math.Sqrt(v[i])*hyper[HyperBias2] + float64(o.Eps))
	}
	store(o.Param, param)
	store(o.M, m)
	store(o.V, v)
	if o.Copy.Absent() {
		return
	}
	for i, p := range load(o.Param) { // as stored
		if o.Stochastic {
			bits := Random(o.Seed, uint64(hyper[HyperStep]), uint64(o.Index+int64(i)))
			o.Copy.BF16()[i] = StochasticBF16(float32(p), bits)
		} else {
			o.Copy.BF16()[i] = roundBF16(p)
		}
	}
}

// StochasticBF16 adds the low 16 of the random bits to the 16 bits that bf16
// has no room for and drops the sum's: the magnitude is rounded up with a
// probability of its distance from the lower neighbour. What is not finite is
// rounded as ToBF16 does.
func StochasticBF16(x float32, random uint64) uint16 {
	b := math.Float32bits(x)
	if b&0x7f800000 == 0x7f800000 {
		return ToBF16(x)
	}
	return uint16((b + uint32(random&0xffff)) >> 16)
}

// Random returns 64 random bits, a pure function of its arguments: splitmix64's
// finaliser (Steele, Lea and Flood, OOPSLA 2014) over each of them in turn.
func Random(seed, step, index uint64) uint64 { return RandomAt(RandomKey(seed, step), index) }

// RandomKey returns what of Random does not depend on the index.
func RandomKey(seed, step uint64) uint64 { return mix(mix(seed) + step) }

// RandomAt returns Random's bits for an index: RandomAt(RandomKey(s, t), i) is
// Random(s, t, i).
func RandomAt(key, index uint64) uint64 { return mix(key + index) }

func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
