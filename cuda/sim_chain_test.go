//go:build sim && cgo && linux

package cuda_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// The block of the chain: two sequences, grouped-query attention.
const (
	chainSeqs, chainLen      = 2, 40
	chainRows                = chainSeqs * chainLen
	chainDim, chainFFN       = 128, 96
	chainHeads, chainKVHeads = 2, 1
	chainSize                = 64
	chainQ, chainKV          = chainHeads * chainSize, chainKVHeads * chainSize
	chainSteps               = 3
)

// chain is a decoder block on a device, forward and backward, over micro-batches: one stream brings weights
// and inputs and takes gradients away, the other computes.
type chain struct {
	t       *testing.T
	d       device.Device
	typ     device.DType
	rng     *rand.Rand
	weights []pair
	inputs  []pair
	results []pair

	forward, backward []device.Op
}

// pair is a tensor on the device, and its place in pinned memory.
type pair struct {
	name          string
	there, staged device.Tensor
}

func (c *chain) alloc(typ device.DType, n int, in device.Memory) device.Tensor {
	b, err := c.d.Alloc(int64(n)*typ.Size(), in)
	if err != nil {
		c.t.Fatal(err)
	}
	return b.In(typ, 0, int64(n))
}

// own returns a tensor that stays on the device.
func (c *chain) own(n int) device.Tensor { return c.alloc(c.typ, n, device.Local) }

func (c *chain) stat(n int) device.Tensor { return c.alloc(device.F32, n, device.Local) }

func (c *chain) pair(name string, typ device.DType, n int) pair {
	return pair{name, c.alloc(typ, n, device.Local), c.alloc(typ, n, device.Pinned)}
}

// filled returns a pair of random numbers.
func (c *chain) filled(name string, n int, mean, deviation float64) pair {
	p := c.pair(name, c.typ, n)
	for i := range n {
		optest.Set(p.staged, i, mean+deviation*c.rng.NormFloat64())
	}
	return p
}

// weight returns a pair of random weights, which is brought before each forward.
func (c *chain) weight(name string, n int, mean, deviation float64) device.Tensor {
	p := c.filled(name, n, mean, deviation)
	c.weights = append(c.weights, p)
	return p.there
}

// gradient returns a sum over micro-batches in fp32, which is taken away at the end.
func (c *chain) gradient(name string, n int) device.Tensor {
	p := c.pair(name, device.F32, n)
	c.results = append(c.results, p)
	return p.there
}

// linear is a layer with its gradient.
type linear struct {
	c                  *chain
	w, dw, bias, dbias device.Tensor
	out, in            int
}

func (c *chain) linear(name string, out, in int, biased bool) *linear {
	l := &linear{c: c, out: out, in: in}
	l.w, l.dw = c.weight(name, out*in, 0, 1/math.Sqrt(float64(in))), c.gradient("d"+name, out*in)
	if biased {
		l.bias, l.dbias = c.weight(name+".bias", out, 0, 1), c.gradient("d"+name+".bias", out)
	}
	return l
}

func (l *linear) forward(x device.Tensor) device.Tensor {
	y := l.c.own(chainRows * l.out)
	l.c.forward = append(l.c.forward, &device.MatMul{A: x, B: l.w, Bias: l.bias, C: y, M: chainRows, N: l.out, K: l.in, TransB: true})
	return y
}

// backward adds to the gradients, also to that of the input where more than one layer has it.
func (l *linear) backward(x, dy, dx device.Tensor, add bool) {
	l.c.backward = append(l.c.backward,
		&device.MatMul{A: dy, B: l.w, C: dx, M: chainRows, N: l.in, K: l.out, Accumulate: add},
		&device.MatMul{A: dy, B: x, C: l.dw, M: l.out, N: l.in, K: chainRows, TransA: true, Accumulate: true},
	)
	if !l.bias.Absent() {
		l.c.backward = append(l.c.backward, &device.BiasBackward{DOut: dy, DBias: l.dbias, M: chainRows, N: l.out, Accumulate: true})
	}
}

