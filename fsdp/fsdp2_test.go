package fsdp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/golden"
)

// seen is what one rank learned of each step.
type seen struct{ losses, norms []float64 }

func TestTwentyStepsEqualFSDP2(t *testing.T) {
	for _, name := range []string{"qwen2-tied", "qwen3"} {
		c, cfg := parsed(t, name)
		ref, err := golden.LoadFSDP2(name)
		if err != nil {
			t.Fatal(err)
		}
		if ref.Ranks < 2 || ref.MicroBatches < 2 || len(ref.Steps) != 20 {
			t.Fatalf("%s: %d steps of %d ranks with %d micro-batches show neither sharding nor accumulation", name, len(ref.Steps), ref.Ranks, ref.MicroBatches)
		}
		for how, o := range map[string]Options{
			"no_shard":                  {Strategy: NoShard},
			"shard_optimizer":           {Strategy: ShardOptimizer},
			"shard_grad_op":             {Strategy: ShardGradOp, Prefetch: 1},
			"full_shard":                {Strategy: FullShard, Prefetch: 1},
			"full_shard, keeps weights": {Strategy: FullShard, Prefetch: 1, KeepWeights: true, Recompute: RecomputeBlock},
			"full_shard, reduces late":  {Strategy: FullShard, Prefetch: 1, LateReduce: true},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				o.Model, o.Type, o.Train = cfg, device.F32, true
				o.Seqs, o.SeqLen, o.Mesh = ref.Sequences, ref.Sequence, Mesh{1, ref.Ranks}
				o.Optimizer = Optimizer{Beta1: ref.Beta1, Beta2: ref.Beta2, Eps: ref.Eps, WeightDecay: ref.WeightDecay}
				start := c.Weights()
				got, final := followed(t, o, ref, start)
				for i, s := range ref.Steps {
					if off(got.losses[i], s.Loss) > 1e-4 {
						t.Errorf("step %d: the loss is %v, FSDP2's is %v", i, got.losses[i], s.Loss)
					}
					if off(got.norms[i], s.Norm) > 1e-4 {
						t.Errorf("step %d: the gradient's norm is %v, FSDP2's is %v", i, got.norms[i], s.Norm)
					}
				}
				for _, f := range ref.Final {
					w := final[f.Name]
					if off(l2(w), f.Norm) > 1e-4 {
						t.Errorf("%s ends with the norm %v, FSDP2's is %v", f.Name, l2(w), f.Norm)
					}
					for i := range w {
						w[i] -= start[f.Name][i]
					}
					// Only RoPE gives a key bias a gradient, the rest of which is rounding.
					if !strings.HasSuffix(f.Name, "k_proj.bias") && off(l2(w), f.Moved) > 1e-3 {
						t.Errorf("%s moved by %v, FSDP2's by %v", f.Name, l2(w), f.Moved)
					}
				}
			})
		}
	}
}

