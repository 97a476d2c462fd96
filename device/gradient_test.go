package device_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	. "github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// gradient is an input of a forward operation and what a backward made of it.
type gradient struct {
	name string
	x, d Tensor
	base []float64 // what d accumulated onto; nil: nothing
}

// output is an output of the forward operation and the gradient it received.
type output struct{ y, d []float64 }

func values(t Tensor) []float64 {
	xs := make([]float64, t.Len)
	for i := range xs {
		xs[i] = optest.At(t, i)
	}
	return xs
}

// checkGradients compares each gradient with central differences of the
// scalar Σ y·d that forward makes, at up to 40 elements of each input. A
// difference is off by a sixth of the step's square times the third derivative,
// which is large where a norm's input is nearly zero; three times that is how
// far the difference over twice the step is from it. Its roundoff is of
// 1e-16/1e-5, for which 1e-6 has room.
func checkGradients(t *testing.T, forward func() []output, gradients []gradient) {
	t.Helper()
	loss := func() (sum float64) {
		for _, o := range forward() {
			for i, y := range o.y {
				sum += y * o.d[i]
			}
		}
		return sum
	}
	for _, g := range gradients {
		got, scale := values(g.d), 0.0
		for i := range got {
			if g.base != nil {
				got[i] -= g.base[i]
			}
			scale = max(scale, math.Abs(got[i]))
		}
		stride := 1 + len(got)/40
		for i := 0; i < len(got); i += stride {
			x := g.x.F64()[i]
			difference := func(step float64) float64 {
				g.x.F64()[i] = x + step
				up := loss()
				g.x.F64()[i] = x - step
				down := loss()
				g.x.F64()[i] = x
				return (up - down) / (2 * step)
			}
			want, wide := difference(1e-5), difference(2e-5)
			if allowed := 1e-6*(1+scale) + math.Abs(wide-want); !(math.Abs(got[i]-want) <= allowed) {
				t.Errorf("d%s[%d] is %v, differences say %v within %.2g", g.name, i, got[i], want, allowed)
			}
		}
	}
}

// trials runs a test some times on memory and random numbers of its own.
func trials(t *testing.T, n int, f func(t *testing.T, m optest.Memory, between func(low, high int) int)) {
	t.Helper()
	for i := range n {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			rng := optest.Rand(t)
			f(t, optest.NewMemory(t, rng), func(low, high int) int { return low + rng.IntN(high-low+1) })
		})
	}
}

func mustRun(t *testing.T, op Op) {
	t.Helper()
	if err := op.Check(); err != nil {
		t.Fatal(err)
	}
	op.Reference()
}

// accumulator returns a gradient's operand and what it holds before.
func accumulator(m optest.Memory, n int, accumulate bool) (Tensor, []float64) {
	if !accumulate {
		return m.Blank(F64, n), nil
	}
	t := m.Normal(F64, n, 0, 1)
	return t, values(t)
}

func TestTheThreeProductsOfALinearLayerAreEachOthersGradients(t *testing.T) {
	trials(t, 6, func(t *testing.T, m optest.Memory, between func(int, int) int) {
		rows, in, out := between(1, 9), between(1, 9), between(1, 9)
		f := &MatMul{
			A: m.Normal(F64, rows*in, 0, 1), B: m.Normal(F64, out*in, 0, 1), Bias: m.Normal(F64, out, 0, 1),
			C: m.Blank(F64, rows*out), M: rows, N: out, K: in, TransB: true,
		}
		dout, accumulate := m.Normal(F64, rows*out, 0, 1), between(0, 1) == 1
		dx := &MatMul{A: dout, B: f.B, C: m.Blank(F64, rows*in), M: rows, N: in, K: out}
		dw := &MatMul{A: dout, B: f.A, M: out, N: in, K: rows, TransA: true, Accumulate: accumulate}
		db := &BiasBackward{DOut: dout, M: rows, N: out, Accumulate: accumulate}
		var baseW, baseB []float64
		dw.C, baseW = accumulator(m, out*in, accumulate)
		db.DBias, baseB = accumulator(m, out, accumulate)
		for _, op := range []Op{f, dx, dw, db} {
			mustRun(t, op)
		}
		checkGradients(t, func() []output {
			f.Reference()
			return []output{{f.C.F64(), dout.F64()}}
		}, []gradient{{"X", f.A, dx.C, nil}, {"W", f.B, dw.C, baseW}, {"Bias", f.Bias, db.DBias, baseB}})
	})
}

