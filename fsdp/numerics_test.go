package fsdp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
)

var adamw = Optimizer{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}

// train runs optimizer steps of two micro-batches each over random documents.
func train(t testing.TB, e *Engine, seed uint64, steps int) {
	t.Helper()
	p, r := e.Plan, rand.New(rand.NewPCG(seed, 1))
	for step := range steps {
		for m := range 2 {
			b := packed(r, p.Seqs, p.SeqLen, p.Model.Vocab)
			if err := e.MicroBatch(b, float32(1/float64(2*valid(b.Targets))), m == 0); err != nil {
				t.Fatal(err)
			}
		}
		a, err := e.Agree(0, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Update(Hyper{LR: 1e-2, GradScale: min(1, 1/math.Sqrt(a.SquaredNorm)), Step: step + 1}); err != nil {
			t.Fatal(err)
		}
	}
}

// state returns all of an engine's master weights, gradients and moments.
func state(e *Engine) (all []float32) {
	for i, u := range e.Plan.Units {
		for _, units := range [][]device.Buf{e.Plan.master, e.Plan.grad, e.Plan.m, e.Plan.v} {
			all = append(all, e.at(e.Plan.flat(units[i], device.F32, 0, u.Len)).F32()...)
		}
	}
	return all
}

// onISAs runs a test on the host's kernels at every level that this machine
// has, with some threads. Devices are closed by whoever makes them.
func onISAs(t *testing.T, threads []int, f func(t *testing.T, isa cpu.ISA, threads int, dev device.Device)) {
	for isa := cpu.Generic; isa <= cpu.Detect(); isa++ {
		for _, n := range threads {
			dev, err := cpu.New(cpu.Options{Threads: n, ISA: isa.String()})
			if err != nil {
				t.Fatal(err)
			}
			t.Run(fmt.Sprintf("%s %d threads", isa, n), func(t *testing.T) {
				needKernels(t, dev)
				f(t, isa, n, dev)
			})
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// needKernels skips what holds for the C kernels only: the Go reference, which
// takes their place without C, adds in float64 and allocates.
func needKernels(t *testing.T, dev device.Device) {
	t.Helper()
	if dev.Info().ISA == "go" {
		t.Skip("this build has no C kernels")
	}
}

func TestGapsBetweenParametersStayZero(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, typ := range []device.DType{device.F32, device.BF16} {
			for _, tied := range []bool{true, false} {
				o := Options{Model: small(tied), Type: typ, Train: true, Seqs: 2, SeqLen: 16, Optimizer: adamw}
				o.Optimizer.Stochastic = typ == device.BF16
				e := engine(t, o, dev)
				initialise(t, e, 5)
				train(t, e, 3, 2)
				for i, u := range e.Plan.Units {
					gap := make([]bool, u.Len)
					for j := range gap {
						gap[j] = true
					}
					for _, s := range u.Slots {
						clear(gap[s.Off : s.Off+s.Len()])
					}
					for _, buf := range []device.Buf{e.Plan.master[i], e.Plan.grad[i], e.Plan.m[i], e.Plan.v[i]} {
						for j, x := range e.at(e.Plan.flat(buf, device.F32, 0, u.Len)).F32() {
							if gap[j] && x != 0 {
								t.Fatalf("%s, element %d of %s, which belongs to no parameter, is %v", typ, j, e.Plan.Buffers[buf-1].Name, x)
							}
						}
					}
					if typ == device.F32 {
						continue
					}
					for j, x := range e.at(e.Plan.flat(e.Plan.lasting(i), typ, 0, u.Len)).BF16() {
						if gap[j] && x != 0 {
							t.Fatalf("element %d of the bf16 copy of %s, which belongs to no parameter, is %#x", j, u.Name, x)
						}
					}
				}
			}
		}
	})
}

func TestTheFirstStepMovesEachWeightByTheLearningRate(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, beta2 := range []float64{0.5, 0.95, 0.999, 0.9999} {
			e := engine(t, Options{Model: small(true), Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Optimizer: Optimizer{Beta1: 0.9, Beta2: beta2, Eps: 1e-30, WeightDecay: 0.1}}, dev)
			r := rand.New(rand.NewPCG(1, 2))
			for _, p := range e.Plan.Model.Params() {
				for i := range e.grad(p.Name) {
					e.grad(p.Name)[i] = float32(r.NormFloat64())
				}
			}
			if err := e.Update(Hyper{LR: 1, GradScale: 0.5, Step: 1}); err != nil {
				t.Fatal(err)
			}
			// m/(1−β1) is the gradient, v/(1−β2) its square; the weights were 0.
			for _, p := range e.Plan.Model.Params() {
				for i, w := range e.param(p.Name) {
					if want := -math.Copysign(1, float64(e.grad(p.Name)[i])); off(float64(w), want) > 1e-6 {
						t.Fatalf("beta2 %v: element %d of %s moved by %v, want %v", beta2, i, p.Name, w, want)
					}
				}
			}
		}
	})
}