// followed trains on the data of FSDP2's run from weights on. It returns what
// the ranks agreed on in each step, all with the same bits, and the weights at
// the end, put together from what the ranks own.
func followed(t *testing.T, o Options, ref *golden.FSDP2, weights map[string][]float32) (seen, map[string][]float32) {
	t.Helper()
	all := make([]seen, ref.Ranks)
	final, held := map[string][]float32{}, map[string]int{}
	for name, w := range weights {
		final[name] = make([]float32, len(w))
	}
	var mu sync.Mutex
	clipped := 0
	world(t, o, nil, func(e *Engine) error {
		rank := e.Plan.Rank
		for name, w := range weights {
			first, n := e.Owned(name)
			if err := e.WriteOwned(name, first, w[first:first+n]); err != nil {
				return err
			}
		}
		if err := e.Refresh(); err != nil {
			return err
		}
		rows := ref.Sequences * ref.Sequence
		start := make([]int32, rows)
		pos := positions(start, ref.Sequence)
		for i, s := range ref.Steps {
			var loss float64
			for m := range ref.MicroBatches {
				at := (m*ref.Ranks + rank) * rows
				b := Batch{s.IDs[at : at+rows], s.Targets[at : at+rows], start, pos}
				if err := e.MicroBatch(b, float32(1/float64(s.Valid)), m == 0); err != nil {
					return err
				}
				loss += total(e.Losses())
			}
			a, err := e.Agree(loss, false)
			if err != nil {
				return err
			}
			norm := math.Sqrt(a.SquaredNorm)
			all[rank].losses = append(all[rank].losses, a.Loss/float64(s.Valid))
			all[rank].norms = append(all[rank].norms, norm)
			// torch.nn.utils.clip_grad_norm_ multiplies by clip/(norm+1e-6), at most 1.
			factor := min(1, ref.Clip/(norm+1e-6))
			if factor < 1 && rank == 0 {
				clipped++
			}
			if err := e.Update(Hyper{LR: s.LR, GradScale: factor, Step: i + 1}); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for name, w := range final {
			first, n := e.Owned(name)
			held[name] += n
			if err := e.ReadOwned(name, first, w[first:first+n]); err != nil {
				return err
			}
		}
		return nil
	})
	for rank, s := range all {
		if !slices.Equal(s.losses, all[0].losses) || !slices.Equal(s.norms, all[0].norms) {
			t.Errorf("rank %d agreed on %v, rank 0 on %v", rank, s, all[0])
		}
	}
	for name, w := range final {
		want := len(w)
		if !o.row().end.has(sharded) {
			want *= ref.Ranks
		}
		// Ranks that share a parameter's end hold no element twice, and leave none out.
		if held[name] != want {
			t.Errorf("the ranks hold %d elements of %s, want %d", held[name], name, want)
		}
	}
	if clipped == 0 || clipped == len(ref.Steps) {
		t.Errorf("%d of %d steps were clipped: the case does not show both", clipped, len(ref.Steps))
	}
	return all[0], final
}

// fault is what goes wrong on one rank; zeros leave all as it is.
type fault struct {
	weight float32 // in place of the last weight that the rank owns
	scale  float32 // in place of the scale of its losses
	loss   float64 // in addition to its loss
}

// A rank alone may meet a NaN. All must know alike before any of them updates
// its weights, or some would stop and the others wait for them.
func TestANaNOnOneRankIsKnownToAllAlikeBeforeTheUpdate(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for what, f := range map[string]fault{
		"a weight that is NaN":    {weight: nan},
		"an infinite weight":      {weight: inf},
		"gradients that are NaN":  {scale: nan},
		"gradients that overflow": {scale: math.MaxFloat32},
		"a loss that is NaN":      {loss: math.NaN()},
		"a loss that is infinite": {loss: math.Inf(-1)},
	} {
		for _, mesh := range []Mesh{{1, 2}, {1, 3}, {2, 2}} {
			for _, s := range Strategies() {
				t.Run(fmt.Sprintf("%s, mesh %v, %s", what, mesh, s), func(t *testing.T) {
					o := Options{Model: twoBlocks(true), Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Mesh: mesh, Strategy: s, Prefetch: 1, Optimizer: adamw}
					agreed := agreements(t, o, []fault{{}, f, {}}) // the middle one has it
					for rank, a := range agreed {
						for i := range a {
							if bits(a[i]) != bits(agreed[0][i]) {
								t.Errorf("step %d: rank %d agreed on %+v, rank 0 on %+v", i, rank, a[i], agreed[0][i])
							}
						}
					}
					before, with, after := agreed[0][0], agreed[0][1], agreed[0][2]
					doubtful := with.SquaredNorm // what must tell that something is wrong
					if f.loss != 0 {
						doubtful = with.Loss
					}
					if finite(doubtful) {
						t.Errorf("all agreed on %+v, as if all were well", with)
					}
					if !finite(before.SquaredNorm) || before.SquaredNorm == 0 || !finite(before.Loss) {
						t.Errorf("without the fault all agreed on %+v", before)
					}
					if bits(after) != bits(before) {
						t.Errorf("all agreed on %+v before the fault and on %+v after it: it left a trace", before, after)
					}
				})
			}
		}
	}
}

// agreements runs one step for each fault, which rank 1 has, on the same data
// and without updates. It returns, by rank, what each step was agreed to be.
func agreements(t *testing.T, o Options, faults []fault) [][]Agreement {
	t.Helper()
	agreed := make([][]Agreement, o.Mesh.Size())
	world(t, o, nil, func(e *Engine) error {
		p := e.Plan
		var last *float32
		for _, param := range p.Model.Params() {
			w, first := e.own(param.Name)
			p.Model.InitParam(w, param, 5, first)
			if len(w) > 0 {
				last = &w[len(w)-1]
			}
		}
		all := packed(rand.New(rand.NewPCG(9, 9)), p.Mesh.Size(), p.SeqLen, p.Model.Vocab)
		b := all.part(p.SeqLen, p.Rank, p.Rank+1)
		for _, f := range faults {
			scale, weight := float32(1/float64(2*valid(all.Targets))), *last
			if p.Rank == 1 && f.scale != 0 {
				scale = f.scale
			}
			if p.Rank == 1 && f.weight != 0 {
				*last = f.weight
			}
			if err := e.Refresh(); err != nil {
				return err
			}
			var loss float64
			for _, first := range []bool{true, false} {
				if err := e.MicroBatch(b, scale, first); err != nil {
					return err
				}
				loss += total(e.Losses())
			}
			if p.Rank == 1 {
				loss += f.loss
			}
			a, err := e.Agree(loss, false)
			if err != nil {
				return err
			}
			agreed[p.Rank] = append(agreed[p.Rank], a)
			*last = weight
		}
		return nil
	})
	return agreed
}

func finite(x float64) bool { return x-x == 0 }

// bits tells agreements apart that == takes for the same, or, being NaN, never does.
func bits(a Agreement) [3]uint64 {
	x := [3]uint64{math.Float64bits(a.Loss), math.Float64bits(a.SquaredNorm)}
	if a.Stop {
		x[2] = 1
	}
	return x
}
