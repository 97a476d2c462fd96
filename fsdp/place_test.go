package fsdp

import (
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
)

// alive returns the largest sum of sizes of what does not last and is in use at
// one step of a plan's programs, one after the other, in each arena, which no
// placement can beat.
func alive(p *Plan) (sum int64) {
	first, last, steps := map[device.Buf]int{}, map[device.Buf]int{}, 0
	for _, prog := range p.Programs() {
		for _, s := range prog.Steps {
			for _, o := range device.Operands(s.Op) {
				if b := o.T.Buf; !p.Buffers[b-1].Lasts {
					if _, ok := first[b]; !ok {
						first[b] = steps
					}
					last[b] = steps
				}
			}
			steps++
		}
	}
	for m := range p.Arenas {
		change := make([]int64, steps+1)
		for b, i := range first {
			if buf := p.Buffers[b-1]; buf.In == device.Memory(m) {
				change[i] += align(buf.Bytes)
				change[last[b]+1] -= align(buf.Bytes)
			}
		}
		var now, most int64
		for _, c := range change {
			now += c
			most = max(most, now)
		}
		sum += most
	}
	return sum
}

// activations returns what they take in all arenas, with all that shares their
// memory.
func activations(p *Plan) (sum int64) {
	for _, a := range p.Arenas {
		sum += a.Bytes - a.Scratch
	}
	return sum
}

// What does not last takes no more than 2 % above what is in use at once, for
// every shape that is built in, with gradients among it or not, and planning even
// the largest takes no time that anybody would notice.
func TestPlacesAreTightAndPlansAreQuick(t *testing.T) {
	for _, name := range []string{"qwen2.5-7b", "qwen2.5-0.5b", "qwen3-0.6b", "smollm2-135m", "tiny"} {
		src, err := model.Resolve(name)
		if err != nil {
			t.Fatal(err)
		}
		quickest := time.Hour // of many: others want the processors, too
		for _, c := range []struct{ seqs, micros, ranks int }{{1, 0, 1}, {4, 0, 1}, {1, 1, 1}, {4, 1, 1}, {4, 1, 2}} {
			for _, typ := range []device.DType{device.F32, device.BF16} {
				for _, r := range []Recompute{RecomputeNone, RecomputeSelective, RecomputeBlock} {
					began := time.Now()
					p, err := NewPlan(Options{
						Model: src.Config, Type: typ, Train: true, Eval: true, Seqs: c.seqs, SeqLen: 512, Recompute: r, MicroBatches: c.micros,
						Mesh: Mesh{Within: c.ranks}, Strategy: FullShard, Decoding: Decoding{Seqs: 1, CacheLen: 512, Prefill: 64},
					})
					if err != nil {
						t.Fatal(err)
					}
					quickest = min(quickest, time.Since(began))
					if got, most := activations(p), alive(p); float64(got) > 1.02*float64(most) || got < most {
						t.Errorf("%s, %+v, %s, recompute %s: what does not last takes %d bytes, %d are in use at once", name, c, typ, r, got, most)
					}
				}
			}
		}
		if quickest > 5*time.Second {
			t.Errorf("%s: planning took %v and more", name, quickest)
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