func TestOnlyMatricesDecay(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		cfg := small(false)
		cfg.QKNorm = true
		e := engine(t, Options{Model: cfg, Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Optimizer: adamw}, dev)
		for _, p := range cfg.Params() {
			for i := range e.param(p.Name) {
				e.param(p.Name)[i] = 1
			}
		}
		// Without a gradient nothing but decay moves a weight.
		if err := e.Update(Hyper{LR: 0.5, GradScale: 1, Step: 1}); err != nil {
			t.Fatal(err)
		}
		for _, p := range cfg.Params() {
			want := float32(1)
			if len(p.Shape) == 2 {
				want = 0.95
			}
			for i, w := range e.param(p.Name) {
				if !(math.Abs(float64(w-want)) <= 1e-6) {
					t.Fatalf("element %d of %s is %v, want %v", i, p.Name, w, want)
				}
			}
		}
	})
}

func TestTheWeightsThatComputeAreTheMastersRounded(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		copies := func(stochastic bool, seed uint64) (rounded []uint16, exact []float32) {
			o := Options{Model: small(false), Type: device.BF16, Train: true, Seqs: 2, SeqLen: 16, Optimizer: adamw, Seed: seed}
			o.Optimizer.Stochastic = stochastic
			e := engine(t, o, dev)
			initialise(t, e, 5)
			train(t, e, 3, 1)
			for i, u := range e.Plan.Units {
				rounded = append(rounded, e.at(e.Plan.flat(e.Plan.lasting(i), device.BF16, 0, u.Len)).BF16()...)
				exact = append(exact, e.at(e.Plan.flat(e.Plan.master[i], device.F32, 0, u.Len)).F32()...)
			}
			return rounded, exact
		}
		nearest, exact := copies(false, 1)
		for i, x := range exact {
			if nearest[i] != device.ToBF16(x) {
				t.Fatalf("element %d is %v, its copy %v", i, x, device.FromBF16(nearest[i]))
			}
		}
		one, exact := copies(true, 1)
		again, _ := copies(true, 1)
		two, _ := copies(true, 2)
		if !slices.Equal(one, again) {
			t.Error("the same seed rounds differently")
		}
		if slices.Equal(one, two) {
			t.Error("another seed rounds alike")
		}
		// Rounding up and down must balance: the mean error in units of the
		// distance between neighbours has a standard deviation below 0.5/√n.
		var sum float64
		n := 0
		for i, x := range exact {
			down := uint16(math.Float32bits(x) >> 16)
			if one[i] != down && one[i] != down+1 {
				t.Fatalf("element %d is %v, its copy %v is no neighbour", i, x, device.FromBF16(one[i]))
			}
			if low, high := device.FromBF16(down), device.FromBF16(down+1); x != low {
				sum += float64(device.FromBF16(one[i])-x) / float64(high-low)
				n++
			}
		}
		if mean := sum / float64(n); math.Abs(mean) > 4*0.5/math.Sqrt(float64(n)) {
			t.Errorf("copies are off by %v of a step on average over %d elements", mean, n)
		}
	})
}

