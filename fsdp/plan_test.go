package fsdp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
)

// small is a shape with odd sizes, for tests that need no golden numbers.
func small(tied bool) model.Config {
	return model.Config{
		Family: "qwen2", Vocab: 61, Hidden: 36, Layers: 3, Heads: 3, KVHeads: 1, HeadSize: 12, MLP: 50,
		MaxPositions: 64, NormEps: 1e-6, RopeTheta: 10000, QKVBias: true, Tied: tied, InitStd: 0.2,
	}
}

func initialise(t testing.TB, e *Engine, seed uint64) {
	t.Helper()
	if err := fresh(e, seed); err != nil {
		t.Fatal(err)
	}
}

// packed returns a batch of random documents.
func packed(r *rand.Rand, seqs, seqLen, vocab int) Batch {
	n := seqs * seqLen
	b := Batch{make([]int32, n), make([]int32, n), make([]int32, n), make([]int32, n)}
	for i := range n {
		at := i % seqLen
		if at > 0 && r.IntN(6) > 0 {
			b.Start[i] = b.Start[i-1]
		} else {
			b.Start[i] = int32(at)
			if i > 0 {
				b.Targets[i-1] = -1
			}
		}
		b.Pos[i] = int32(at) - b.Start[i]
		b.IDs[i], b.Targets[i] = int32(r.IntN(vocab)), int32(r.IntN(vocab))
	}
	return b
}

// part returns sequences [from,to) of a batch.
func (b Batch) part(seqLen, from, to int) Batch {
	cut := func(x []int32) []int32 { return x[from*seqLen : to*seqLen] }
	return Batch{cut(b.IDs), cut(b.Targets), cut(b.Start), cut(b.Pos)}
}

func TestEveryRecomputationGivesTheSameBits(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, typ := range []device.DType{device.F32, device.BF16} {
			for _, qkNorm := range []bool{false, true} {
				cfg := small(true)
				cfg.QKNorm = qkNorm
				b := packed(rand.New(rand.NewPCG(1, 2)), 2, 16, cfg.Vocab)
				var want []float32
				for _, r := range []Recompute{RecomputeNone, RecomputeSelective, RecomputeBlock} {
					e := engine(t, Options{Model: cfg, Type: typ, Train: true, Seqs: 2, SeqLen: 16, Recompute: r}, dev)
					initialise(t, e, 5)
					if err := e.MicroBatch(b, 1.0/32, true); err != nil {
						t.Fatal(err)
					}
					var got []float32
					for _, p := range cfg.Params() {
						got = append(got, e.grad(p.Name)...)
					}
					got = append(got, e.Losses()...)
					if r == RecomputeNone {
						want = got
					} else if i := firstDifference(got, want); i >= 0 {
						t.Errorf("%s, q/k norm %v, recompute %s: element %d is %v, without recomputation %v", typ, qkNorm, r, i, got[i], want[i])
					}
				}
			}
		}
	})
}

func firstDifference(a, b []float32) int {
	if len(a) != len(b) {
		return 0
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func TestRecomputationNeedsLessMemory(t *testing.T) {
	var last int64 = 1 << 62
	for _, r := range []Recompute{RecomputeNone, RecomputeSelective, RecomputeBlock} {
		cfg := small(true)
		cfg.Layers = 12
		p, err := NewPlan(Options{Model: cfg, Type: device.F32, Train: true, Seqs: 2, SeqLen: 64, Recompute: r})
		if err != nil {
			t.Fatal(err)
		}
		if n := activations(p); n >= last {
			t.Errorf("recompute %s takes %d bytes of activations, the kind before it %d", r, n, last)
		} else {
			last = n
		}
	}
}

func TestAccumulationEqualsTheBigBatch(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, tied := range []bool{true, false} {
			cfg := small(tied)
			b := packed(rand.New(rand.NewPCG(3, 4)), 4, 16, cfg.Vocab)
			scale := float32(1 / float64(valid(b.Targets)))
			grads := func(seqs int) (all []float32) {
				e := engine(t, Options{Model: cfg, Type: device.F32, Train: true, Seqs: seqs, SeqLen: 16}, dev)
				initialise(t, e, 5)
				// What a gradient held before must not matter.
				for _, p := range cfg.Params() {
					for i := range e.grad(p.Name) {
						e.grad(p.Name)[i] = 1e30
					}
				}
				for s := 0; s < 4; s += seqs {
					if err := e.MicroBatch(b.part(16, s, s+seqs), scale, s == 0); err != nil {
						t.Fatal(err)
					}
				}
				for _, p := range cfg.Params() {
					all = append(all, e.grad(p.Name)...)
				}
				return all
			}
			want := grads(4)
			for _, seqs := range []int{1, 2} {
				if r := relative(grads(seqs), want, 0); r > 1e-6 {
					t.Errorf("tied %v: gradients of %d sequences at a time are off by %.2g", tied, seqs, r)
				}
			}
		}
	})
}

