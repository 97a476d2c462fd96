package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
)

// shape is small enough for the reference device.
var shape = model.Config{
	Family: "qwen2", Vocab: 300, Hidden: 16, Layers: 2, Heads: 2, KVHeads: 1, HeadSize: 8, MLP: 24,
	MaxPositions: 64, NormEps: 1e-6, RopeTheta: 10000, QKVBias: true, Tied: true, InitStd: 0.02,
}

// work returns a run over a few small documents, with the model in a directory
// of its own.
func work(t testing.TB) Work {
	t.Helper()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.Mkdir(text, 0o777); err != nil {
		t.Fatal(err)
	}
	for i := range 24 {
		var b strings.Builder
		for j := range 40 {
			fmt.Fprintf(&b, "the %d red fox jumps over %d lazy dogs\n", i*j%17, (i+j)%5)
		}
		if err := os.WriteFile(filepath.Join(text, fmt.Sprintf("%02d.txt", i)), []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "model"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "model", "config.json"), shape.JSON(), 0o666); err != nil {
		t.Fatal(err)
	}
	return Work{
		Model: filepath.Join(dir, "model"),
		Data: data.Settings{
			Path: []string{text}, Include: []string{"*.txt"}, Format: data.FormatText, Holdout: 0.1, SequenceLength: 16,
			Tokenizer: data.TokenizerTrain, VocabSize: 270, CacheDir: filepath.Join(dir, "cache"),
		},
		Train: Settings{
			Steps: 12, Batch: 4, MicroBatch: 2, Precision: "f32", Recompute: "none", LR: 1e-2, Schedule: "cosine", Warmup: 2, Clip: 1,
			Weights: "auto", Optimizer: optimizer,
		},
	}
}

var optimizer = fsdp.Optimizer{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}

func open(t testing.TB, w Work) *Run {
	t.Helper()
	return openOn(t, w, device.NewReference())
}