func TestThreadsAndInstructionsChangeNoBit(t *testing.T) {
	want := map[string][]float32{}
	onISAs(t, []int{1, 2, 3}, func(t *testing.T, isa cpu.ISA, threads int, dev device.Device) {
		for _, typ := range []device.DType{device.F32, device.BF16} {
			cfg := small(true)
			cfg.QKNorm = true
			e := engine(t, Options{Model: cfg, Type: typ, Train: true, Seqs: 2, SeqLen: 32, HeadRows: 24, Optimizer: adamw}, dev)
			initialise(t, e, 5)
			train(t, e, 3, 3)
			got, key := state(e), typ.String()
			if typ == device.BF16 {
				key += isa.String() // the dot product's order is its own
			}
			if want[key] == nil {
				want[key] = got
			} else if i := firstDifference(got, want[key]); i >= 0 {
				t.Errorf("%s: element %d of the state after three steps is %v, on the first device it was %v", typ, i, got[i], want[key][i])
			}
		}
	})
}

func TestChunksOfTheHeadChangeNoBit(t *testing.T) {
	for _, tied := range []bool{true, false} {
		results := func(t *testing.T, dev device.Device, rows int) (all []float32) {
			e := engine(t, Options{Model: small(tied), Type: device.F32, Train: true, Seqs: 2, SeqLen: 16, HeadRows: rows}, dev)
			initialise(t, e, 5)
			b := packed(rand.New(rand.NewPCG(3, 4)), 2, 16, e.Plan.Model.Vocab)
			for m := range 2 {
				if err := e.MicroBatch(b, 1.0/64, m == 0); err != nil {
					t.Fatal(err)
				}
			}
			all = slices.Clone(e.Losses())
			for _, p := range e.Plan.Model.Params() {
				all = append(all, e.grad(p.Name)...)
			}
			return all
		}
		onISAs(t, []int{2}, func(t *testing.T, _ cpu.ISA, _ int, dev device.Device) {
			whole := results(t, dev, 32)
			for _, rows := range []int{1, 7, 16, 31, 100} {
				if i := firstDifference(results(t, dev, rows), whole); i >= 0 {
					t.Errorf("tied %v: element %d of losses and gradients differs in chunks of %d rows", tied, i, rows)
				}
			}
		})
		// The reference adds in float64 and rounds after each chunk.
		t.Run("reference", func(t *testing.T) {
			dev := device.NewReference()
			t.Cleanup(func() { dev.Close() })
			if r := relative(results(t, dev, 7), results(t, dev, 32), 0); r > 1e-6 {
				t.Errorf("tied %v: chunks change losses and gradients by %.2g", tied, r)
			}
		})
	}
}

func TestMaskedSequencesAddNothing(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, typ := range []device.DType{device.F32, device.BF16} {
			for _, tied := range []bool{true, false} {
				e := engine(t, Options{Model: small(tied), Type: typ, Train: true, Eval: true, Seqs: 2, SeqLen: 16, HeadRows: 20}, dev)
				initialise(t, e, 5)
				b := packed(rand.New(rand.NewPCG(3, 4)), 2, 16, e.Plan.Model.Vocab)
				masked := Batch{b.IDs, slices.Repeat([]int32{-1}, 32), b.Start, b.Pos}
				grads := func(batches ...Batch) (all []float32) {
					for _, p := range e.Plan.Model.Params() {
						for i := range e.grad(p.Name) {
							e.grad(p.Name)[i] = float32(math.NaN()) // what was there must not matter
						}
					}
					for m, b := range batches {
						if err := e.MicroBatch(b, 1.0/32, m == 0); err != nil {
							t.Fatal(err)
						}
					}
					for _, p := range e.Plan.Model.Params() {
						all = append(all, e.grad(p.Name)...)
					}
					return all
				}
				alone := grads(b)
				if i := firstDifference(grads(b, masked), alone); i >= 0 {
					t.Errorf("%s, tied %v: a masked micro-batch changed element %d of the gradients", typ, tied, i)
				}
				if i := firstDifference(grads(masked, b), alone); i >= 0 {
					t.Errorf("%s, tied %v: a masked micro-batch in front changed element %d of the gradients", typ, tied, i)
				}
				for i, x := range grads(masked) {
					if x != 0 {
						t.Errorf("%s, tied %v: with nothing but masked targets, element %d of the gradients is %v", typ, tied, i, x)
						break
					}
				}
				if err := e.Evaluate(masked); err != nil || total(e.Losses()) != 0 {
					t.Errorf("%s, tied %v: the losses of masked targets add up to %v, %v", typ, tied, total(e.Losses()), err)
				}
			}
		}
	})
}