func TestSequencesOfDifferentLengthsGenerateAsAlone(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		cfg := small(false)
		prompts := [][]int32{{1, 2, 3, 4, 5, 6, 7}, {9}, {11, 12, 13}}
		run := func(prompts [][]int32) [][]int32 {
			e := engine(t, Options{Model: cfg, Type: device.F32, Decoding: Decoding{Seqs: len(prompts), CacheLen: 16, Prefill: 4}}, dev)
			initialise(t, e, 5)
			out := make([][]int32, len(prompts))
			next := prompts
			for range 8 {
				logits, err := e.Extend(next)
				if err != nil {
					t.Fatal(err)
				}
				next = nil
				for s := range prompts {
					l := logits[s*cfg.Vocab : (s+1)*cfg.Vocab]
					id := int32(slices.Index(l, slices.Max(l)))
					out[s], next = append(out[s], id), append(next, []int32{id})
				}
			}
			if _, err := e.Extend(append([][]int32{make([]int32, 9)}, next[1:]...)); err == nil {
				t.Error("more tokens than the cache holds were taken")
			}
			return out
		}
		together := run(prompts)
		for s, p := range prompts {
			if alone := run([][]int32{p})[0]; !slices.Equal(alone, together[s]) {
				t.Errorf("prompt %d continues as %v alone, as %v in company", s, alone, together[s])
			}
		}
	})
}

func TestUnitsAreFlatAndAligned(t *testing.T) {
	for _, tied := range []bool{true, false} {
		p, err := NewPlan(Options{Model: small(tied), Type: device.F32, Train: true, Seqs: 1, SeqLen: 8})
		if err != nil {
			t.Fatal(err)
		}
		var n int64
		for _, u := range p.Units {
			end := 0
			for _, s := range u.Slots {
				n += int64(s.Len())
				if s.Off%paramAlign != 0 || s.Off < end || s.Off-end >= paramAlign {
					t.Errorf("%s begins at %d, the one before it ends at %d", s.Name, s.Off, end)
				}
				if s.Decay != (s.Off < u.Decayed) {
					t.Errorf("%s decays: %v, but lies at %d of %d decayed elements", s.Name, s.Decay, s.Off, u.Decayed)
				}
				end = s.Off + s.Len()
			}
			if u.Len%shardAlign != 0 || u.Len < end || u.Len-end >= shardAlign+paramAlign {
				t.Errorf("%s has the length %d for %d elements", u.Name, u.Len, end)
			}
		}
		if n != p.Model.NumParams() {
			t.Errorf("units hold %d elements of %d", n, p.Model.NumParams())
		}
	}
}

func TestAPlanThatCannotBeIsRefusedWithAllReasons(t *testing.T) {
	_, err := NewPlan(Options{Model: small(true), Type: device.I32, Train: true, Seqs: 0, SeqLen: 65, Recompute: "some", Decoding: Decoding{Seqs: 1, CacheLen: 99}})
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, want := range []string{"f32 or bf16", "empty", "longer than the model's 64 positions", `"some"`, "at least one", "beyond the model's 64 positions"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

// A product with each matrix forward, and two backward: neither more nor fewer.
// So a term of a sum that is missing, which leaves no gap that the verifier
// could see, is found too.
func TestProductsAreThoseThatTheParametersAskFor(t *testing.T) {
	for name, p := range shapes(t) {
		var matrices, block int64
		for _, m := range p.Model.Params() {
			if len(m.Shape) == 2 && (m.Name != model.EmbedName || p.Model.Tied) {
				matrices += int64(m.Len())
				if m.Name != p.Model.HeadName() {
					block += int64(m.Len())
				}
			}
		}
		head, rows := matrices-block, int64(p.Seqs*p.SeqLen)
		micro := 6 * rows * matrices
		if p.Recompute == RecomputeBlock {
			// All of a block's but the last, whose output the backward needs not.
			micro += 2 * rows * (block - int64(p.Model.Layers*p.Model.Hidden*p.Model.MLP))
		}
		d := p.Decoding
		for prog, want := range map[*Program]int64{
			&p.Micro[0]: micro, &p.Micro[1]: micro, &p.Evaluation: 2 * rows * matrices,
			&p.Prefill: 2 * int64(d.Seqs) * (int64(d.Prefill)*block + head), &p.Decode: 2 * int64(d.Seqs) * (block + head),
		} {
			if prog == &p.Micro[1] && !p.accumulates() {
				want = 0
			}
			var got int64
			for _, s := range prog.Steps {
				if _, ok := s.Op.(*device.MatMul); ok {
					got += s.Op.Cost().FLOPs
				}
			}
			if got != want {
				t.Errorf("%s: the products of program %s take %d FLOP, the parameters ask for %d", name, prog.Name, got, want)
			}
		}
	}
}

func TestAMemoryTableAddsUpToTheArena(t *testing.T) {
	p, err := NewPlan(Options{Model: small(false), Type: device.BF16, Train: true, Eval: true, Seqs: 2, SeqLen: 16, Decoding: Decoding{Seqs: 2, CacheLen: 32, Prefill: 8}})
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, r := range p.Memory() {
		sum += r.Bytes
	}
	if sum != p.Bytes() {
		t.Errorf("the rows add up to %d, the arena has %d", sum, p.Bytes())
	}
}

func ExamplePlan() {
	p, err := NewPlan(Options{Model: small(true), Type: device.F32, Train: true, Seqs: 2, SeqLen: 16, Recompute: RecomputeBlock})
	if err != nil {
		panic(err)
	}
	for _, prog := range p.Programs() {
		fmt.Println(prog.Name, len(prog.Steps), "operations,", prog.Cost().FLOPs/1e3, "kFLOP")
	}
	// Output:
	// micro-batch (first) 145 operations, 7737 kFLOP
	// micro-batch 145 operations, 7737 kFLOP
	// norm 5 operations, 67 kFLOP
	// update 9 operations, 405 kFLOP
}
