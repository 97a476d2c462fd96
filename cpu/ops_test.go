//go:build cgo && amd64

package cpu

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func TestWhatIsNotFiniteIsNeverLost(t *testing.T) {
	rng := optest.Rand(t)
	allOnes := math.Float64frombits(math.MaxUint64) // a NaN, too, as in memory that was filled with 0xff
	poisons := []float64{math.NaN(), allOnes, math.Inf(1), math.Inf(-1)}
	var machines []*kernels
	for _, isa := range levels() {
		machines = append(machines, pool(t, 1, isa))
	}
	memory := optest.NewMemory(t, rng)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, c := range optest.Cases(t, rng, typ) {
			for i, o := range device.Operands(c.Op) {
				if o.Access&device.Read == 0 || !o.T.Type.Float() {
					continue
				}
				poison := poisons[rng.IntN(len(poisons))]
				poisoned := memory.Clone(c.Op)
				optest.Set(*device.Operands(poisoned)[i].T, rng.IntN(int(o.T.Len)), poison)
				want := memory.Clone(poisoned)
				want.Reference()
				for _, k := range machines {
					got := memory.Clone(poisoned)
					if err := k.Run(got); err != nil {
						t.Fatal(err)
					}
					if err := optest.KeepsPoison(got, want); err != nil {
						t.Errorf("%v: %s: %v in %s: %v", k.isa(), c.Name, poison, o.Name, err)
					}
				}
			}
		}
	}
}

func TestTheExponentialIsRightOverItsWholeRange(t *testing.T) {
	const n = 40000
	memory := optest.NewMemory(t, rand.New(rand.NewPCG(1, 1)))
	gate := memory.Floats(device.F32, n, func(i int) float64 { return 240 * (float64(i)/n - 0.5) })
	one := memory.Floats(device.F32, n, func(int) float64 { return 1 })
	for _, isa := range levels() {
		k := pool(t, 1, isa)
		got := &device.SwiGLU{Gate: gate, Up: one, Out: memory.Blank(device.F32, n), N: n}
		if err := k.Run(got); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			x := float64(gate.F32()[i])
			want := x / (1 + math.Exp(-x))
			// Four roundings; below the normal numbers, a few of the smallest.
			if d := math.Abs(float64(got.Out.F32()[i]) - want); d > 0x1p-22*math.Abs(want)+0x1p-120 {
				t.Fatalf("%v: x·σ(x) of %v is %v, want %v", isa, x, got.Out.F32()[i], want)
			}
		}
	}
}

func TestARowThatSeesOneKeyHasNoScoreGradient(t *testing.T) {
	rng := optest.Rand(t)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		memory := optest.NewMemory(t, rng)
		forward, back := attention(memory, typ, 1, 40, 4, 2, 64, func(i int) int { return i })
		for _, isa := range levels() {
			k := pool(t, 1, isa)
			if err := errors.Join(k.Run(forward), k.Run(back)); err != nil {
				t.Fatal(err)
			}
			for i := range int(back.DQ.Len) {
				if x := optest.At(back.DQ, i); x != 0 && typ == device.F32 {
					t.Fatalf("%v: DQ[%d] of a row that sees only itself is %v, want 0", isa, i, x)
				}
			}
		}
	}
}

// attention returns a forward and its backward on fresh memory.
func attention(m optest.Memory, typ device.DType, seqs, seqLen, heads, kvHeads, size int, start func(row int) int) (*device.Attention, *device.AttentionBackward) {
	rows := seqs * seqLen
	q, k := rows*heads*size, rows*kvHeads*size
	f := &device.Attention{
		Q: m.Normal(typ, q, 0, 1), K: m.Normal(typ, k, 0, 1), V: m.Normal(typ, k, 0, 1),
		Start: m.Ints(rows, func(i int) int { return start(i % seqLen) }), Out: m.Blank(typ, q), LSE: m.Blank(device.F32, rows*heads),
		Seqs: seqs, SeqLen: seqLen, Heads: heads, KVHeads: kvHeads, HeadSize: size, Scale: float32(1 / math.Sqrt(float64(size))),
	}
	return f, &device.AttentionBackward{
		Parts: m.Parts(f),
		Q:     f.Q, K: f.K, V: f.V, Start: f.Start, Out: f.Out, LSE: f.LSE,
		DOut: m.Normal(typ, q, 0, 1), D: m.Blank(device.F32, rows*heads), DQ: m.Blank(typ, q), DK: m.Blank(typ, k), DV: m.Blank(typ, k),
		Seqs: seqs, SeqLen: seqLen, Heads: heads, KVHeads: kvHeads, HeadSize: size, Scale: f.Scale,
	}
}