func TestOneDocumentChangesNoOther(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		cfg := small(true)
		cfg.QKNorm = true
		e := engine(t, Options{Model: cfg, Type: device.F32, Eval: true, Seqs: 2, SeqLen: 24}, dev)
		initialise(t, e, 5)
		b := packed(rand.New(rand.NewPCG(11, 12)), 2, 24, cfg.Vocab)
		logits := func(b Batch) []float32 {
			if err := e.Evaluate(b); err != nil {
				t.Fatal(err)
			}
			return slices.Clone(evaluated(e))
		}
		before, v := logits(b), cfg.Vocab
		for from := 0; from < 48; {
			to := from + 1
			for to < 48 && b.Pos[to] > 0 {
				to++
			}
			other := Batch{slices.Clone(b.IDs), b.Targets, b.Start, b.Pos}
			for i := from; i < to; i++ {
				other.IDs[i] = (other.IDs[i] + 7) % int32(v)
			}
			after := logits(other)
			for i := range 48 {
				if same := slices.Equal(before[i*v:(i+1)*v], after[i*v:(i+1)*v]); same == (i >= from && i < to) {
					t.Errorf("with rows %d to %d changed, row %d has the same logits: %v", from, to-1, i, same)
				}
			}
			from = to
		}
	})
}

func TestDecodingGivesTheLossesOfTheWholeSequence(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, c := range []struct {
			typ          device.DType
			tied, qkNorm bool
			tolerance    float64
		}{{device.F32, true, false, 1e-5}, {device.F32, false, true, 1e-5}, {device.BF16, false, true, 0.1}} {
			cfg := small(c.tied)
			cfg.QKNorm = c.qkNorm
			const n = 20
			e := engine(t, Options{Model: cfg, Type: c.typ, Eval: true, Seqs: 2, SeqLen: n, Decoding: Decoding{Seqs: 2, CacheLen: n, Prefill: 6}}, dev)
			initialise(t, e, 5)
			r := rand.New(rand.NewPCG(1, 2))
			b := Batch{make([]int32, 2*n), make([]int32, 2*n), make([]int32, 2*n), make([]int32, 2*n)}
			for i := range b.IDs {
				b.IDs[i], b.Targets[i], b.Pos[i] = int32(r.IntN(cfg.Vocab)), int32(r.IntN(cfg.Vocab)), int32(i%n)
			}
			if err := e.Evaluate(b); err != nil {
				t.Fatal(err)
			}
			want := slices.Clone(e.Losses())
			for range 4 {
				// The two sequences grow by random pieces, each at its own pace,
				// until both fill their caches.
				e.Forget()
				var at [2]int
				for at != [2]int{n, n} {
					next := make([][]int32, 2)
					for s := range next {
						to := at[s] + r.IntN(min(n-at[s], 9)+1)
						next[s] = b.IDs[s*n+at[s] : s*n+to]
						at[s] = to
					}
					logits, err := e.Extend(next)
					if err != nil {
						t.Fatal(err)
					}
					for s := range next {
						if len(next[s]) == 0 {
							continue
						}
						row := s*n + at[s] - 1
						if got := crossEntropy(logits[s*cfg.Vocab:(s+1)*cfg.Vocab], b.Targets[row]); !(math.Abs(got-float64(want[row])) <= c.tolerance) {
							t.Fatalf("%s: row %d of sequence %d has the loss %v decoded, %v in the whole", c.typ, at[s]-1, s, got, want[row])
						}
					}
				}
			}
		}
	})
}

func crossEntropy(logits []float32, target int32) float64 {
	var sum float64
	for _, l := range logits {
		sum += math.Exp(float64(l))
	}
	return math.Log(sum) - float64(logits[target])
}

