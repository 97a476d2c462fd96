package optest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

// Case is an operation that is ready to run.
type Case struct {
	Name string // for t.Run: the operation, its sizes and operands
	Op   device.Op
}

// Cases returns some random operations of every kind on tensors of typ (F32,
// BF16 or F64), each with inputs that its Check and its contract allow. What a
// backward needs of its forward comes from the forward's reference.
func Cases(t testing.TB, rng *rand.Rand, typ device.DType) []Case {
	t.Helper()
	g := generator{NewMemory(t, rng), typ, typ}
	if typ != device.F64 {
		g.stat = device.F32
	}
	var cases []Case
	for _, build := range []func() device.Op{
		g.matMul, g.biasBackward, g.addRMSNorm, g.addRMSNormBackward, g.qkNormRoPE, g.qkNormRoPEBackward,
		g.attention, g.attentionBackward, g.attentionDecode, g.embed, g.embedBackward, g.swiGLU,
		g.swiGLUBackward, g.headLoss, g.reduceSum, g.sumSquares, g.checkFinite, g.adamW, g.cast, g.copy, g.fill,
	} {
		for i := range 4 {
			op := build()
			if err := op.Check(); err != nil {
				t.Fatalf("optest: %v", err)
			}
			cases = append(cases, Case{fmt.Sprintf("%s/%d", device.Format(op), i), op})
		}
	}
	return cases
}

type generator struct {
	Memory
	typ  device.DType
	stat device.DType // of statistics, tables and scales
}

// between returns a number from low to high, both included.
func (g generator) between(low, high int) int { return low + g.rng.IntN(high-low+1) }

func (g generator) coin() bool { return g.rng.IntN(2) == 0 }

func (g generator) oneOf(xs ...int) int { return xs[g.rng.IntN(len(xs))] }

func (g generator) normal(n int) device.Tensor { return g.Normal(g.typ, n, 0, 1) }

func (g generator) out(n int) device.Tensor { return g.Blank(g.typ, n) }

// acc returns an operand that may be accumulated into, in typ or wider.
func (g generator) acc(n int, accumulate bool) device.Tensor {
	typ := g.typ
	if typ == device.BF16 && g.coin() {
		typ = device.F32
	}
	if accumulate {
		return g.Normal(typ, n, 0, 1)
	}
	return g.Blank(typ, n)
}

// maybe returns one of the tensors: an operand that may be another one.
func (g generator) maybe(ts ...device.Tensor) device.Tensor { return ts[g.rng.IntN(len(ts))] }

func (g generator) matMul() device.Op {
	o := &device.MatMul{M: g.between(1, 70), N: g.between(1, 150), K: g.between(1, 150), Accumulate: g.coin()}
	if g.rng.IntN(4) == 0 { // more than one block
		o.M, o.N, o.K = g.between(60, 200), g.between(100, 300), g.between(200, 600)
	}
	switch g.rng.IntN(3) {
	case 0:
		o.TransA = true
	case 1:
		o.TransB = true
	}
	o.A, o.B, o.C = g.normal(o.M*o.K), g.normal(o.K*o.N), g.acc(o.M*o.N, o.Accumulate)
	if !o.Accumulate && g.coin() {
		o.Bias = g.normal(o.N)
	}
	return o
}

func (g generator) biasBackward() device.Op {
	o := &device.BiasBackward{M: g.between(1, 70), N: g.between(1, 150), Accumulate: g.coin()}
	o.DOut, o.DBias = g.normal(o.M*o.N), g.acc(o.N, o.Accumulate)
	return o
}

func (g generator) norm() *device.AddRMSNorm {
	o := &device.AddRMSNorm{Rows: g.between(1, 70), Dim: g.oneOf(1, g.between(1, 150), g.between(1, 150), 1536), Eps: 1e-6}
	n := o.Rows * o.Dim
	o.X, o.Weight = g.normal(n), g.Gains(g.typ, o.Dim)
	o.Out, o.RStd = g.out(n), g.Blank(g.stat, o.Rows)
	if g.coin() {
		o.Residual = g.normal(n)
		o.Sum = g.maybe(o.X, o.Residual, g.out(n))
	}
	return o
}

func (g generator) addRMSNorm() device.Op { return g.norm() }

func (g generator) addRMSNormBackward() device.Op {
	f := g.norm()
	f.Reference()
	n := f.Rows * f.Dim
	o := &device.AddRMSNormBackward{
		DOut: g.normal(n), Sum: f.Sum, Weight: f.Weight, RStd: f.RStd,
		Rows: f.Rows, Dim: f.Dim, Accumulate: g.coin(),
	}
	if f.Sum.Absent() {
		o.Sum = f.X
	}
	o.DX, o.DWeight = g.maybe(o.DOut, g.out(n)), g.acc(f.Dim, o.Accumulate)
	if g.coin() {
		o.DSum = g.normal(n)
		o.DX = g.maybe(o.DX, o.DSum)
	}
	return o
}

// heads returns query heads, key-value heads and a head size.
func (g generator) heads() (heads, kvHeads, size int) {
	kvHeads = g.between(1, 3)
	return kvHeads * g.between(1, 4), kvHeads, g.oneOf(2, 6, 16, 64, 80, 128)
}