func TestAddRMSNormsGradient(t *testing.T) {
	trials(t, 12, func(t *testing.T, m optest.Memory, between func(int, int) int) {
		rows, dim := between(1, 9), between(1, 30)
		n := rows * dim
		f := &AddRMSNorm{
			X: m.Normal(F64, n, 0, 1), Weight: m.Normal(F64, dim, 1, 0.3), Out: m.Blank(F64, n),
			RStd: m.Blank(F64, rows), Rows: rows, Dim: dim, Eps: 1e-6,
		}
		b := &AddRMSNormBackward{
			DOut: m.Normal(F64, n, 0, 1), Sum: f.X, Weight: f.Weight, RStd: f.RStd,
			Rows: rows, Dim: dim, Accumulate: between(0, 1) == 1,
		}
		if between(0, 1) == 1 {
			f.Residual, f.Sum = m.Normal(F64, n, 0, 1), m.Blank(F64, n)
			b.Sum = f.Sum
		}
		dout, dsum := values(b.DOut), make([]float64, n)
		b.DX = []Tensor{b.DOut, m.Blank(F64, n)}[between(0, 1)]
		if between(0, 1) == 1 { // the residual stream's own gradient
			b.DSum = m.Normal(F64, n, 0, 1)
			dsum = values(b.DSum)
			b.DX = []Tensor{b.DX, b.DSum}[between(0, 1)]
		}
		var base []float64
		b.DWeight, base = accumulator(m, dim, b.Accumulate)
		mustRun(t, f)
		mustRun(t, b)
		gradients := []gradient{{"X", f.X, b.DX, nil}, {"Weight", f.Weight, b.DWeight, base}}
		if !f.Residual.Absent() {
			gradients = append(gradients, gradient{"Residual", f.Residual, b.DX, nil})
		}
		checkGradients(t, func() []output {
			f.Reference()
			return []output{{f.Out.F64(), dout}, {values(b.Sum), dsum}}
		}, gradients)
	})
}

func TestQKNormRoPEsGradient(t *testing.T) {
	trials(t, 10, func(t *testing.T, m optest.Memory, between func(int, int) int) {
		rows, kv, size, positions := between(1, 7), between(1, 3), 2*between(1, 8), between(1, 9)
		heads := kv * between(1, 3)
		q, k, half := rows*heads, rows*kv, size/2
		f := &QKNormRoPE{
			Q: m.Normal(F64, q*size, 0, 1), K: m.Normal(F64, k*size, 0, 1), QOut: m.Blank(F64, q*size), KOut: m.Blank(F64, k*size),
			Pos:  m.Ints(rows, func(int) int { return between(0, positions-1) }),
			Cos:  m.Floats(F64, positions*half, func(i int) float64 { return math.Cos(float64(i)) }),
			Sin:  m.Floats(F64, positions*half, func(i int) float64 { return math.Sin(float64(i)) }),
			Rows: rows, Heads: heads, KVHeads: kv, HeadSize: size, Positions: positions, Eps: 1e-6,
		}
		b := &QKNormRoPEBackward{
			DQOut: m.Normal(F64, q*size, 0, 1), DKOut: m.Normal(F64, k*size, 0, 1), Pos: f.Pos, Cos: f.Cos, Sin: f.Sin,
			Rows: rows, Heads: heads, KVHeads: kv, HeadSize: size, Positions: positions,
		}
		dq, dk := values(b.DQOut), values(b.DKOut)
		b.DQ, b.DK = []Tensor{b.DQOut, m.Blank(F64, q*size)}[between(0, 1)], []Tensor{b.DKOut, m.Blank(F64, k*size)}[between(0, 1)]
		gradients := []gradient{{"Q", f.Q, b.DQ, nil}, {"K", f.K, b.DK, nil}}
		if between(0, 1) == 1 {
			f.QWeight, f.KWeight = m.Normal(F64, size, 1, 0.3), m.Normal(F64, size, 1, 0.3)
			f.QRStd, f.KRStd = m.Blank(F64, q), m.Blank(F64, k)
			b.Q, b.K, b.QWeight, b.KWeight, b.QRStd, b.KRStd = f.Q, f.K, f.QWeight, f.KWeight, f.QRStd, f.KRStd
			b.Parts, b.Accumulate = m.Blank(F64, QKNormParts(rows, heads)*2*size), between(0, 1) == 1
			var baseQ, baseK []float64
			b.DQWeight, baseQ = accumulator(m, size, b.Accumulate)
			b.DKWeight, baseK = accumulator(m, size, b.Accumulate)
			gradients = append(gradients, gradient{"QWeight", f.QWeight, b.DQWeight, baseQ}, gradient{"KWeight", f.KWeight, b.DKWeight, baseK})
		}
		mustRun(t, f)
		mustRun(t, b)
		checkGradients(t, func() []output {
			f.Reference()
			return []output{{f.QOut.F64(), dq}, {f.KOut.F64(), dk}}
		}, gradients)
	})
}

