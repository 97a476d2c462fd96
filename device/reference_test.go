package device_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	. "github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func near(t *testing.T, what string, got []float64, want ...float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= 1e-12*(1+math.Abs(want[i]))) {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
	}
}

// vector returns the numbers as a tensor.
func vector(m optest.Memory, xs ...float64) Tensor {
	return m.Floats(F64, len(xs), func(i int) float64 { return xs[i] })
}

func ints(m optest.Memory, xs ...int) Tensor {
	return m.Ints(len(xs), func(i int) int { return xs[i] })
}

func TestValuesWorkedOutByHand(t *testing.T) {
	m := optest.NewMemory(t, nil)

	mm := &MatMul{A: vector(m, 1, 2, 3, 4, 5, 6), B: vector(m, 1, 0, 2, 1, 0, 3), C: m.Blank(F64, 4), M: 2, N: 2, K: 3}
	mustRun(t, mm) // [1 2 3; 4 5 6] · [1 0; 2 1; 0 3]
	near(t, "MatMul", values(mm.C), 5, 11, 14, 23)
	mm = &MatMul{A: vector(m, 1, 4, 2, 5, 3, 6), B: mm.B, C: mm.C, M: 2, N: 2, K: 3, TransA: true, Accumulate: true}
	mustRun(t, mm)
	near(t, "MatMul of Aᵀ, accumulating", values(mm.C), 10, 22, 28, 46)
	mm = &MatMul{A: vector(m, 1, 2, 3, 4, 5, 6), B: vector(m, 1, 2, 0, 0, 1, 3), Bias: vector(m, 100, 200), C: mm.C, M: 2, N: 2, K: 3, TransB: true}
	mustRun(t, mm)
	near(t, "MatMul of Bᵀ with bias", values(mm.C), 105, 211, 114, 223)

	norm := &AddRMSNorm{
		X: vector(m, 1, 3), Residual: vector(m, 2, 1), Weight: vector(m, 10, 1), Sum: m.Blank(F64, 2), Out: m.Blank(F64, 2),
		RStd: m.Blank(F64, 1), Rows: 1, Dim: 2,
	}
	mustRun(t, norm) // √((9+16)/2)
	near(t, "AddRMSNorm's sum", values(norm.Sum), 3, 4)
	near(t, "AddRMSNorm", values(norm.Out), 30/math.Sqrt(12.5), 4/math.Sqrt(12.5))
	near(t, "AddRMSNorm's RStd", values(norm.RStd), 1/math.Sqrt(12.5))

	rope := &QKNormRoPE{
		Q: vector(m, 1, 2, 3, 4), K: vector(m, 5, 6, 7, 8), Pos: ints(m, 1), Cos: vector(m, 1, 1, 0, 1), Sin: vector(m, 0, 0, 1, 0),
		QOut: m.Blank(F64, 4), KOut: m.Blank(F64, 4), Rows: 1, Heads: 1, KVHeads: 1, HeadSize: 4, Positions: 2,
	}
	mustRun(t, rope) // pair (0,2) by a right angle, pair (1,3) not at all
	near(t, "RoPE of Q", values(rope.QOut), -3, 2, 1, 4)
	near(t, "RoPE of K", values(rope.KOut), -7, 6, 5, 8)

	// Queries of zeros weigh all rows that they see alike.
	att := &Attention{
		Q: vector(m, make([]float64, 8)...), K: vector(m, 1, 2, 3, 4, 5, 6, 7, 8), V: vector(m, 1, 10, 3, 30, 5, 50, 7, 70),
		Start: ints(m, 0, 0, 2, 2), Out: m.Blank(F64, 8), LSE: m.Blank(F64, 4), Seqs: 1, SeqLen: 4, Heads: 1, KVHeads: 1, HeadSize: 2, Scale: 1,
	}
	mustRun(t, att)
	near(t, "Attention", values(att.Out), 1, 10, 2, 20, 5, 50, 6, 60)
	near(t, "Attention's LSE", values(att.LSE), 0, math.Ln2, 0, math.Ln2)

	// Query heads 0 and 1 read key-value head 0, heads 2 and 3 head 1.
	gqa := &Attention{
		Q: vector(m, make([]float64, 8)...), K: vector(m, 1, 2, 3, 4), V: vector(m, 5, 6, 7, 8), Start: ints(m, 0),
		Out: m.Blank(F64, 8), LSE: m.Blank(F64, 4), Seqs: 1, SeqLen: 1, Heads: 4, KVHeads: 2, HeadSize: 2, Scale: 1,
	}
	mustRun(t, gqa)
	near(t, "Attention of four heads on two", values(gqa.Out), 5, 6, 5, 6, 7, 8, 7, 8)

	loss := &HeadLoss{
		Logits: vector(m, 7, 7, 7, 7, 0, math.Log(3), math.Inf(-1), math.Inf(-1)), Targets: ints(m, 2, 1), Scale: vector(m, 4),
		Loss: m.Blank(F64, 2), Rows: 2, Vocab: 4, Backward: true,
	}
	mustRun(t, loss)
	near(t, "HeadLoss", values(loss.Loss), math.Log(4), math.Log(4./3))
	near(t, "HeadLoss's gradient", values(loss.Logits), 1, 1, -3, 1, 1, -1, 0, 0)

	glu := &SwiGLU{Gate: vector(m, 0, math.Log(3), -800), Up: vector(m, 5, 4, 1), Out: m.Blank(F64, 3), N: 3}
	mustRun(t, glu)
	near(t, "SwiGLU", values(glu.Out), 0, 3*math.Log(3), 0)

	sum := &ReduceSum{Srcs: []Tensor{vector(m, 1, 2), vector(m, 10, 20), vector(m, 100, 200)}, Dst: m.Blank(F64, 2), N: 2}
	mustRun(t, sum)
	near(t, "ReduceSum", values(sum.Dst), 111, 222)

	fill := &Fill{Dst: m.Blank(I32, 2), N: 2, Value: -1}
	mustRun(t, fill)
	near(t, "Fill", values(fill.Dst), -1, -1)
}