func (g generator) rope() *device.QKNormRoPE {
	o := &device.QKNormRoPE{Rows: g.between(1, 70), Positions: g.between(1, 90), Eps: 1e-6}
	o.Heads, o.KVHeads, o.HeadSize = g.heads()
	q, k, half := o.Rows*o.Heads, o.Rows*o.KVHeads, o.HeadSize/2
	o.Q, o.K = g.normal(q*o.HeadSize), g.normal(k*o.HeadSize)
	o.Pos = g.Ints(o.Rows, func(int) int { return g.rng.IntN(o.Positions) })
	o.Cos = g.Floats(g.stat, o.Positions*half, func(i int) float64 { return math.Cos(angle(i/half, i%half, half)) })
	o.Sin = g.Floats(g.stat, o.Positions*half, func(i int) float64 { return math.Sin(angle(i/half, i%half, half)) })
	o.QOut, o.KOut = g.out(q*o.HeadSize), g.out(k*o.HeadSize)
	if g.coin() {
		o.QWeight, o.KWeight = g.Gains(g.typ, o.HeadSize), g.Gains(g.typ, o.HeadSize)
		o.QRStd, o.KRStd = g.Blank(g.stat, q), g.Blank(g.stat, k)
	}
	return o
}

func (g generator) qkNormRoPE() device.Op {
	o := g.rope()
	o.QOut, o.KOut = g.maybe(o.QOut, o.Q), g.maybe(o.KOut, o.K)
	return o
}

func (g generator) qkNormRoPEBackward() device.Op {
	f := g.rope()
	f.Reference()
	o := &device.QKNormRoPEBackward{
		DQOut: g.normal(int(f.Q.Len)), DKOut: g.normal(int(f.K.Len)), Pos: f.Pos, Cos: f.Cos, Sin: f.Sin,
		Rows: f.Rows, Heads: f.Heads, KVHeads: f.KVHeads, HeadSize: f.HeadSize, Positions: f.Positions, Accumulate: g.coin(),
	}
	o.DQ, o.DK = g.maybe(o.DQOut, g.out(int(f.Q.Len))), g.maybe(o.DKOut, g.out(int(f.K.Len)))
	if !f.QWeight.Absent() {
		o.Q, o.K, o.QWeight, o.KWeight, o.QRStd, o.KRStd = f.Q, f.K, f.QWeight, f.KWeight, f.QRStd, f.KRStd
		o.DQWeight, o.DKWeight = g.acc(f.HeadSize, o.Accumulate), g.acc(f.HeadSize, o.Accumulate)
		o.Parts = g.Blank(g.stat, device.QKNormParts(f.Rows, f.Heads)*2*f.HeadSize)
	}
	return o
}

// Starts returns attention's Start of sequences that documents share.
func (m Memory) Starts(seqs, seqLen int) device.Tensor {
	start := 0
	return m.Ints(seqs*seqLen, func(t int) int {
		i := t % seqLen
		if i == 0 {
			start = 0
		} else if m.rng.IntN(1+seqLen/3) == 0 {
			start = i
		}
		return start
	})
}

func (g generator) attend() *device.Attention {
	o := &device.Attention{Seqs: g.between(1, 2), SeqLen: g.oneOf(1, g.between(1, 70), g.between(1, 70), 129)}
	o.Heads, o.KVHeads, o.HeadSize = g.heads()
	o.Scale = float32(1 / math.Sqrt(float64(o.HeadSize)))
	rows := o.Seqs * o.SeqLen
	q, k := rows*o.Heads*o.HeadSize, rows*o.KVHeads*o.HeadSize
	o.Q, o.K, o.V, o.Start = g.normal(q), g.normal(k), g.normal(k), g.Starts(o.Seqs, o.SeqLen)
	o.Out, o.LSE = g.out(q), g.Blank(g.stat, rows*o.Heads)
	return o
}

func (g generator) attention() device.Op { return g.attend() }

func (g generator) attentionBackward() device.Op {
	f := g.attend()
	f.Reference()
	q, k := int(f.Q.Len), int(f.K.Len)
	return &device.AttentionBackward{
		Q: f.Q, K: f.K, V: f.V, Start: f.Start, Out: f.Out, LSE: f.LSE, DOut: g.normal(q),
		D: g.Blank(g.stat, int(f.LSE.Len)), Parts: g.Parts(f), DQ: g.out(q), DK: g.out(k), DV: g.out(k),
		Seqs: f.Seqs, SeqLen: f.SeqLen, Heads: f.Heads, KVHeads: f.KVHeads, HeadSize: f.HeadSize, Scale: f.Scale,
	}
}

// Parts returns what the backward of f needs of that name.
func (m Memory) Parts(f *device.Attention) device.Tensor {
	parts := device.AttentionParts(f.Q.Type, f.Seqs, f.SeqLen, f.Heads, f.KVHeads)
	if parts == 1 {
		return device.Tensor{}
	}
	return m.Blank(device.F32, parts*2*int(f.K.Len))
}

func (g generator) attentionDecode() device.Op {
	o := &device.AttentionDecode{Seqs: g.between(1, 4), SeqLen: g.oneOf(1, g.between(1, 9)), CacheLen: g.between(1, 70)}
	o.Heads, o.KVHeads, o.HeadSize = g.heads()
	o.Scale = float32(1 / math.Sqrt(float64(o.HeadSize)))
	rows := o.Seqs * o.SeqLen
	q, k, cache := rows*o.Heads*o.HeadSize, rows*o.KVHeads*o.HeadSize, o.Seqs*o.CacheLen*o.KVHeads*o.HeadSize
	o.Q, o.K, o.V, o.Out = g.normal(q), g.normal(k), g.normal(k), g.out(q)
	o.KCache, o.VCache = g.normal(cache), g.normal(cache)
	o.Cached = g.Ints(o.Seqs, func(int) int { return g.between(0, o.CacheLen) })
	return o
}
