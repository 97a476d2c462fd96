package report

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
	"github.com/gofsdp/gofsdp/record"
)

// maker makes results of invented figures, the same ones each time.
type maker struct{ random *rand.Rand }

func newMaker() *maker { return &maker{rand.New(rand.NewPCG(5, 98))} }

// around returns n values within 2 % of x.
func (m *maker) around(x float64, n int) []float64 {
	xs := make([]float64, n)
	for i := range xs {
		xs[i] = x * (1 + 0.02*(2*m.random.Float64()-1))
	}
	return xs
}

// result is one of a scenario with nothing measured yet.
func (m *maker) result(s scenario.Scenario) *scenario.Result {
	return &scenario.Result{
		Format: scenario.Format, Time: time.Date(2026, 10, 2, 9, 30, 0, 0, time.UTC),
		Host: record.Host{
			Name: record.Known("bench-1"), Platform: "linux/amd64", OS: record.Known("Debian GNU/Linux 13"), Kernel: record.Known("6.12.1"),
			CPU: record.Known("Example 9000"), Cores: record.Known(2), CPUs: 2, Memory: record.Known[int64](16 << 30),
		},
		Build:    record.Build{Commit: record.Known("0123456789abcdef0123456789abcdef01234567"), Modified: record.Known(false), Go: "go1.26.0"},
		Device:   bench.Device{Name: "Example 9000", Kind: "cpu", ISA: "avx512bf16", Threads: 2, BF16Native: true},
		Command:  []string{"gofsdp", "bench", "run", s.Name},
		Scenario: s,
	}
}

// caseOf says what is measured of a case: its seconds and, of a step, more.
type caseOf struct {
	name    string
	seconds float64
	limit   float64
	tokens  int64
	flops   float64
	peak    int64
}

// run adds a run of every side to a new round; a side with no cases fails as
// the text says.
func (m *maker) round(r *scenario.Result, sides map[string][]caseOf, failures map[string]string) {
	var round scenario.Round
	for _, s := range r.Scenario.Sides {
		run := scenario.Run{Side: s.Name, Seconds: 20, Limits: scenario.Limits{
			F32: m.around(234e9, 1)[0], BF16: m.around(468e9, 1)[0], Copy: m.around(21e9, 1)[0],
		}}
		if reason := failures[s.Name]; reason != "" {
			run.Failure = &scenario.Failure{Reason: reason, Text: "Killed"}
			round.Runs = append(round.Runs, run)
			continue
		}
		run.Sample = &scenario.Sample{Format: scenario.TaskFormat, Versions: map[string]string{s.Name: "1.0"}}
		for _, c := range sides[s.Name] {
			x := scenario.Case{Name: c.name, Seconds: m.around(c.seconds, max(1, r.Scenario.Work.Timed)), Tokens: c.tokens, FLOPs: c.flops}
			if c.limit > 0 {
				x.Limit = m.around(c.limit, len(x.Seconds))
			}
			if c.peak > 0 {
				x.Peak = []int64{c.peak - 1e6, c.peak}
			}
			run.Sample.Cases = append(run.Sample.Cases, x)
		}
		round.Runs = append(round.Runs, run)
	}
	r.Rounds = append(r.Rounds, round)
}

// ratio adds a ratio, whose pairs are around x; a failure if x is 0.
func (m *maker) ratio(r *scenario.Result, ratio scenario.Ratio, x float64, failure string) {
	f := scenario.RatioFigure{Ratio: ratio, Failure: failure}
	if x > 0 {
		f.Pairs = m.around(x, len(r.Rounds))
		f.Spread = bench.SpreadOf(f.Pairs)
		f.Verdict = verdictOf(f.Spread.Median, ratio.Firm, ratio.Aim, ratio.By == scenario.ByMemory)
	}
	r.Ratios = append(r.Ratios, f)
}

// share adds a share of what was measured of a side's case.
func (m *maker) share(r *scenario.Result, share scenario.Share, x float64) {
	f := scenario.ShareFigure{Share: share, Values: m.around(x, len(r.Rounds)*max(1, r.Scenario.Work.Timed))}
	f.Spread = bench.SpreadOf(f.Values)
	f.Verdict = verdictOf(f.Spread.Median, share.Firm, share.Aim, false)
	r.Shares = append(r.Shares, f)
}

func verdictOf(x, firm, aim float64, smaller bool) scenario.Verdict {
	reached := func(target float64) bool {
		return target != 0 && ((x >= target) != smaller || x == target)
	}
	switch {
	case firm == 0 && aim == 0:
		return scenario.NoTarget
	case reached(aim):
		return scenario.Aimed
	case reached(firm):
		return scenario.Firm
	}
	return scenario.Missed
}

