package fsdp

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
)

var seed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the random plans")

// anyOptions draws a plan of any shape, sizes of one included.
func anyOptions(r *rand.Rand) Options {
	kv, size := 1+r.IntN(3), 2*(1+r.IntN(12))
	cfg := model.Config{
		Family: "qwen3", Vocab: 2 + r.IntN(70), Hidden: 4 + r.IntN(40), Layers: 1 + r.IntN(3), Heads: kv * (1 + r.IntN(3)), KVHeads: kv, HeadSize: size,
		MLP: 1 + r.IntN(50), MaxPositions: 64, NormEps: 1e-6, RopeTheta: 10000, InitStd: 0.2,
		QKVBias: r.IntN(2) == 0, QKNorm: r.IntN(2) == 0, Tied: r.IntN(2) == 0,
	}
	return Options{
		Model: cfg, Type: []device.DType{device.F32, device.BF16}[r.IntN(2)], Train: true, Eval: r.IntN(2) == 0,
		Seqs: 1 + r.IntN(3), SeqLen: 1 + r.IntN(40), HeadRows: r.IntN(50),
		Recompute: []Recompute{"", RecomputeNone, RecomputeSelective, RecomputeBlock}[r.IntN(4)], Optimizer: adamw,
		Decoding: Decoding{Seqs: 1 + r.IntN(3), CacheLen: 1 + r.IntN(20), Prefill: 1 + r.IntN(24)}, MicroBatches: r.IntN(3),
	}
}

// Any plan verifies, and the host's kernels make of it what the reference
// makes: losses, gradients, and the logits that follow prompts of any lengths.
// There is no optimizer's step before: its first goes by the sign of a gradient,
// and rounding decides the sign of one that is all but zero.
func TestAnyPlanRunsAsOnTheReference(t *testing.T) {
	best, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	reference := device.NewReference()
	t.Cleanup(func() { best.Close(); reference.Close() })
	for i := range uint64(30) {
		s := *seed + i
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			o := anyOptions(rand.New(rand.NewPCG(s, 0)))
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("%+v; run it again: go test ./fsdp -run AnyPlan -args -seed %d", o, s)
				}
			})
			run := func(dev device.Device, typ device.DType) (loss float64, grads, logits []float32) {
				o := o
				o.Type = typ
				e := engine(t, o, dev)
				initialise(t, e, s)
				r := rand.New(rand.NewPCG(s, 2))
				if err := e.MicroBatch(packed(r, o.Seqs, o.SeqLen, o.Model.Vocab), 0.25, true); err != nil {
					t.Fatal(err)
				}
				loss = total(e.Losses())
				for _, p := range o.Model.Params() {
					grads = append(grads, e.grad(p.Name)...)
				}
				next := make([][]int32, o.Decoding.Seqs)
				for q := range next {
					next[q] = make([]int32, r.IntN(o.Decoding.CacheLen+1))
					for i := range next[q] {
						next[q][i] = int32(r.IntN(o.Model.Vocab))
					}
				}
				logits, err := e.Extend(next)
				if err != nil {
					t.Fatal(err)
				}
				return loss, grads, logits
			}
			got, grads, gotLogits := run(best, o.Type)
			want, wantGrads, wantLogits := run(reference, o.Type)
			exact, exactGrads, exactLogits := want, wantGrads, wantLogits
			base := 1e-3
			if o.Type == device.BF16 {
				base = 2e-2
				exact, exactGrads, exactLogits = run(reference, device.F32)
			}
			// What rounding does to the reference it may do to the kernels: much, where a
			// norm of a head of two numbers divides by next to nothing.
			near := func(what string, off, rounding float64) {
				if limit := base + 3*rounding; !(off <= limit) {
					t.Errorf("%s are off by %.2g, and %.2g is allowed", what, off, limit)
				}
			}
			near("losses", math.Abs(got-want)/(math.Abs(want)+1e-3), math.Abs(exact-want)/(math.Abs(want)+1e-3))
			near("logits", relative(gotLogits, wantLogits, 1e-3), relative(exactLogits, wantLogits, 1e-3))
			near("gradients", relative(grads, wantGrads, 1e-3), relative(exactGrads, wantGrads, 1e-3))
		})
	}
}
