package bench

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/record"
)

// little is a run that the reference device does in a second.
func little(t *testing.T) Settings {
	dir := t.TempDir()
	c := model.Config{
		Family: "qwen2", QKVBias: true, Vocab: 40, Hidden: 8, Layers: 2, Heads: 2, KVHeads: 1, HeadSize: 4, MLP: 12,
		MaxPositions: 64, NormEps: 1e-6, RopeTheta: 10000, Tied: true, InitStd: 0.02,
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), c.JSON(), 0o644); err != nil {
		t.Fatal(err)
	}
	s := Short()
	s.Model, s.Length, s.Sequences, s.Reading = dir, 16, 2, time.Microsecond
	return s
}

var said = rates{f32: 1e9, bf16: 2e9, bandwidth: 1e10}

func openMetered(int) (device.Device, error) { return metered{device.NewReference(), said}, nil }

// cramped is a device with one MiB of memory.
type cramped struct{ metered }

func (cramped) Info() device.Info { return device.Info{Memory: 1 << 20} }

func quiet(string, ...any) {}

func TestAShortRunMeasuresEveryOperation(t *testing.T) {
	s := little(t)
	r, err := Run(t.Context(), s, openMetered, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Machine) != 1 || r.Machine[0].Threads != 1 || r.Machine[0].F32.Median != 1e9 || r.Machine[0].Triad.Median != 5e9 || r.Machine[0].Copy.Count != s.Readings {
		t.Errorf("machine: %+v", r.Machine)
	}
	if len(r.Workloads) != 2 {
		t.Fatalf("%d workloads, want one a precision", len(r.Workloads))
	}
	for i, w := range r.Workloads {
		if want := s.Precisions[i].String(); w.Precision != want {
			t.Errorf("workload %d is in %s, want %s", i, w.Precision, want)
		}
		checkWorkload(t, s, &w, said.peak(s.Precisions[i]))
	}
}

func checkWorkload(t *testing.T, s Settings, w *Workload, peak float64) {
	t.Helper()
	if w.Step.Peak != (Spread{peak, peak, peak, s.Steps + 1}) || w.Step.Seconds.Count != s.Steps {
		t.Errorf("%s: %+v", w.Precision, w.Step)
	}
	if c := w.Step.Cores; c.Count != s.Steps || c.Low < 0 || c.High == 0 {
		t.Errorf("%s: share of cores: %+v", w.Precision, c)
	}
	if got, want := w.Step.Share.Median, w.Step.Tokens.Median*w.FLOPsPerToken/peak; !near(got, want) {
		t.Errorf("%s: share %v, want %v", w.Precision, got, want)
	}
	// In each step the share is the product of the other two.
	if st := w.Step; st.OnCores.High*st.Cores.High < st.Share.High*(1-1e-9) || st.OnCores.Low*st.Cores.Low > st.Share.Low*(1+1e-9) {
		t.Errorf("%s: a share %+v is not %+v on cores times %+v of cores", w.Precision, st.Share, st.OnCores, st.Cores)
	}
	if w.Outside.Low < 0 || w.Outside.High >= w.Watched.High || w.Outside.Count != s.Watched {
		t.Errorf("%s: outside of operations: %+v of %+v", w.Precision, w.Outside, w.Watched)
	}
	seen, part := map[string]bool{}, 0.0
	for _, o := range w.Operations {
		seen[o.Name] = true
		within := s.Watched
		if o.Program == InNone {
			within = 0
		}
		if o.Alone.Seconds.Count != s.Rounds || o.Alone.Share.Low <= 0 || o.Within.Seconds.Count != within {
			t.Errorf("%s: %s %s: measured %d times alone and %d within, want %d and %d",
				w.Precision, o.Name, o.Shape, o.Alone.Seconds.Count, o.Within.Seconds.Count, s.Rounds, within)
		}
		if o.Program == InStep {
			part += o.Part
		}
	}
	for _, op := range device.Ops() {
		if !seen[device.Name(op)] {
			t.Errorf("%s: %s is not measured", w.Precision, device.Name(op))
		}
	}
	if !(part > 0) || math.IsInf(part, 0) { // how near to 1 is a matter of who else uses the machine
		t.Errorf("%s: the operations are %v of the step", w.Precision, part)
	}
}

func TestABenchThatIsInterruptedSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	parts := 0
	_, err := Run(ctx, little(t), openMetered, func(string, ...any) {
		if parts++; parts == 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || parts != 2 {
		t.Errorf("after part %d: %v", parts, err)
	}
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	unknown := little(t)
	unknown.Model = "no-such-model-here"
	long := little(t)
	long.Length = 65
	many := little(t)
	many.Sequences = 1 << 40
	large := little(t)
	large.Sequences = 1 << 14
	broken := errors.New("no device")
	for sentence, c := range map[string]struct {
		s    Settings
		open Open
	}{
		"a model that is not there":              {unknown, openMetered},
		"sequences longer than the positions":    {long, openMetered},
		"more sequences than can be planned":     {many, openMetered},
		"more than the memory":                   {large, func(int) (device.Device, error) { return cramped{metered{device.NewReference(), said}}, nil }},
		"a device that does not open":            {little(t), func(int) (device.Device, error) { return nil, broken }},
		"a device that cannot tell its own peak": {little(t), func(int) (device.Device, error) { return device.NewReference(), nil }},
	} {
		began := 0
		if _, err := Run(t.Context(), c.s, c.open, func(string, ...any) { began++ }); err == nil || began > 0 {
			t.Errorf("%s: %v, with %d parts begun", sentence, err, began)
		}
	}
}

func TestOnlyActivationsAreFilled(t *testing.T) {
	b := &bench{Settings: little(t), config: mustResolve(t, little(t).Model), log: quiet}
	dev := device.NewReference()
	defer dev.Close()
	var ops []device.Op
	w := &watcher{Device: dev, seen: func(op device.Op, _ float64) { ops = append(ops, op) }}
	e, err := b.engine(b.options(device.F32, false), w, new(Startup))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := newTrainee(e).step(); err != nil {
		t.Fatal(err)
	}
	weight := func() []float32 {
		const name = "model.layers.0.mlp.down_proj.weight"
		_, n := e.Owned(name)
		w := make([]float32, n)
		if err := e.ReadOwned(name, 0, w); err != nil {
			t.Fatal(err)
		}
		return w
	}
	before := weight()
	filled := 0
	for _, op := range ops {
		if err := fill(e.Plan, op, fillHost); err != nil {
			t.Fatal(err)
		}
		if m, ok := op.(*device.MatMul); ok && m.A.F32()[0] == normals[0] {
			filled++
		}
	}
	if filled == 0 {
		t.Error("no product reads filled activations")
	}
	if diff := cmp.Diff(before, weight()); diff != "" {
		t.Errorf("weights changed: %s", diff)
	}
}

func mustResolve(t *testing.T, name string) model.Config {
	src, err := model.Resolve(name)
	if err != nil {
		t.Fatal(err)
	}
	return src.Config
}

func TestTargetsAreSetForTheModelsThatAreJudged(t *testing.T) {
	for name, want := range map[string]float64{"tiny": 0.5, "bench-98m": 1.5} {
		if got, ok := targetOf(name).Get(); !ok || got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if _, ok := targetOf("qwen2.5-7b").Get(); ok {
		t.Error("a model without a target has one")
	}
}

// example is every field with a value that shows where it goes.
func example() *Results {
	sp := func(m float64) Spread { return Spread{m, m * 0.9, m * 1.2, 5} }
	return &Results{
		Format: Format, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Host: record.Host{
			Name: record.Known("host"), Platform: "linux/amd64", OS: record.Known("Linux 1"), Kernel: record.Known("6.1"), CPU: record.Known("CPU X"),
			Cores: record.Unknown[int]("not told"), CPUs: 2, Memory: record.Known[int64](1 << 34),
		},
		Build:   record.Build{Version: record.Known("v1.0.0"), Commit: record.Known("abc"), Modified: record.Known(false), Go: "go1.26"},
		Device:  Device{Name: "CPU X", Kind: "cpu", ISA: "avx512", Threads: 2, Memory: 1 << 34, BF16Native: true},
		Short:   true,
		Machine: []Machine{{1, sp(100e9), sp(200e9), sp(10e9), sp(11e9)}, {2, sp(190e9), sp(390e9), sp(17e9), sp(18e9)}},
		Workloads: []Workload{{
			Model: "bench-98m", Parameters: 97745664, Sequences: 2, Length: 512, Precision: "f32", Recompute: "none", Threads: 2, FLOPsPerToken: 6.1e8, ArenaBytes: 3 << 30,
			Startup: Startup{0.001, 0.01, 0.02, 0.3, 5.5, record.Known(1.5)},
			Step:    Step{sp(4), sp(256), sp(190e9), sp(0.72), sp(0.8), sp(0.9)}, Watched: sp(4.1), Outside: sp(0.04),
			Kinds: []Kind{{"MatMul", 300, sp(3.2), 0.78, sp(0.9), 0.078}, {"AdamW", 14, sp(0.2), 0.05, sp(1.1), 0}},
			Operations: []Operation{
				{InStep, "MatMul", "M=1024 N=2048 K=768 TransB", "A f32, B f32, C f32", 24, 3221225472, 17825792, ByCompute, Timing{sp(0.018), sp(0.94)}, Timing{sp(0.019), sp(0.9)}, 0.11, 0.011},
				{InDecode, "AttentionDecode", "Seqs=1", "Q f32", 12, 100, 1000, ByMemory, Timing{sp(0.00002), sp(0.5)}, Timing{sp(0.00003), sp(0.4)}, 0.3, 0.18},
				{InNone, "Copy", "N=64", "Src f32, Dst f32", 1, 0, 512, ByMemory, Timing{sp(0.000001), sp(1.3)}, Timing{}, 0, 0},
			},
		}, {Model: "own", Watched: sp(1), Startup: Startup{Target: record.Unknown[float64]("no target is set for this model")}}},
		Collectives: []Collective{
			{"barrier", 2, 1, 0, 0, sp(0.000001), Spread{}, Spread{}},
			{"all-gather", 2, 1, 1 << 20, 1 << 19, sp(0.0001), sp(0.00008), sp(0.8)},
			{"all-reduce", 2, 1, 256 << 20, 256 << 20, sp(0.04), sp(0.03), sp(0.75)},
			{"all-gather", 4, 1, 1 << 20, 3 << 18, sp(0.0003), sp(0.0001), sp(0.33)},
		},
		Ranks: &RankedWorkload{
			Model: "bench-98m", Parameters: 97745664, Sequences: 2, Length: 512, Precision: "f32", Recompute: "none", Threads: 1, FLOPsPerToken: 6.1e8,
			Steps: []RankedStep{
				{1, "1x1", "no_shard", 3 << 30, Step{sp(4), sp(256), sp(100e9), sp(0.8), sp(0.99), sp(0.81)}, sp(1), sp(1)},
				{2, "1x2", "full_shard", 2 << 30, Step{sp(4.2), sp(490), sp(190e9), sp(0.78), sp(0.98), sp(0.8)}, sp(1.9), sp(1.02)},
			},
		},
	}
}

var sameValues = cmp.AllowUnexported(record.Value[float64]{}, record.Value[string]{}, record.Value[int]{}, record.Value[int64]{}, record.Value[bool]{})

// The format's golden file stays readable: whoever changes it counts Format up
// and keeps the old file.
func TestTheFormatIsTheGoldenOnes(t *testing.T) {
	golden := filepath.Join("testdata", "results.v2.json")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "results.json")
	if err := example().WriteFile(path); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-golden +written):\n%s", golden, diff)
	}
	var read Results
	if err := json.Unmarshal(want, &read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example(), &read, sameValues); diff != "" {
		t.Errorf("%s (-example +read):\n%s", golden, diff)
	}
}

// Format 1 was of one rank: it had all but what several ranks measure.
func TestTheFormerFormatIsStillRead(t *testing.T) {
	golden := filepath.Join("testdata", "results.v1.json")
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var read Results
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	want := example()
	want.Format, want.Collectives, want.Ranks = 1, nil, nil
	if diff := cmp.Diff(want, &read, sameValues); diff != "" {
		t.Errorf("%s (-example +read):\n%s", golden, diff)
	}
}