// openOn opens a run on a device, which is closed behind it.
func openOn(t testing.TB, w Work, dev device.Device) *Run {
	t.Helper()
	r, err := Open(context.Background(), w, Place{}, dev, nil)
	if err != nil {
		t.Fatal(errors.Join(err, dev.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// seen is a Reporter that remembers.
type seen struct {
	steps []StepReport
	evals []int
	stop  func(step int)
}

func (s *seen) Step(r StepReport) error {
	s.steps = append(s.steps, r)
	if s.stop != nil {
		s.stop(r.Step)
	}
	return nil
}

func (s *seen) Evaluated(step int, e Evaluation) error {
	s.evals = append(s.evals, step)
	return nil
}

// weights copies all parameters of an engine that has them whole.
func weights(t *testing.T, e *fsdp.Engine) (all []float32) {
	t.Helper()
	for _, p := range e.Plan.Model.Params() {
		w := make([]float32, p.Len())
		if err := e.ReadOwned(p.Name, 0, w); err != nil {
			t.Fatal(err)
		}
		all = append(all, w...)
	}
	return all
}

// spoil makes an element of a parameter a NaN.
func spoil(t *testing.T, e *fsdp.Engine, param string, element int) {
	t.Helper()
	if err := e.WriteOwned(param, element, []float32{float32(math.NaN())}); err != nil {
		t.Error(err)
	}
}

func TestARunLearnsAndGivesTheSameBitsTwice(t *testing.T) {
	w := work(t)
	var first []float32
	for again := range 2 {
		r := open(t, w)
		var s seen
		sum, err := r.Train(context.Background(), &s)
		if err != nil {
			t.Fatal(err)
		}
		if sum.Steps != 12 || sum.Tokens != 12*4*16 || len(s.steps) != 12 {
			t.Errorf("%+v", sum)
		}
		if !(s.steps[11].Loss < s.steps[0].Loss-0.5) {
			t.Errorf("the loss went from %.3f to %.3f", s.steps[0].Loss, s.steps[11].Loss)
		}
		if math.IsNaN(sum.HeldOut.BitsPerByte) || sum.HeldOut.Targets == 0 {
			t.Errorf("held-out: %+v", sum.HeldOut)
		}
		if again == 0 {
			first = weights(t, r.Engine)
		} else if !slices.Equal(first, weights(t, r.Engine)) {
			t.Error("the second run ended with other weights")
		}
	}
}

func TestMicroBatchesChangeLittle(t *testing.T) {
	w := work(t)
	losses := map[int][]float64{}
	for _, micro := range []int{1, 2, 4} {
		w.Train.MicroBatch = micro
		var s seen
		if _, err := open(t, w).Train(context.Background(), &s); err != nil {
			t.Fatal(err)
		}
		for _, r := range s.steps {
			losses[micro] = append(losses[micro], r.Loss)
		}
	}
	for i, want := range losses[4] {
		for _, micro := range []int{1, 2} {
			if got := losses[micro][i]; !(math.Abs(got/want-1) <= 1e-5) {
				t.Errorf("step %d: loss %v in micro-batches of %d, %v in one", i+1, got, micro, want)
			}
		}
	}
}

func TestEvaluationsComeWhenTheyShould(t *testing.T) {
	w := work(t)
	w.Train.EvalEvery, w.Train.EvalPacks = 5, 1
	var s seen
	if _, err := open(t, w).Train(context.Background(), &s); err != nil {
		t.Fatal(err)
	}
	if want := []int{5, 10, 12}; !slices.Equal(s.evals, want) {
		t.Errorf("evaluated after %v, want %v", s.evals, want)
	}
}

func TestAnInterruptedRunFinishesItsStep(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := seen{stop: func(step int) {
		if step == 3 {
			cancel()
		}
	}}
	sum, err := open(t, work(t)).Train(ctx, &s)
	if err != nil || !sum.Interrupted || sum.Steps != 3 {
		t.Errorf("%+v, %v", sum, err)
	}
}

func TestANaNIsFoundBeforeTheOptimizerAndLocated(t *testing.T) {
	for _, c := range []struct{ param, want string }{
		{"model.layers.1.mlp.up_proj.weight", "block 1, mlp.up"},
		{"model.layers.0.self_attn.q_proj.bias", "block 0, attn.qkv"},
		{"model.norm.weight", "embed+head, head.norm"},
	} {
		r := open(t, work(t))
		var before []float32
		s := seen{stop: func(step int) {
			if step == 4 {
				spoil(t, r.Engine, c.param, 3)
				before = weights(t, r.Engine)
			}
		}}
		_, err := r.Train(context.Background(), &s)
		var nf *NotFinite
		if !errors.As(err, &nf) || nf.Step != 5 || nf.MicroBatch != 1 || !errors.As(err, new(*device.NotFiniteError)) {
			t.Fatalf("%s: %v", c.param, err)
		}
		if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "micro-batch 1") {
			t.Errorf("a NaN in %s is located as: %v", c.param, err)
		}
		after := weights(t, r.Engine)
		for i := range before {
			if math.Float32bits(before[i]) != math.Float32bits(after[i]) {
				t.Fatalf("%s: the optimizer ran", c.param)
			}
		}
	}
}

func TestANaNThatOneSequenceMeetsIsLocatedInItsMicroBatch(t *testing.T) {
	w, untied := work(t), shape
	untied.Tied = false
	if err := os.WriteFile(filepath.Join(w.Model, "config.json"), untied.JSON(), 0o666); err != nil {
		t.Fatal(err)
	}
	r := open(t, w)
	sampler, err := data.NewSampler(r.Data.Train, 4)
	if err != nil {
		t.Fatal(err)
	}
	// A step whose second micro-batch has a token that its first has not.
	b, step, token := newBatch(4, 16), 0, -1
	for ; token < 0; step++ {
		for i, ref := range sampler.Step(step) {
			r.Data.Train.Read(ref.Epoch, ref.Pack, b.pack(i))
		}
		half := len(b.IDs) / 2
		if i := slices.IndexFunc(b.IDs[half:], func(id int32) bool { return !slices.Contains(b.IDs[:half], id) }); i >= 0 {
			token = int(b.IDs[half+i])
		}
	}
	l, err := newLoop(&Job{Settings: w.Train, Engine: r.Engine, Device: r.dev, Train: r.Data.Train}, 12)
	if err != nil {
		t.Fatal(err)
	}
	spoil(t, r.Engine, model.EmbedName, token*shape.Hidden)
	_, _, err = l.step(step-1, false)
	var nf *NotFinite
	if !errors.As(err, &nf) || nf.Step != step || nf.MicroBatch != 2 {
		t.Fatalf("step %d: %v", step, err)
	}
	for _, want := range []string{"micro-batch 2", "embed, embed", "Embed: Out"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the place lacks %q: %v", want, err)
		}
	}
}

func TestAnExportGoesOnWhereTheRunStopped(t *testing.T) {
	w := work(t)
	r := open(t, w)
	sum, err := r.Train(context.Background(), &seen{})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "model")
	if err := r.Export(dir); err != nil {
		t.Fatal(err)
	}
	dev := device.NewReference()
	defer dev.Close()
	src, tok, weights, err := OpenModel(dir, "auto")
	if err != nil {
		t.Fatal(err)
	}
	if weights == nil || tok == nil || src.Config != shape {
		t.Fatalf("the directory came back as %+v", src)
	}
	if err := weights.Close(); err != nil {
		t.Fatal(err)
	}
	w.Model = dir
	open(t, w) // with a tokenizer of its own, and nobody who listens
	w.Data.Tokenizer = data.TokenizerModel
	again := open(t, w)
	ev, err := Evaluate(context.Background(), again.Engine, again.Data.HeldOut, 0)
	if err != nil {
		t.Fatal(err)
	}
	if ev.Loss != sum.HeldOut.Loss {
		t.Errorf("the exported weights have the held-out loss %v, the run's had %v", ev.Loss, sum.HeldOut.Loss)
	}
}

func TestGeneratingFromWeightsThatAreNoNumbersIsRefused(t *testing.T) {
	for _, temperature := range []float64{0, 1} {
		w := work(t)
		w.Train.Sample = Sample{Prompts: []string{"the"}, Tokens: 4, Temperature: temperature, TopP: 1}
		r := open(t, w)
		if err := r.Generate(context.Background(), "the", func([]byte) {}); err != nil {
			t.Fatal(err)
		}
		spoil(t, r.Engine, model.NormName, 3)
		err := r.Generate(context.Background(), "the", func(text []byte) { t.Errorf("it generated %q", text) })
		if err == nil || !strings.Contains(err.Error(), "not finite") {
			t.Errorf("temperature %v: %v", temperature, err)
		}
	}
}

func TestAnExportInBF16NeedsHalfTheDisk(t *testing.T) {
	w := work(t)
	w.Train.Export = "bf16"
	r := open(t, w)
	dir := filepath.Join(t.TempDir(), "model")
	if err := r.Export(dir); err != nil {
		t.Fatal(err)
	}
	file, err := os.Stat(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if n := r.DiskBytes() - 1<<20; n > file.Size() || n < file.Size()*9/10-1<<14 {
		t.Errorf("%d bytes of weights are expected, %d were written", n, file.Size())
	}
}

func TestWeightsThatDoNotFitAreRefused(t *testing.T) {
	w := work(t)
	other := shape
	other.MLP = 25
	x := checkpoint.Export{Config: other, Weight: func(string, int, []float32) error { return nil }}
	dir := filepath.Join(t.TempDir(), "model")
	if err := checkpoint.WriteHuggingFace(dir, x); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), shape.JSON(), 0o666); err != nil {
		t.Fatal(err)
	}
	w.Model = dir
	dev := device.NewReference()
	defer dev.Close()
	_, err := Open(context.Background(), w, Place{}, dev, nil)
	if err == nil || !strings.Contains(err.Error(), "[24 16]") || !strings.Contains(err.Error(), "[25 16]") || strings.Count(err.Error(), "mlp.") != 6 {
		t.Errorf("six tensors do not fit: %v", err)
	}
}

