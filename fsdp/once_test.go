package fsdp

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

// A step of one micro-batch comes to the same bits in all that lasts, whatever lay
// where its gradients are written; between parameters they are zero.
func TestGradientsThatDoNotLastGiveTheBitsOfThoseThatDo(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, typ := range []device.DType{device.F32, device.BF16} {
			for _, tied := range []bool{true, false} {
				var want []float32
				for micros := range 2 {
					cfg := small(tied)
					e := engine(t, Options{
						Model: cfg, Type: typ, Train: true, Eval: true, Seqs: 2, SeqLen: 16, Recompute: RecomputeBlock, Optimizer: adamw, MicroBatches: micros,
					}, dev)
					initialise(t, e, 5)
					p, r := e.Plan, rand.New(rand.NewPCG(3, 4))
					for step := range 3 {
						for m, a := range p.Arenas {
							if a.Bytes == a.Scratch {
								continue
							}
							tail := device.Tensor{Addr: e.arenas[m].Addr + device.Addr(a.Scratch), Type: device.F32, Len: (a.Bytes - a.Scratch) / 4}
							for i := range tail.F32() {
								tail.F32()[i] = float32(math.NaN())
							}
						}
						if err := e.MicroBatch(packed(r, 2, 16, cfg.Vocab), 1.0/32, true); err != nil {
							t.Fatal(err)
						}
						for i, u := range p.Units {
							for _, g := range u.gaps() {
								for _, x := range e.at(p.gradient(i, g)).F32() {
									if x != 0 {
										t.Fatalf("%s, tied %v: the gradient of %s has %v between parameters", typ, tied, u.Name, x)
									}
								}
							}
						}
						a, err := e.Agree(0, false)
						if err != nil {
							t.Fatal(err)
						}
						if err := e.Update(Hyper{LR: 1e-2, GradScale: 1 / math.Sqrt(a.SquaredNorm), Step: step + 1}); err != nil {
							t.Fatal(err)
						}
						if err := e.Evaluate(packed(r, 2, 16, cfg.Vocab)); err != nil {
							t.Fatal(err)
						}
					}
					var got []float32
					for i, u := range p.Units {
						for _, buf := range []device.Buf{p.master[i], p.m[i], p.v[i]} {
							got = append(got, e.at(p.flat(buf, device.F32, 0, u.Len)).F32()...)
						}
					}
					if micros == 0 {
						want = got
					} else if i := firstDifference(got, want); i >= 0 {
						t.Errorf("%s, tied %v: element %d of weights and moments is %v, with gradients that last %v", typ, tied, i, got[i], want[i])
					}
				}
			}
		}
	})
}

// All gradients of full_shard find room where activations were.
func TestGradientsThatDoNotLastTakeNoMemoryOfTheirOwn(t *testing.T) {
	cfg := small(true)
	cfg.Layers = 12
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, s := range []Strategy{ShardGradOp, FullShard} {
			var bytes [2]int64
			var lasting int64
			for micros := range bytes {
				p, err := NewPlan(Options{Model: cfg, Type: typ, Train: true, Seqs: 4, SeqLen: 64, Mesh: Mesh{1, 2}, Strategy: s, Prefetch: 1, MicroBatches: micros})
				if err != nil {
					t.Fatal(err)
				}
				bytes[micros] = p.Bytes()
				for _, r := range p.Memory() {
					switch {
					case r.Kind == Gradients && micros == 0:
						lasting = r.Bytes
					case r.Kind == Gradients, r.Kind == Activations && micros == 1, r.Kind == Sharing && micros == 0:
						t.Errorf("%s, %s, %d micro-batches: there is a row for %s", typ, s, micros, r.Kind)
					}
				}
			}
			// What is left over is what places do not fit by.
			if saved := bytes[0] - bytes[1]; lasting == 0 || float64(saved) < 0.95*float64(lasting) {
				t.Errorf("%s, %s: gradients of %d bytes that do not last save %d of %d", typ, s, lasting, saved, bytes[0])
			}
		}
	}
}

func TestAnUpdateWithoutItsGradientsIsRefused(t *testing.T) {
	dev := device.NewReference()
	t.Cleanup(func() { dev.Close() })
	e := engine(t, Options{Model: small(true), Type: device.F32, Train: true, Eval: true, Seqs: 1, SeqLen: 8, MicroBatches: 1}, dev)
	b := packed(rand.New(rand.NewPCG(3, 4)), 1, 8, e.Plan.Model.Vocab)
	micro := func() error { return e.MicroBatch(b, 1, true) }
	agree := func() error { _, err := e.Agree(0, false); return err }
	update := func() error { return e.Update(Hyper{LR: 1e-3, GradScale: 1, Step: 1}) }
	evaluate := func() error { return e.Evaluate(b) }
	for what, c := range map[string]struct {
		calls []func() error
		panic string
	}{
		"a step":                       {[]func() error{micro, agree, update}, ""},
		"steps and an evaluation":      {[]func() error{micro, agree, update, evaluate, micro, update}, ""},
		"an evaluation in between":     {[]func() error{micro, agree, evaluate, update}, "whose gradients are gone"},
		"a second update":              {[]func() error{micro, update, update}, "whose gradients are gone"},
		"a second micro-batch to add":  {[]func() error{micro, func() error { return e.MicroBatch(b, 1, false) }}, "a second micro-batch"},
		"a second one to locate a NaN": {[]func() error{func() error { return e.Locate(b, 1, false, dev.NewStream("replay")) }}, "a second micro-batch"},
	} {
		func() {
			defer func() {
				said, _ := recover().(string)
				if (said != "") != (c.panic != "") || !strings.Contains(said, c.panic) {
					t.Errorf("%s: the engine says %q, want %q", what, said, c.panic)
				}
			}()
			for _, call := range c.calls {
				if err := call(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
		}()
	}
}
