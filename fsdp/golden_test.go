package fsdp

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/golden"
	"github.com/gofsdp/gofsdp/model"
)

// parsed returns a golden case and its configuration.
func parsed(t testing.TB, name string) (*golden.Case, model.Config) {
	t.Helper()
	c, err := golden.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.ParseConfig(c.Config, name)
	if err != nil {
		t.Fatal(err)
	}
	return c, cfg
}

// loaded returns an engine that holds a golden case's weights.
func loaded(t testing.TB, c *golden.Case, o Options, dev device.Device) *Engine {
	t.Helper()
	e := engine(t, o, dev)
	for name, w := range c.Weights() {
		if err := e.WriteOwned(name, 0, w); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Refresh(); err != nil {
		t.Fatal(err)
	}
	return e
}

func engine(t testing.TB, o Options, dev device.Device) *Engine {
	t.Helper()
	p, err := NewPlan(o)
	if err != nil {
		t.Fatal(err)
	}
	e, err := NewEngine(p, dev, Comms{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// positions counts each row from its document's start.
func positions(start []int32, seqLen int) []int32 {
	pos := make([]int32, len(start))
	for i, s := range start {
		pos[i] = int32(i%seqLen) - s
	}
	return pos
}

func valid(targets []int32) (n int) {
	for _, x := range targets {
		if x >= 0 {
			n++
		}
	}
	return n
}

// total adds losses in float64.
func total(losses []float32) (sum float64) {
	for _, l := range losses {
		sum += float64(l)
	}
	return sum
}

// off returns |got/want−1|. Where that is no number it is without bound: a NaN is below no limit
// and above none.
func off(got, want float64) float64 { return bounded(math.Abs(got/want - 1)) }

func bounded(x float64) float64 {
	if math.IsNaN(x) {
		return math.Inf(1)
	}
	return x
}

// relative returns ‖a−b‖/‖b‖ with the norm of b at least floor, and like off no NaN. Other sizes
// are without bound apart.
func relative(a, b []float32, floor float64) float64 {
	if len(a) != len(b) || len(b) == 0 {
		return math.Inf(1)
	}
	var diff, norm float64
	for i := range a {
		d := float64(a[i]) - float64(b[i])
		diff += d * d
		norm += float64(b[i]) * float64(b[i])
	}
	return bounded(math.Sqrt(diff) / max(math.Sqrt(norm), floor, math.SmallestNonzeroFloat64))
}

func l2(x []float32) (n float64) {
	for _, v := range x {
		n += float64(v) * float64(v)
	}
	return math.Sqrt(n)
}

// evaluated returns the logits of the last Evaluate, whose head must have run in
// one piece.
func evaluated(e *Engine) []float32 {
	var t device.Tensor
	for _, s := range e.Plan.Evaluation.Steps {
		if h, ok := s.Op.(*device.HeadLoss); ok {
			t = h.Logits
		}
	}
	return e.at(t).F32()
}

func TestNothingIsNearANaN(t *testing.T) {
	nan := float32(math.NaN())
	if r := off(math.NaN(), 1); !(r > 1) {
		t.Errorf("a NaN is off by %v", r)
	}
	if r := off(1, math.NaN()); !(r > 1) {
		t.Errorf("one is off a NaN by %v", r)
	}
	for _, c := range [][2][]float32{{{1, nan}, {1, 2}}, {{1, 2}, {1, nan}}, {{1}, {1, 2}}, {{}, {1}}, {{1, 2}, {1}}} {
		if r := relative(c[0], c[1], 0); !(r > 1) {
			t.Errorf("%v is off by %v from %v", c[0], r, c[1])
		}
	}
}

func TestLossLogitsAndGradientsEqualTransformers(t *testing.T) {
	names, err := golden.Names()
	if err != nil {
		t.Fatal(err)
	}
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, name := range names {
			for _, chunk := range []int{0, 7} {
				t.Run(fmt.Sprintf("%s head rows %d", name, chunk), func(t *testing.T) {
					c, cfg := parsed(t, name)
					e := loaded(t, c, Options{Model: cfg, Type: device.F32, Train: true, Eval: true, Seqs: c.Batch, SeqLen: c.Sequence, HeadRows: chunk}, dev)
					b := Batch{c.IDs, c.Targets, c.Start, positions(c.Start, c.Sequence)}
					n := float64(valid(c.Targets))
					if err := e.Evaluate(b); err != nil {
						t.Fatal(err)
					}
					if loss := total(e.Losses()) / n; off(loss, c.Loss) > 1e-5 {
						t.Errorf("the evaluated loss is %v, transformers' is %v", loss, c.Loss)
					}
					if chunk == 0 {
						logits := evaluated(e)
						if r := relative(logits, c.Logits, 0); r > 1e-5 {
							t.Errorf("logits are off by %.2g of their norm", r)
						}
					}
					if err := e.MicroBatch(b, float32(1/n), true); err != nil {
						t.Fatal(err)
					}
					if loss := total(e.Losses()) / n; off(loss, c.Loss) > 1e-5 {
						t.Errorf("the trained loss is %v, transformers' is %v", loss, c.Loss)
					}
					for _, p := range cfg.Params() {
						want, ok := c.Grads[p.Name]
						if !ok {
							t.Fatalf("the golden case has no gradient of %s", p.Name)
						}
						floor := 0.0
						if strings.HasSuffix(p.Name, "k_proj.bias") {
							// A key bias moves all scores of a row alike: its gradient is all
							// rounding, except through RoPE. Measure it against the whole bias.
							for _, x := range []string{"q", "k", "v"} {
								floor = math.Hypot(floor, l2(c.Grads[strings.Replace(p.Name, "k_proj", x+"_proj", 1)]))
							}
						}
						if r := relative(e.grad(p.Name), want, floor); r > 1e-4 {
							t.Errorf("the gradient of %s is off by %.2g", p.Name, r)
						}
					}
				})
			}
		}
	})
}

func TestTwentyStepsEqualPyTorch(t *testing.T) {
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, name := range []string{"qwen2-tied", "qwen3"} {
			t.Run(name, func(t *testing.T) {
				c, cfg := parsed(t, name)
				tr := c.Training
				if tr == nil || len(tr.Steps) != 20 {
					t.Fatal("the golden case holds no twenty steps")
				}
				e := loaded(t, c, Options{
					Model: cfg, Type: device.F32, Train: true, Seqs: tr.Sequences, SeqLen: tr.Sequence,
					Optimizer: Optimizer{Beta1: tr.Beta1, Beta2: tr.Beta2, Eps: tr.Eps, WeightDecay: tr.WeightDecay},
				}, dev)
				clipped := 0
				for i, s := range tr.Steps {
					n := tr.Sequences * tr.Sequence
					var sum float64
					for m := range tr.MicroBatches {
						b := Batch{s.IDs[m*n : (m+1)*n], s.Targets[m*n : (m+1)*n], make([]int32, n), positions(make([]int32, n), tr.Sequence)}
						if err := e.MicroBatch(b, float32(1/float64(s.Valid)), m == 0); err != nil {
							t.Fatal(err)
						}
						sum += total(e.Losses())
					}
					if loss := sum / float64(s.Valid); off(loss, s.Loss) > 1e-4 {
						t.Errorf("step %d: the loss is %v, PyTorch's is %v", i, loss, s.Loss)
					}
					a, err := e.Agree(sum, false)
					if err != nil {
						t.Fatal(err)
					}
					norm := math.Sqrt(a.SquaredNorm)
					if off(norm, s.Norm) > 1e-4 {
						t.Errorf("step %d: the gradient's norm is %v, PyTorch's is %v", i, norm, s.Norm)
					}
					// torch.nn.utils.clip_grad_norm_ multiplies by clip/(norm+1e-6), at most 1.
					factor := min(1, tr.Clip/(norm+1e-6))
					if factor < 1 {
						clipped++
					}
					if err := e.Update(Hyper{LR: s.LR, GradScale: factor, Step: i + 1}); err != nil {
						t.Fatal(err)
					}
				}
				if clipped == 0 || clipped == len(tr.Steps) {
					t.Errorf("%d of %d steps were clipped: the case does not show both", clipped, len(tr.Steps))
				}
				start := c.Weights()
				for _, f := range tr.Final {
					w := e.param(f.Name)
					if off(l2(w), f.Norm) > 1e-4 {
						t.Errorf("%s ends with the norm %v, PyTorch's is %v", f.Name, l2(w), f.Norm)
					}
					moved := make([]float32, len(w))
					for i := range w {
						moved[i] = w[i] - start[f.Name][i]
					}
					if !strings.HasSuffix(f.Name, "k_proj.bias") && off(l2(moved), f.Moved) > 1e-2 {
						t.Errorf("%s moved by %v, PyTorch's by %v", f.Name, l2(moved), f.Moved)
					}
				}
			})
		}
	})
}

func TestGreedyGenerationEqualsTransformersTokenForToken(t *testing.T) {
	names, err := golden.Names()
	if err != nil {
		t.Fatal(err)
	}
	onDevices(t, func(t *testing.T, dev device.Device) {
		for _, name := range names {
			c, cfg := parsed(t, name)
			for i, g := range c.Greedy {
				for _, prefill := range []int{1, 3, 16} {
					t.Run(fmt.Sprintf("%s prompt %d prefill %d", name, i, prefill), func(t *testing.T) {
						e := loaded(t, c, Options{Model: cfg, Type: device.F32, Decoding: Decoding{Seqs: 1, CacheLen: len(g.Prompt) + len(g.Tokens), Prefill: prefill}}, dev)
						var got []int32
						for next := g.Prompt; len(got) < len(g.Tokens); {
							logits, err := e.Extend([][]int32{next})
							if err != nil {
								t.Fatal(err)
							}
							next = []int32{int32(slices.Index(logits, slices.Max(logits)))}
							got = append(got, next[0])
						}
						if !slices.Equal(got, g.Tokens) {
							t.Errorf("generated %v\nwant      %v", got, g.Tokens)
						}
					})
				}
			}
		}
	})
}