func TestAStepAllocatesNothingAndMemoryDoesNotGrow(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	r, err := Open(context.Background(), work(t), Place{}, dev, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l, err := newLoop(&Job{Settings: r.Work.Train, Engine: r.Engine, Device: dev, Train: r.Data.Train}, 200)
	if err != nil {
		t.Fatal(err)
	}
	run := func(step int) {
		if _, _, err := l.step(step, false); err != nil {
			t.Fatal(err)
		}
	}
	for step := range 5 {
		run(step)
	}
	before := resident(t)
	for step := 5; step < 200; step++ {
		run(step)
	}
	// The epochs that begin on the way take some memory each, for their order;
	// a leak of one byte an element and step would be 195 times this model.
	if grown := resident(t) - before; grown > 4<<20 {
		t.Errorf("memory grew by %d bytes from step 5 to step 200", grown)
	}
	if dev.Info().ISA == "go" {
		return // without C the reference takes the kernels' place, and it allocates
	}
	// Steps within one epoch.
	step := 199
	if n := testing.AllocsPerRun(20, func() { run(step) }); n != 0 {
		t.Errorf("a step allocates %v times", n)
	}
}

// resident returns the process's memory in RAM.
func resident(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("this system does not tell how much memory a process has")
	}
	var pages, in int64
	if _, err := fmt.Sscan(string(text), &pages, &in); err != nil {
		t.Fatal(err)
	}
	return in * int64(os.Getpagesize())
}