var (
	ours     = scenario.Side{Name: "gofsdp", Command: []string{"gofsdp", "bench", "side"}}
	eager    = scenario.Side{Name: "FSDP2 eager", Command: []string{"python", "step.py"}}
	compiled = scenario.Side{Name: "FSDP2 compiled", Command: []string{"python", "step.py", "--compile"}}
)

// step is a comparison of the training step with the peers.
func (m *maker) step(name, title, model, precision string, rounds int, seconds, limit float64, failures map[string]string) *scenario.Result {
	r := m.result(scenario.Scenario{
		Name: name, Title: title, Compared: "The whole optimizer step, forward to update.",
		Counted: "Tokens of all ranks over the seconds of the slowest.", Fair: "Same weights, tokens, threads and optimizer; losses agree.",
		Rounds: rounds, Agree: 1e-3, Sides: []scenario.Side{ours, eager, compiled},
		Work: scenario.Work{
			Kind: scenario.Steps, Model: model, Precision: precision, Length: 512, Sequences: 2, Ranks: 2, Threads: 1, Warm: 1, Timed: 3,
			Cases: []scenario.StepCase{{Name: "full_shard", Strategy: "full_shard"}},
		},
	})
	peak := 234e9
	if precision == "bf16" {
		peak = 468e9
	}
	one := func(slower float64, gigabytes float64) []caseOf {
		return []caseOf{{name: "full_shard", seconds: seconds * slower, tokens: 2048, flops: limit * peak * seconds, peak: int64(gigabytes * 1e9)}}
	}
	for range rounds {
		m.round(r, map[string][]caseOf{"gofsdp": one(1, 1.3), "FSDP2 eager": one(1.58, 3.8), "FSDP2 compiled": one(1.37, 3.4)}, failures)
	}
	speed := func(side, failure string, x, firm, aim float64) {
		m.ratio(r, scenario.Ratio{Of: "gofsdp", Against: side, By: scenario.BySpeed, Firm: firm, Aim: aim}, x, failure)
	}
	if reason := failures["FSDP2 eager"]; reason != "" {
		speed("FSDP2 eager", "FSDP2 eager: "+reason, 0, 1.5, 1.6)
	} else {
		speed("FSDP2 eager", "", 1.58, 1.5, 1.6)
		m.ratio(r, scenario.Ratio{Of: "gofsdp", Against: "FSDP2 eager", By: scenario.ByMemory, Firm: 0.5, Aim: 1. / 3}, 1.3/3.8, "")
	}
	speed("FSDP2 compiled", "", 1.37, 1.3, 1.45)
	m.share(r, scenario.Share{Of: "gofsdp", Firm: 0.8, Aim: 0.87}, limit)
	r.Disagreement = &scenario.Disagreement{Relative: 2.3e-5, Step: 4, A: "gofsdp", B: "FSDP2 compiled"}
	return r
}

// strategies is a comparison of one side's cases, two of which miss.
func (m *maker) strategies() *scenario.Result {
	r := m.result(scenario.Scenario{
		Name: "strategies-98m", Title: "Every strategy, 98 M", Rounds: 5, Sides: []scenario.Side{ours},
		Work: scenario.Work{Kind: scenario.Steps, Model: "bench-98m", Precision: "f32", Length: 512, Sequences: 2, Ranks: 2, Threads: 1, Warm: 1, Timed: 2},
	})
	names := []string{"no_shard", "shard_optimizer", "shard_grad_op", "full_shard", "hybrid_full_shard"}
	speeds := []float64{1, 1.01, 0.985, 0.94, 0.91}
	var cases []caseOf
	for i, name := range names {
		r.Scenario.Work.Cases = append(r.Scenario.Work.Cases, scenario.StepCase{Name: name, Strategy: name})
		cases = append(cases, caseOf{name: name, seconds: 6.4 / speeds[i], tokens: 2048, flops: 1.25e12, peak: 1.3e9})
	}
	for range 5 {
		m.round(r, map[string][]caseOf{"gofsdp": cases}, nil)
	}
	for i, name := range names[1:] {
		m.ratio(r, scenario.Ratio{
			Of: "gofsdp/" + name, Against: "gofsdp/no_shard", By: scenario.BySpeed, Firm: 0.95,
			Why: "no_shard reduces as many bytes, and gathers none.",
		}, speeds[i+1], "")
	}
	return r
}