func TestAttentionsGradient(t *testing.T) {
	trials(t, 8, func(t *testing.T, m optest.Memory, between func(int, int) int) {
		seqs, length, kv, size := between(1, 3), between(1, 13), between(1, 3), 2*between(1, 5)
		heads := kv * between(1, 3)
		rows := seqs * length
		q, k := rows*heads*size, rows*kv*size
		f := &Attention{
			Q: m.Normal(F64, q, 0, 1), K: m.Normal(F64, k, 0, 1), V: m.Normal(F64, k, 0, 1), Start: m.Starts(seqs, length),
			Out: m.Blank(F64, q), LSE: m.Blank(F64, rows*heads),
			Seqs: seqs, SeqLen: length, Heads: heads, KVHeads: kv, HeadSize: size, Scale: 0.7,
		}
		mustRun(t, f)
		b := &AttentionBackward{
			Q: f.Q, K: f.K, V: f.V, Start: f.Start, Out: f.Out, LSE: f.LSE, DOut: m.Normal(F64, q, 0, 1),
			D: m.Blank(F64, rows*heads), DQ: m.Blank(F64, q), DK: m.Blank(F64, k), DV: m.Blank(F64, k),
			Seqs: seqs, SeqLen: length, Heads: heads, KVHeads: kv, HeadSize: size, Scale: f.Scale,
		}
		mustRun(t, b)
		checkGradients(t, func() []output {
			f.Reference()
			return []output{{f.Out.F64(), b.DOut.F64()}}
		}, []gradient{{"Q", f.Q, b.DQ, nil}, {"K", f.K, b.DK, nil}, {"V", f.V, b.DV, nil}})
	})
}

func TestSwiGLUsGradient(t *testing.T) {
	trials(t, 6, func(t *testing.T, m optest.Memory, between func(int, int) int) {
		n := between(1, 40)
		f := &SwiGLU{Gate: m.Normal(F64, n, 0, 3), Up: m.Normal(F64, n, 0, 1), Out: m.Blank(F64, n), N: n}
		b := &SwiGLUBackward{
			Gate: m.Floats(F64, n, func(i int) float64 { return f.Gate.F64()[i] }),
			Up:   m.Floats(F64, n, func(i int) float64 { return f.Up.F64()[i] }), DOut: m.Normal(F64, n, 0, 1), N: n,
		}
		dout := values(b.DOut)
		b.DGate = []Tensor{b.Gate, b.DOut, m.Blank(F64, n)}[between(0, 2)]
		b.DUp = []Tensor{b.Up, m.Blank(F64, n)}[between(0, 1)]
		mustRun(t, b)
		checkGradients(t, func() []output {
			f.Reference()
			return []output{{f.Out.F64(), dout}}
		}, []gradient{{"Gate", f.Gate, b.DGate, nil}, {"Up", f.Up, b.DUp, nil}})
	})
}

func TestEmbedsGradient(t *testing.T) {
	trials(t, 4, func(t *testing.T, m optest.Memory, between func(int, int) int) {
		rows, dim, vocab := between(1, 20), between(1, 9), between(1, 9)
		f := &Embed{
			Table: m.Normal(F64, vocab*dim, 0, 1), IDs: m.Ints(rows, func(int) int { return between(0, vocab-1) }),
			Out: m.Blank(F64, rows*dim), Rows: rows, Dim: dim, Vocab: vocab,
		}
		b := &EmbedBackward{DOut: m.Normal(F64, rows*dim, 0, 1), IDs: f.IDs, Rows: rows, Dim: dim, Vocab: vocab}
		var base []float64
		b.DTable, base = accumulator(m, vocab*dim, true)
		mustRun(t, b)
		checkGradients(t, func() []output {
			f.Reference()
			return []output{{f.Out.F64(), b.DOut.F64()}}
		}, []gradient{{"Table", f.Table, b.DTable, base}})
	})
}

func TestHeadLosssGradientIsZeroInMaskedRows(t *testing.T) {
	trials(t, 6, func(t *testing.T, m optest.Memory, between func(int, int) int) {
		rows, vocab := between(2, 9), between(1, 40)
		logits := m.Normal(F64, rows*vocab, 0, 3)
		f := &HeadLoss{
			Logits: logits, Targets: m.Ints(rows, func(i int) int {
				if i == 0 {
					return -1
				}
				return max(-1, between(-vocab, vocab-1))
			}),
			Loss: m.Blank(F64, rows), Rows: rows, Vocab: vocab,
		}
		b := m.Clone(f).(*HeadLoss)
		b.Backward, b.Scale = true, m.Floats(F64, 1, func(int) float64 { return 0.3 })
		mustRun(t, b)
		scales := make([]float64, rows)
		for i, target := range f.Targets.I32() {
			scales[i] = 0.3
			if target >= 0 {
				continue
			}
			if b.Loss.F64()[i] != 0 || slices.ContainsFunc(b.Logits.F64()[i*vocab:(i+1)*vocab], func(d float64) bool { return d != 0 }) {
				t.Fatalf("masked row %d has a loss or a gradient", i)
			}
		}
		checkGradients(t, func() []output {
			f.Reference()
			return []output{{f.Loss.F64(), scales}}
		}, []gradient{{"Logits", logits, b.Logits, nil}})
	})
}