// Heads that are fewer than threads are cut, and what exceeds the scratch is packed again: both by other
// code than the common case, with the same bits.
func TestAttentionIsTheSameHoweverItIsCut(t *testing.T) {
	rng := optest.Rand(t)
	best := Detect()
	for name, c := range map[string]struct {
		typ                                device.DType
		seqs, seqLen, heads, kvHeads, size int
		start                              func(int) int
		threads                            []int
		scratchHolds                       bool
	}{
		"one key-value head for many threads": {device.F32, 1, 300, 6, 1, 64, func(int) int { return 0 }, []int{2, 3, 5, 16}, true},
		"documents within blocks of keys":     {device.F32, 1, 390, 4, 2, 80, func(i int) int { return i / 37 * 37 }, []int{3, 4}, true},
		"starts that go back":                 {device.F32, 1, 280, 2, 2, 16, func(i int) int { return i % 3 * i / 3 }, []int{3}, true},
		"bf16, heads of their own":            {device.BF16, 2, 257, 3, 3, 128, func(i int) int { return i / 200 * 200 }, []int{4, 7}, true},
		"bf16, one key-value head":            {device.BF16, 1, 410, 4, 1, 64, func(int) int { return 0 }, []int{2, 3, 16}, true},
		"bf16, documents within blocks":       {device.BF16, 1, 555, 4, 2, 80, func(i int) int { return i / 37 * 37 }, []int{3, 4}, true},
		"bf16, a document that fills a block": {device.BF16, 1, 390, 3, 1, 48, func(i int) int { return i / 256 * 256 }, []int{2, 3}, true},
		"bf16, starts that go back":           {device.BF16, 1, 333, 2, 2, 6, func(i int) int { return i % 3 * i / 3 }, []int{3}, true},
		"more keys than the scratch holds": {device.F32, 1, 25000, 1, 1, 128, func(i int) int {
			if i >= 24990 {
				return 0
			}
			return i / 16 * 16
		}, []int{2}, false},
		"bf16, more keys than the scratch holds": {device.BF16, 1, 50000, 1, 1, 128, func(i int) int {
			if i >= 49995 {
				return 0
			}
			return i / 16 * 16
		}, []int{2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			memory := optest.NewMemory(t, rng)
			forward, back := attention(memory, c.typ, c.seqs, c.seqLen, c.heads, c.kvHeads, c.size, c.start)
			whole := pool(t, 1, best)
			want := memory.Clone(forward)
			bounds := memory.Bounds(want)
			want.Reference()
			if err := whole.Run(forward); err != nil {
				t.Fatal(err)
			}
			if err := optest.Compare(forward, want, bounds); err != nil {
				t.Errorf("1 thread: %v", err)
			}
			want = memory.Clone(back)
			bounds = memory.Bounds(want)
			want.Reference()
			if err := whole.Run(back); err != nil {
				t.Fatal(err)
			}
			if err := optest.Compare(back, want, bounds); err != nil {
				t.Errorf("1 thread: %v", err)
			}
			for _, threads := range c.threads {
				k := pool(t, threads, best)
				for _, op := range []device.Op{forward, back} {
					got := memory.Clone(op)
					if err := k.Run(got); err != nil {
						t.Fatal(err)
					}
					if err := optest.Compare(got, op, nil); err != nil {
						t.Errorf("%d threads have other bits: %v", threads, err)
					}
				}
			}
		})
	}
}

func TestDecodingAfterAPrefillIsAttentionOverTheWhole(t *testing.T) {
	const seqLen, heads, kvHeads, size = 200, 6, 2, 64
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		whole, _ := attention(memory, typ, 1, seqLen, heads, kvHeads, size, func(int) int { return 0 })
		whole.Reference()
		cached := memory.Ints(1, func(int) int { return 0 })
		cache := seqLen * kvHeads * size
		kCache, vCache := memory.Normal(typ, cache, 0, 1), memory.Normal(typ, cache, 0, 1)
		k := pool(t, 2, Detect())
		for at := 0; at < seqLen; {
			n := 1
			if at == 0 {
				n = seqLen - 20
			}
			q, kv := int64(heads*size), int64(kvHeads*size)
			part := &device.AttentionDecode{
				Q: whole.Q.Slice(int64(at)*q, int64(n)*q), K: whole.K.Slice(int64(at)*kv, int64(n)*kv),
				V: whole.V.Slice(int64(at)*kv, int64(n)*kv), Cached: cached, KCache: kCache, VCache: vCache, Out: memory.Blank(typ, n*heads*size),
				Seqs: 1, SeqLen: n, CacheLen: seqLen, Heads: heads, KVHeads: kvHeads, HeadSize: size, Scale: whole.Scale,
			}
			bounds := memory.Bounds(part)
			if err := k.Run(part); err != nil {
				t.Fatal(err)
			}
			want := *part
			want.Out = whole.Out.Slice(int64(at)*q, int64(n)*q)
			if err := optest.Compare(part, &want, bounds); err != nil {
				t.Fatalf("%v, rows from %d on: %v", typ, at, err)
			}
			at += n
			cached.I32()[0] = int32(at)
		}
	}
}

func TestALaunchAllocatesNothing(t *testing.T) {
	rng := optest.Rand(t)
	k := pool(t, 2, Detect())
	for _, c := range optest.Cases(t, rng, device.F32) {
		if n := testing.AllocsPerRun(3, func() {
			if err := k.Run(c.Op); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations a launch", c.Name, n)
		}
	}
}