// build lists the operations of both directions.
func (c *chain) build() {
	x, dout := c.filled("x", chainRows*chainDim, 0, 1), c.filled("dout", chainRows*chainDim, 0, 1)
	pos, start := c.pair("pos", device.I32, chainRows), c.pair("start", device.I32, chainRows)
	cos, sin := c.pair("cos", device.F32, chainLen*chainSize/2), c.pair("sin", device.F32, chainLen*chainSize/2)
	for t := range chainRows {
		i, first := t%chainLen, 0
		if i >= 17 {
			first = 17 // a second document
		}
		pos.staged.I32()[t], start.staged.I32()[t] = int32(i-first), int32(first)
	}
	for i := range chainLen * chainSize / 2 {
		angle := float64(i/(chainSize/2)) * math.Pow(1e4, -float64(i%(chainSize/2))/(chainSize/2))
		optest.Set(cos.staged, i, math.Cos(angle))
		optest.Set(sin.staged, i, math.Sin(angle))
	}
	c.inputs = []pair{x, dout, pos, start, cos, sin}

	// No bias for k: softmax hardly sees it, so its gradient is a small difference.
	w1, w2 := c.weight("norm1", chainDim, 1, 0.2), c.weight("norm2", chainDim, 1, 0.2)
	wq, wk, wv := c.linear("q", chainQ, chainDim, true), c.linear("k", chainKV, chainDim, false), c.linear("v", chainKV, chainDim, true)
	wo := c.linear("o", chainDim, chainQ, false)
	wg, wu, wd := c.linear("gate", chainFFN, chainDim, false), c.linear("up", chainFFN, chainDim, false), c.linear("down", chainDim, chainFFN, false)
	scale := float32(1 / math.Sqrt(chainSize))

	// Forward: x + attention = sum, sum + feed-forward = y, of which the sum is the next block's.
	n1, r1 := c.own(chainRows*chainDim), c.stat(chainRows)
	c.forward = append(c.forward, &device.AddRMSNorm{X: x.there, Weight: w1, Out: n1, RStd: r1, Rows: chainRows, Dim: chainDim, Eps: 1e-6})
	q, k, v := wq.forward(n1), wk.forward(n1), wv.forward(n1)
	attended, lse := c.own(chainRows*chainQ), c.stat(chainRows*chainHeads)
	c.forward = append(c.forward,
		&device.QKNormRoPE{Q: q, K: k, Pos: pos.there, Cos: cos.there, Sin: sin.there, QOut: q, KOut: k, Rows: chainRows, Heads: chainHeads, KVHeads: chainKVHeads, HeadSize: chainSize, Positions: chainLen, Eps: 1e-6},
		&device.Attention{Q: q, K: k, V: v, Start: start.there, Out: attended, LSE: lse, Seqs: chainSeqs, SeqLen: chainLen, Heads: chainHeads, KVHeads: chainKVHeads, HeadSize: chainSize, Scale: scale},
	)
	p := wo.forward(attended)
	sum, n2, r2 := c.own(chainRows*chainDim), c.own(chainRows*chainDim), c.stat(chainRows)
	c.forward = append(c.forward, &device.AddRMSNorm{X: p, Residual: x.there, Weight: w2, Sum: sum, Out: n2, RStd: r2, Rows: chainRows, Dim: chainDim, Eps: 1e-6})
	gate, up, gated := wg.forward(n2), wu.forward(n2), c.own(chainRows*chainFFN)
	c.forward = append(c.forward, &device.SwiGLU{Gate: gate, Up: up, Out: gated, N: chainRows * chainFFN})
	y := wd.forward(gated)
	out := c.pair("y", c.typ, chainRows*chainDim)
	c.forward = append(c.forward, &device.Copy{Src: y, Dst: out.there, N: chainRows * chainDim})

	// Backward, from dout on.
	dgated, dgate, dup := c.own(chainRows*chainFFN), c.own(chainRows*chainFFN), c.own(chainRows*chainFFN)
	wd.backward(gated, dout.there, dgated, false)
	c.backward = append(c.backward, &device.SwiGLUBackward{Gate: gate, Up: up, DOut: dgated, DGate: dgate, DUp: dup, N: chainRows * chainFFN})
	dn2, dsum := c.own(chainRows*chainDim), c.own(chainRows*chainDim)
	wg.backward(n2, dgate, dn2, false)
	wu.backward(n2, dup, dn2, true)
	c.backward = append(c.backward, &device.AddRMSNormBackward{DOut: dn2, DSum: dout.there, Sum: sum, Weight: w2, RStd: r2, DX: dsum, DWeight: c.gradient("dnorm2", chainDim), Rows: chainRows, Dim: chainDim, Accumulate: true})
	dattended, dq, dk, dv := c.own(chainRows*chainQ), c.own(chainRows*chainQ), c.own(chainRows*chainKV), c.own(chainRows*chainKV)
	wo.backward(attended, dsum, dattended, false)
	var parts device.Tensor
	if n := device.AttentionParts(c.typ, chainSeqs, chainLen, chainHeads, chainKVHeads); n > 1 {
		parts = c.stat(n * 2 * chainRows * chainKV)
	}
	c.backward = append(c.backward,
		&device.AttentionBackward{Q: q, K: k, V: v, Start: start.there, Out: attended, LSE: lse, DOut: dattended, D: c.stat(chainRows * chainHeads), Parts: parts, DQ: dq, DK: dk, DV: dv, Seqs: chainSeqs, SeqLen: chainLen, Heads: chainHeads, KVHeads: chainKVHeads, HeadSize: chainSize, Scale: scale},
		&device.QKNormRoPEBackward{DQOut: dq, DKOut: dk, Pos: pos.there, Cos: cos.there, Sin: sin.there, DQ: dq, DK: dk, Rows: chainRows, Heads: chainHeads, KVHeads: chainKVHeads, HeadSize: chainSize, Positions: chainLen},
	)
	dn1, dx := c.own(chainRows*chainDim), c.pair("dx", c.typ, chainRows*chainDim)
	wq.backward(n1, dq, dn1, false)
	wk.backward(n1, dk, dn1, true)
	wv.backward(n1, dv, dn1, true)
	c.backward = append(c.backward, &device.AddRMSNormBackward{DOut: dn1, DSum: dsum, Sum: x.there, Weight: w1, RStd: r1, DX: dx.there, DWeight: c.gradient("dnorm1", chainDim), Rows: chainRows, Dim: chainDim, Accumulate: true})
	c.results = append(c.results, out, dx)
}