func TestReduceSumAddsInFloat32InTheSourcesOrder(t *testing.T) {
	m := optest.NewMemory(t, nil)
	one := func(x float64) Tensor { return m.Floats(F32, 1, func(int) float64 { return x }) }
	big, small := one(1<<24), one(1)
	op := &ReduceSum{Srcs: []Tensor{big, small, small}, Dst: m.Blank(F32, 1), N: 1}
	mustRun(t, op)
	if got := op.Dst.F32()[0]; got != 1<<24 { // float64 would give two more
		t.Fatal(got)
	}
	op.Srcs = []Tensor{small, small, big}
	mustRun(t, op)
	if got := op.Dst.F32()[0]; got != 1<<24+2 {
		t.Fatal(got)
	}
}

// An operand that may be another one makes no difference.
func TestSharedOperandsChangeNoResult(t *testing.T) {
	rng := optest.Rand(t)
	m, shared := optest.NewMemory(t, rng), 0
	for _, typ := range []DType{F32, BF16} {
		for range 3 {
			for _, c := range optest.Cases(t, rng, typ) {
				apart, seen := Clone(c.Op), map[Addr]bool{}
				for _, o := range Operands(apart) {
					seen[o.T.Addr] = true
				}
				if len(seen) == len(Operands(apart)) {
					continue
				}
				shared++
				for _, o := range Operands(apart) {
					own := m.Blank(o.T.Type, int(o.T.Len))
					copy(optest.Bytes(own), optest.Bytes(*o.T))
					*o.T = own
				}
				c.Op.Reference()
				apart.Reference()
				want := Operands(apart)
				for i, o := range Operands(c.Op) {
					if o.Access&Write != 0 && !bytes.Equal(optest.Bytes(*o.T), optest.Bytes(*want[i].T)) {
						t.Errorf("%s: %s differs", c.Name, o.Name)
					}
				}
			}
		}
	}
	if shared < 15 {
		t.Fatalf("only %d operations shared operands", shared)
	}
}

