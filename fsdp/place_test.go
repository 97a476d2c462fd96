package fsdp

import (
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
)

// alive returns the largest sum of sizes of a program's activations that are in
// use at one step, which no placement can beat.
func alive(p *Plan, prog *Program) (most int64) {
	first, last := map[device.Buf]int{}, map[device.Buf]int{}
	for i, s := range prog.Steps {
		for _, o := range device.Operands(s.Op) {
			if b := o.T.Buf; p.Buffers[b-1].Kind == Activations {
				if _, ok := first[b]; !ok {
					first[b] = i
				}
				last[b] = i
			}
		}
	}
	change := make([]int64, len(prog.Steps)+1)
	for b, i := range first {
		change[i] += align(p.Buffers[b-1].Bytes)
		change[last[b]+1] -= align(p.Buffers[b-1].Bytes)
	}
	var now int64
	for _, c := range change {
		now += c
		most = max(most, now)
	}
	return most
}

// activations returns what they take in all arenas.
func activations(p *Plan) (sum int64) {
	for _, a := range p.Arenas {
		sum += a.Bytes - a.Scratch
	}
	return sum
}

// A plan's activations take no more than 2 % above what is in use at once, for
// every shape that is built in, and planning even the largest takes no time
// that anybody would notice.
func TestPlacesAreTightAndPlansAreQuick(t *testing.T) {
	for _, name := range []string{"qwen2.5-7b", "qwen2.5-0.5b", "qwen3-0.6b", "smollm2-135m", "tiny"} {
		src, err := model.Resolve(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, seqs := range []int{1, 4} {
			for _, typ := range []device.DType{device.F32, device.BF16} {
				for _, r := range []Recompute{RecomputeNone, RecomputeSelective, RecomputeBlock} {
					began := time.Now()
					p, err := NewPlan(Options{
						Model: src.Config, Type: typ, Train: true, Eval: true, Seqs: seqs, SeqLen: 512, Recompute: r,
						Decoding: Decoding{Seqs: 1, CacheLen: 512, Prefill: 64},
					})
					if err != nil {
						t.Fatal(err)
					}
					if took := time.Since(began); took > 5*time.Second {
						t.Errorf("%s: planning took %v", name, took)
					}
					var most int64
					for _, prog := range p.Programs() {
						most = max(most, alive(p, prog))
					}
					if got := activations(p); float64(got) > 1.02*float64(most) || got < most {
						t.Errorf("%s, %d sequences, %s, recompute %s: activations take %d bytes, %d are in use at once", name, seqs, typ, r, got, most)
					}
				}
			}
		}
	}
}

func BenchmarkPlan7B(b *testing.B) {
	src, err := model.Resolve("qwen2.5-7b")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := NewPlan(Options{Model: src.Config, Type: device.BF16, Train: true, Eval: true, Seqs: 4, SeqLen: 512, Recompute: RecomputeBlock}); err != nil {
			b.Fatal(err)
		}
	}
}