// run makes some micro-batches and returns what came out. Nothing but events keeps the streams in order:
// weights are taken away while the block does not need them, as a gathered unit's are.
func (c *chain) run() ([]pair, error) {
	compute, move := c.d.NewStream("compute"), c.d.NewStream("move")
	brought, used := c.d.NewEvent(), c.d.NewEvent()
	carry := func(ps []pair, back bool) {
		for _, p := range ps {
			src, dst := p.staged, p.there
			if back {
				src, dst = dst, src
			}
			move.Launch(&device.Copy{Src: src, Dst: dst, N: int(src.Len)})
		}
	}
	carry(c.inputs, false)
	for range chainSteps {
		carry(c.weights, false)
		move.Record(brought)
		compute.Wait(brought)
		launchAll(compute, c.forward)
		launchAll(compute, c.backward)
		compute.Record(used)
		move.Wait(used)
		for _, p := range c.weights {
			move.Launch(&device.Fill{Dst: p.there, N: int(p.there.Len), Value: float32(math.NaN())})
		}
	}
	carry(c.results, true)
	if err := move.Sync(); err != nil {
		return nil, err
	}
	return c.results, compute.Sync()
}

// tolerance is how far the chain's results may be from another device's, as a share of their size. One
// sum that falls on the other side of a tie, and what follows is rounded independently: in bf16 by 2⁻⁷ of a
// number at most, in the root mean square by √(1/6) of that. In fp32 the sums of up to 128 terms have that
// many roundings of their own, √(128/2) of 2⁻²⁴ (see optest.Tolerance). Eighteen operations follow each
// other from x to dx, as independent ones add up; twice that is what is allowed.
func tolerance(typ device.DType) float64 {
	if typ == device.BF16 {
		return 2 * math.Sqrt(18) * math.Sqrt(1./6) * 0x1p-7
	}
	return 2 * math.Sqrt(18) * 8 * 0x1p-24
}

func TestABlocksForwardAndBackwardAreThoseOfTheReferenceDevice(t *testing.T) {
	seed := optest.Rand(t).Uint64()
	for _, typ := range []device.DType{device.F32, device.BF16} {
		plain := device.NewReference()
		defer plain.Close()
		want := ran(t, plain, typ, seed)
		first := map[string][]byte{} // bytes without graphs
		for _, graphs := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, graphs %v", typ, graphs), func(t *testing.T) {
				gpu := simulated(t, 1, sim.Config{Seed: seed, Pause: time.Millisecond}, cuda.Options{Graphs: graphs})[0]
				for i, p := range ran(t, gpu, typ, seed) {
					if !graphs {
						first[p.name] = bytes.Clone(optest.Bytes(p.staged))
					} else if !bytes.Equal(first[p.name], optest.Bytes(p.staged)) {
						t.Errorf("%s has other bits with graphs", p.name)
					}
					var off, all float64
					for j := range int(p.staged.Len) {
						x, y := optest.At(p.staged, j), optest.At(want[i].staged, j)
						off, all = off+(x-y)*(x-y), all+y*y
					}
					if share := math.Sqrt(off / all); !(share <= tolerance(typ)) {
						t.Errorf("%s is off by %.3g of its size, want %.3g at most", p.name, share, tolerance(typ))
					} else {
						t.Logf("%s is off by %.3g of its size, of %.3g", p.name, share, tolerance(typ))
					}
				}
			})
		}
	}
}

// ran returns what the chain makes of a seed's numbers on a device.
func ran(t *testing.T, d device.Device, typ device.DType, seed uint64) []pair {
	t.Helper()
	c := &chain{t: t, d: d, typ: typ, rng: rand.New(rand.NewPCG(seed, 0))}
	c.build()
	results, err := c.run()
	if err != nil {
		t.Fatal(err)
	}
	return results
}