func TestAStoredSumNormalisesToTheSameBits(t *testing.T) {
	rng := optest.Rand(t)
	m := optest.NewMemory(t, rng)
	for _, typ := range []DType{F32, BF16} {
		f := &AddRMSNorm{
			X: m.Normal(typ, 63, 0, 1), Residual: m.Normal(typ, 63, 0, 1), Weight: m.Normal(typ, 21, 1, 0.2),
			Sum: m.Blank(typ, 63), Out: m.Blank(typ, 63), RStd: m.Blank(F32, 3), Rows: 3, Dim: 21, Eps: 1e-6,
		}
		mustRun(t, f)
		again := &AddRMSNorm{X: f.Sum, Weight: f.Weight, Out: m.Blank(typ, 63), RStd: m.Blank(F32, 3), Rows: 3, Dim: 21, Eps: 1e-6}
		mustRun(t, again)
		if !bytes.Equal(optest.Bytes(f.Out), optest.Bytes(again.Out)) || !bytes.Equal(optest.Bytes(f.RStd), optest.Bytes(again.RStd)) {
			t.Errorf("%s: recomputing from Sum gives other bits", typ)
		}
	}
}

// A sequence is prefilled in chunks, the last one with surplus rows, and then
// continued row by row; every row must be as in Attention over all of it.
func TestDecodingEqualsAttentionRowByRow(t *testing.T) {
	trials(t, 8, func(t *testing.T, m optest.Memory, between func(int, int) int) {
		seqs, kv, size, chunk := between(1, 3), between(1, 2), 2*between(1, 4), between(1, 5)
		heads, total := kv*between(1, 3), between(6, 17)
		q, k := heads*size, kv*size
		full := &Attention{
			Q: m.Normal(F64, seqs*total*q, 0, 1), K: m.Normal(F64, seqs*total*k, 0, 1), V: m.Normal(F64, seqs*total*k, 0, 1),
			Start: m.Ints(seqs*total, func(int) int { return 0 }), Out: m.Blank(F64, seqs*total*q), LSE: m.Blank(F64, seqs*total*heads),
			Seqs: seqs, SeqLen: total, Heads: heads, KVHeads: kv, HeadSize: size, Scale: 0.6,
		}
		mustRun(t, full)
		cache := seqs * total * k
		kcache, vcache := m.Blank(F64, cache), m.Blank(F64, cache) // NaNs: read too far and it shows
		cached := m.Ints(seqs, func(int) int { return 0 })
		prompts := make([]int, seqs)
		for s := range prompts {
			prompts[s] = between(1, total)
		}
		// step decodes up to n rows of every sequence, of which real(s) count.
		step := func(n int, real func(s int) int) {
			op := &AttentionDecode{
				Q: m.Normal(F64, seqs*n*q, 0, 1), K: m.Normal(F64, seqs*n*k, 0, 1), V: m.Normal(F64, seqs*n*k, 0, 1),
				Cached: cached, KCache: kcache, VCache: vcache, Out: m.Blank(F64, seqs*n*q),
				Seqs: seqs, SeqLen: n, CacheLen: total, Heads: heads, KVHeads: kv, HeadSize: size, Scale: 0.6,
			}
			for s := range seqs {
				for i := range real(s) {
					from, to := s*total+int(cached.I32()[s])+i, s*n+i
					copy(op.Q.F64()[to*q:][:q], full.Q.F64()[from*q:])
					copy(op.K.F64()[to*k:][:k], full.K.F64()[from*k:])
					copy(op.V.F64()[to*k:][:k], full.V.F64()[from*k:])
				}
			}
			mustRun(t, op)
			for s := range seqs {
				for i := range n {
					place, got := int(cached.I32()[s])+i, op.Out.F64()[(s*n+i)*q:][:q]
					if i < real(s) {
						near(t, fmt.Sprintf("sequence %d row %d", s, place), got, full.Out.F64()[(s*total+place)*q:][:q]...)
					} else if place >= total {
						near(t, "a row beyond the cache", got, make([]float64, q)...)
					}
				}
			}
			for s := range seqs {
				cached.I32()[s] += int32(real(s))
			}
		}
		for range (total + chunk - 1) / chunk {
			step(chunk, func(s int) int { return min(chunk, max(0, prompts[s]-int(cached.I32()[s]))) })
		}
		for range total {
			step(1, func(s int) int { return min(1, total-int(cached.I32()[s])) })
		}
		for i := range seqs * total * k {
			if kcache.F64()[i] != full.K.F64()[i] || vcache.F64()[i] != full.V.F64()[i] {
				t.Fatalf("the caches differ from the keys and values at %d", i)
			}
		}
	})
}