func TestBF16GradientsAreNearThoseOfF32(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, tied := range []bool{true, false} {
			cfg := small(tied)
			cfg.QKNorm = true
			b := packed(rand.New(rand.NewPCG(3, 4)), 2, 16, cfg.Vocab)
			run := func(typ device.DType) *Engine {
				e := engine(t, Options{Model: cfg, Type: typ, Train: true, Seqs: 2, SeqLen: 16, HeadRows: 20}, dev)
				initialise(t, e, 5)
				if err := e.MicroBatch(b, 1.0/32, true); err != nil {
					t.Fatal(err)
				}
				return e
			}
			exact, rough := run(device.F32), run(device.BF16)
			if a, b := total(rough.Losses()), total(exact.Losses()); off(a, b) > 1e-2 {
				t.Errorf("tied %v: the losses add up to %v in bf16, %v in f32", tied, a, b)
			}
			for _, p := range cfg.Params() {
				if p.Init == model.Zero {
					continue // a bias of keys has next to no gradient
				}
				if r := relative(rough.grad(p.Name), exact.grad(p.Name), 1e-3); r > 0.1 {
					t.Errorf("tied %v: in bf16 the gradient of %s is off by %.2g", tied, p.Name, r)
				}
			}
		}
	})
}

func TestTheEngineAllocatesNothing(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	needKernels(t, dev)
	cfg := small(true)
	e := engine(t, Options{Model: cfg, Type: device.BF16, Train: true, Eval: true, Seqs: 2, SeqLen: 16, Optimizer: adamw, Decoding: Decoding{Seqs: 1, CacheLen: 24, Prefill: 4}}, dev)
	initialise(t, e, 5)
	b := packed(rand.New(rand.NewPCG(3, 4)), 2, 16, cfg.Vocab)
	prompt := [][]int32{{1, 2, 3, 4, 5, 6}}
	for name, f := range map[string]func() error{
		"MicroBatch": func() error { return e.MicroBatch(b, 1, true) },
		"Agree":      func() error { _, err := e.Agree(0, false); return err },
		"Update":     func() error { return e.Update(Hyper{LR: 1e-3, GradScale: 1, Step: 1}) },
		"Evaluate":   func() error { return e.Evaluate(b) },
		"Extend": func() error {
			e.Forget()
			_, err := e.Extend(prompt)
			return err
		},
	} {
		if n := testing.AllocsPerRun(10, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// The sums of products, biases and embeddings go over rows in their order and
// go on from what the micro-batches before left, so that cutting a batch changes
// no bit. Only norms add blocks of rows, and a tied embedding adds the head's
// rows and then the look-up's, each time.
func TestMicroBatchesContinueTheSumsOfTheBigBatch(t *testing.T) {
	onISAs(t, []int{2}, func(t *testing.T, _ cpu.ISA, _ int, dev device.Device) {
		for _, tied := range []bool{true, false} {
			for _, seqLen := range []int{16, 13} {
				cfg := small(tied)
				cfg.QKNorm = true
				b := packed(rand.New(rand.NewPCG(3, 4)), 4, seqLen, cfg.Vocab)
				grads := func(seqs int) *Engine {
					e := engine(t, Options{Model: cfg, Type: device.F32, Train: true, Seqs: seqs, SeqLen: seqLen}, dev)
					initialise(t, e, 5)
					for s := 0; s < 4; s += seqs {
						if err := e.MicroBatch(b.part(seqLen, s, s+seqs), 1.0/64, s == 0); err != nil {
							t.Fatal(err)
						}
					}
					return e
				}
				whole := grads(4)
				for _, seqs := range []int{1, 2} {
					parts := grads(seqs)
					for _, p := range cfg.Params() {
						got, want := parts.grad(p.Name), whole.grad(p.Name)
						if p.Init == model.One || tied && p.Name == model.EmbedName {
							if r := relative(got, want, 0); r > 2e-6 {
								t.Errorf("%d sequences at a time, the gradient of %s is off by %.2g", seqs, p.Name, r)
							}
						} else if i := firstDifference(got, want); i >= 0 {
							t.Errorf("%d sequences of %d at a time, element %d of the gradient of %s is %v, in the big batch %v", seqs, seqLen, i, p.Name, got[i], want[i])
						}
					}
				}
			}
		}
	})
}
