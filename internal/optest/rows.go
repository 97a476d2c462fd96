package optest

import (
	"math"

	"github.com/gofsdp/gofsdp/device"
)

func (g generator) embed() device.Op {
	o := &device.Embed{Rows: g.between(1, 70), Dim: g.between(1, 150), Vocab: g.oneOf(1, 33, 257)}
	o.Table, o.Out = g.normal(o.Vocab*o.Dim), g.out(o.Rows*o.Dim)
	o.IDs = g.Ints(o.Rows, func(int) int { return g.rng.IntN(o.Vocab) })
	return o
}

func (g generator) embedBackward() device.Op {
	o := &device.EmbedBackward{Rows: g.between(1, 70), Dim: g.between(1, 150), Vocab: g.oneOf(1, 33, 257)}
	o.DOut, o.DTable = g.normal(o.Rows*o.Dim), g.acc(o.Vocab*o.Dim, true)
	o.IDs = g.Ints(o.Rows, func(int) int { return g.rng.IntN(o.Vocab) })
	return o
}

// count returns a number of elements for an operation on a vector.
func (g generator) count() int {
	return g.oneOf(1, g.between(1, 150), g.between(1000, 1050), g.between(2000, 5000))
}

func (g generator) swiGLU() device.Op {
	n := g.count()
	o := &device.SwiGLU{Gate: g.Normal(g.typ, n, 0, 4), Up: g.normal(n), N: n}
	o.Out = g.maybe(o.Gate, o.Up, g.out(n))
	return o
}

func (g generator) swiGLUBackward() device.Op {
	n := g.count()
	o := &device.SwiGLUBackward{Gate: g.Normal(g.typ, n, 0, 4), Up: g.normal(n), DOut: g.normal(n), N: n}
	o.DGate, o.DUp = g.maybe(o.Gate, o.DOut, g.out(n)), g.maybe(o.Up, g.out(n))
	return o
}

func (g generator) headLoss() device.Op {
	o := &device.HeadLoss{Rows: g.between(1, 70), Vocab: g.oneOf(1, 33, 257, g.between(500, 2500)), Backward: g.coin()}
	o.Logits, o.Loss = g.Normal(g.typ, o.Rows*o.Vocab, 0, 3), g.Blank(g.stat, o.Rows)
	o.Targets = g.Ints(o.Rows, func(int) int { return g.between(-1, o.Vocab-1) })
	if o.Backward {
		o.Scale = g.Floats(g.stat, 1, func(int) float64 { return 1 / float64(g.between(1, 1000)) })
	}
	return o
}

func (g generator) reduceSum() device.Op {
	n := g.count()
	o := &device.ReduceSum{N: n, Dst: g.acc(n, false)}
	for range g.between(1, 5) {
		o.Srcs = append(o.Srcs, g.normal(n))
	}
	if s := o.Srcs[g.rng.IntN(len(o.Srcs))]; g.coin() {
		o.Dst = s
	}
	return o
}

func (g generator) sumSquares() device.Op {
	n := g.count()
	return &device.SumSquares{X: g.normal(n), Parts: g.Blank(device.F64, device.NormBlocks(n)), Out: g.Blank(device.F64, 1), N: n}
}

func (g generator) checkFinite() device.Op {
	n := g.count()
	o := &device.CheckFinite{X: g.normal(n), Flag: g.Blank(device.I32, 1), N: n}
	if g.coin() {
		Set(o.X, g.rng.IntN(n), []float64{math.NaN(), math.Inf(1), math.Inf(-1)}[g.rng.IntN(3)])
	}
	return o
}

func (g generator) adamW() device.Op {
	n, step := g.count(), float64(g.between(1, 100))
	o := &device.AdamW{
		N: n, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1,
		Param: g.Normal(g.stat, n, 0, 1), M: g.Normal(g.stat, n, 0, 0.1), Grad: g.normal(n),
		V:    g.Floats(g.stat, n, func(int) float64 { return 1e-2 * g.rng.Float64() }),
		Seed: g.rng.Uint64(), Index: g.rng.Int64N(1 << 40),
	}
	for _, t := range []device.Tensor{o.M, o.V, o.Grad} {
		for i := n - n/8; i < n; i++ { // as in a shard's padding
			Set(t, i, 0)
		}
	}
	hyper := [device.HyperLen]float64{
		device.HyperLR: 1e-2, device.HyperGradScale: g.rng.Float64(), device.HyperStep: step,
		device.HyperBias1: 1 / (1 - math.Pow(0.9, step)), device.HyperBias2: 1 / math.Sqrt(1-math.Pow(0.95, step)),
	}
	o.Hyper = g.Floats(g.stat, device.HyperLen, func(i int) float64 { return hyper[i] })
	if g.coin() {
		o.Copy, o.Stochastic = g.Blank(device.BF16, n), g.coin()
	}
	return o
}

func (g generator) cast() device.Op {
	n := g.count()
	to := []device.DType{device.F32, device.BF16, g.typ}[g.rng.IntN(3)]
	return &device.Cast{Src: g.normal(n), Dst: g.Blank(to, n), N: n}
}

func (g generator) copy() device.Op {
	n := g.count()
	return &device.Copy{Src: g.normal(n), Dst: g.out(n), N: n}
}

func (g generator) fill() device.Op {
	n := g.count()
	typ := []device.DType{g.typ, g.typ, device.I32}[g.rng.IntN(3)]
	return &device.Fill{Dst: g.Blank(typ, n), N: n, Value: float32(g.between(-3, 3))}
}