func TestALossInChunksIsTheWholeLoss(t *testing.T) {
	trials(t, 4, func(t *testing.T, m optest.Memory, between func(int, int) int) {
		rows, vocab := between(2, 20), between(1, 90)
		whole := &HeadLoss{
			Logits: m.Normal(F32, rows*vocab, 0, 3), Targets: m.Ints(rows, func(int) int { return between(-1, vocab-1) }),
			Scale: m.Floats(F32, 1, func(int) float64 { return 0.1 }), Loss: m.Blank(F32, rows), Rows: rows, Vocab: vocab, Backward: true,
		}
		parts := m.Clone(whole).(*HeadLoss)
		mustRun(t, whole)
		for from := 0; from < rows; {
			n := between(1, rows-from)
			mustRun(t, &HeadLoss{
				Logits: parts.Logits.Slice(int64(from*vocab), int64(n*vocab)), Targets: parts.Targets.Slice(int64(from), int64(n)),
				Scale: parts.Scale, Loss: parts.Loss.Slice(int64(from), int64(n)), Rows: n, Vocab: vocab, Backward: true,
			})
			from += n
		}
		if err := optest.Compare(parts, whole, nil); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSumSquaresAddsSixteenLanesABlock(t *testing.T) {
	rng := optest.Rand(t)
	m := optest.NewMemory(t, rng)
	x := m.Normal(F32, 2*NormBlock+100, 0, 1)
	op := &SumSquares{X: x, Parts: m.Blank(F64, 3), Out: m.Blank(F64, 1), N: int(x.Len)}
	mustRun(t, op)
	want := 0.0
	for _, block := range [][]float32{x.F32()[:NormBlock], x.F32()[NormBlock : 2*NormBlock], x.F32()[2*NormBlock:]} {
		ofBlock := 0.0
		for lane := range 16 {
			ofLane := 0.0
			for i := lane; i < len(block); i += 16 {
				ofLane += float64(block[i]) * float64(block[i]) // exact
			}
			ofBlock += ofLane
		}
		want += ofBlock
	}
	if got := op.Out.F64()[0]; got != want {
		t.Fatalf("%v, want the bits of %v", got, want)
	}
}

// The blocks' sums, computed one by one and added in order, are the whole's
// bits: so whoever holds multiples of NormBlock can hand in his part.
func TestSumSquaresDoesNotDependOnTheSplitAtBlocks(t *testing.T) {
	rng := optest.Rand(t)
	m := optest.NewMemory(t, rng)
	for _, typ := range []DType{F32, BF16, F64} {
		n := int64(5*NormBlock + 1 + rng.IntN(NormBlock))
		whole := &SumSquares{X: m.Normal(typ, int(n), 0, 1), Parts: m.Blank(F64, 6), Out: m.Blank(F64, 1), N: int(n)}
		mustRun(t, whole)
		total, part, out := 0.0, m.Blank(F64, 1), m.Blank(F64, 1)
		for from := int64(0); from < n; from += NormBlock {
			length := min(NormBlock, n-from)
			mustRun(t, &SumSquares{X: whole.X.Slice(from, length), Parts: part, Out: out, N: int(length)})
			total += out.F64()[0]
		}
		if got := whole.Out.F64()[0]; got != total {
			t.Errorf("%s: %v, the blocks' %v", typ, got, total)
		}
		plain := 0.0
		for _, x := range values(whole.X) {
			plain += x * x
		}
		near(t, "SumSquares", values(whole.Out), plain)
	}
}

func TestANumberOutOfRangeIsRefusedWithItsPlace(t *testing.T) {
	m := optest.NewMemory(t, optest.Rand(t))
	f := func(n int) Tensor { return m.Normal(F32, n, 0, 1) }
	embed := &Embed{Table: f(6), Out: f(4), Rows: 2, Dim: 2, Vocab: 3}
	embedBackward := &EmbedBackward{DOut: f(4), DTable: f(6), Rows: 2, Dim: 2, Vocab: 3}
	loss := &HeadLoss{Logits: f(6), Loss: f(2), Rows: 2, Vocab: 3}
	attention := &Attention{Q: f(8), K: f(8), V: f(8), Out: f(8), LSE: f(4), Seqs: 2, SeqLen: 2, Heads: 1, KVHeads: 1, HeadSize: 2}
	attentionBackward := &AttentionBackward{
		Q: f(8), K: f(8), V: f(8), Out: f(8), LSE: f(4), DOut: f(8), D: f(4), DQ: f(8), DK: f(8), DV: f(8),
		Seqs: 2, SeqLen: 2, Heads: 1, KVHeads: 1, HeadSize: 2,
	}
	decode := &AttentionDecode{Q: f(4), K: f(4), V: f(4), KCache: f(8), VCache: f(8), Out: f(4), Seqs: 2, SeqLen: 1, CacheLen: 2, Heads: 1, KVHeads: 1, HeadSize: 2}
	rope := &QKNormRoPE{Q: f(4), K: f(4), Cos: f(3), Sin: f(3), QOut: f(4), KOut: f(4), Rows: 2, Heads: 1, KVHeads: 1, HeadSize: 2, Positions: 3}
	ropeBackward := &QKNormRoPEBackward{DQOut: f(4), DKOut: f(4), Cos: f(3), Sin: f(3), DQ: f(4), DK: f(4), Rows: 2, Heads: 1, KVHeads: 1, HeadSize: 2, Positions: 3}
	for _, c := range []struct {
		op      Op
		operand *Tensor
		values  []int
		want    string
	}{
		{embed, &embed.IDs, []int{0, 3}, "Embed: IDs[1] is 3, want 0 to 2"},
		{embed, &embed.IDs, []int{-1, 0}, "Embed: IDs[0] is -1, want 0 to 2"},
		{embedBackward, &embedBackward.IDs, []int{2, 3}, "EmbedBackward: IDs[1] is 3, want 0 to 2"},
		{loss, &loss.Targets, []int{-1, 3}, "HeadLoss: Targets[1] is 3, want -1 to 2"},
		{loss, &loss.Targets, []int{-2, 0}, "HeadLoss: Targets[0] is -2, want -1 to 2"},
		{attention, &attention.Start, []int{0, 1, 1, 0}, "Attention: Start[2] is 1, want 0 to 0"},
		{attention, &attention.Start, []int{0, 1, 0, -1}, "Attention: Start[3] is -1, want 0 to 1"},
		{attentionBackward, &attentionBackward.Start, []int{0, 2, 0, 0}, "AttentionBackward: Start[1] is 2, want 0 to 1"},
		{decode, &decode.Cached, []int{2, -1}, "AttentionDecode: Cached[1] is -1, want 0 to 2147483647"},
		{rope, &rope.Pos, []int{2, 3}, "QKNormRoPE: Pos[1] is 3, want 0 to 2"},
		{ropeBackward, &ropeBackward.Pos, []int{-1, 0}, "QKNormRoPEBackward: Pos[0] is -1, want 0 to 2"},
	} {
		*c.operand = ints(m, c.values...)
		if err := c.op.Check(); err != nil {
			t.Fatal(err)
		}
		err := func() (err error) {
			defer func() { err, _ = recover().(error) }()
			c.op.Reference()
			return nil
		}()
		var index *IndexError
		if !errors.As(err, &index) || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