func (m *maker) collectives() *scenario.Result {
	r := m.result(scenario.Scenario{
		Name: "collectives", Title: "Collectives of two ranks", Rounds: 5, Sides: []scenario.Side{ours, {Name: "gloo", Command: []string{"python", "collectives.py"}}},
		Work: scenario.Work{Kind: scenario.Collectives, Ranks: 2, Threads: 1, Warm: 2, Timed: 5, Sizes: []int64{1, 4, 16, 64, 256}},
	})
	var mine, theirs []caseOf
	type kind struct {
		name        string
		reach, gloo float64
	}
	kinds := []kind{{"all-gather", 0.82, 0.3}, {"reduce-scatter", 0.74, 0.21}, {"all-reduce", 0.68, 0.25}}
	for _, k := range kinds {
		for _, size := range r.Scenario.Work.Sizes {
			limit := float64(size) * (1 << 20) / 21e9
			overhead := 30e-6
			name := fmt.Sprintf("%s %d MB", k.name, size)
			mine = append(mine, caseOf{name: name, seconds: limit/k.reach + overhead, limit: limit})
			theirs = append(theirs, caseOf{name: name, seconds: limit/k.gloo + 4*overhead})
		}
	}
	for range 5 {
		m.round(r, map[string][]caseOf{"gofsdp": mine, "gloo": theirs}, nil)
	}
	for i := range mine {
		m.ratio(r, scenario.Ratio{Of: "gofsdp/" + mine[i].name, Against: "gloo/" + mine[i].name, By: scenario.BySpeed, Firm: 2, Aim: 3}, theirs[i].seconds/mine[i].seconds, "")
		m.share(r, scenario.Share{Of: "gofsdp/" + mine[i].name, Firm: 0.7, Aim: 0.85}, mine[i].limit/mine[i].seconds)
	}
	return r
}

func (m *maker) operations() *scenario.Result {
	r := m.result(scenario.Scenario{
		Name: "operations-98m", Title: "Operations of the step, 98 M", Rounds: 5, Sides: []scenario.Side{ours},
		Work: scenario.Work{Kind: scenario.Operations, Model: "bench-98m", Precision: "f32", Length: 512, Sequences: 2, Threads: 2, Timed: 3},
	})
	shares := map[string]float64{"SwiGLU": 0.86, "RMSNorm": 0.83, "AdamW": 0.91, "attention": 0.57}
	firm := map[string]float64{"SwiGLU": 0.8, "RMSNorm": 0.8, "AdamW": 0.8, "attention": 0.6}
	var cases []caseOf
	names := []string{"SwiGLU", "RMSNorm", "AdamW", "attention"}
	for _, name := range names {
		cases = append(cases, caseOf{name: name, seconds: 2e-3, limit: 2e-3 * shares[name]})
	}
	for range 5 {
		m.round(r, map[string][]caseOf{"gofsdp": cases}, nil)
	}
	for _, name := range names {
		m.share(r, scenario.Share{Of: "gofsdp/" + name, Firm: firm[name]}, shares[name])
	}
	return r
}

func (m *maker) startup() *scenario.Result {
	r := m.result(scenario.Scenario{
		Name: "startup", Title: "Start-up, tiny model", Rounds: 5,
		Sides: []scenario.Side{ours, {Name: "torchrun"}, {Name: "Ray Train"}},
		Work:  scenario.Work{Kind: scenario.Startup, Model: "tiny", Precision: "f32", Length: 128, Sequences: 2, Ranks: 2, Threads: 1},
	})
	for range 5 {
		m.round(r, map[string][]caseOf{
			"gofsdp": {{name: "first step", seconds: 0.21}}, "torchrun": {{name: "first step", seconds: 3.4}},
		}, map[string]string{"Ray Train": scenario.TimedOut})
	}
	m.ratio(r, scenario.Ratio{Of: "gofsdp", Against: "torchrun", By: scenario.BySpeed}, 3.4/0.21, "")
	m.ratio(r, scenario.Ratio{Of: "gofsdp", Against: "Ray Train", By: scenario.BySpeed}, 0, "Ray Train: timed out")
	return r
}

// example writes a set of all kinds of results into a new directory: figures
// that reach their targets, miss them or have none, and sides that failed.
func example(t *testing.T) string {
	m := newMaker()
	return write(t,
		m.step("step-98m-f32", "Training step, 98 M, f32", "bench-98m", "f32", 5, 6.4, 0.84, nil),
		m.step("step-qwen-f32", "Training step, Qwen2.5-0.5B, f32", "qwen2.5-0.5b", "f32", 5, 31, 0.79, map[string]string{"FSDP2 eager": scenario.OutOfMemory}),
		m.step("step-98m-bf16", "Training step, 98 M, bf16", "bench-98m", "bf16", 5, 3.9, 0.75, nil),
		m.strategies(), m.collectives(), m.operations(), m.startup(),
	)
}

// write writes results into a new directory.
func write(t *testing.T, results ...*scenario.Result) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "example")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(r.Scenario.Name, "/") {
			t.Fatalf("%s is no name", r.Scenario.Name)
		}
		if err := os.WriteFile(filepath.Join(dir, r.Scenario.Name+".json"), text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
