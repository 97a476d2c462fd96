package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/bench/scenario"
	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/train"
)

// sample does a task as a side does and returns what it wrote.
func sample(t *testing.T, task scenario.Task) (s scenario.Sample) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "task.json")
	task.Format, task.Out = scenario.TaskFormat, filepath.Join(dir, "sample.json")
	text, err := json.Marshal(task)
	if err == nil {
		err = os.WriteFile(file, text, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("gofsdp", "bench", "side", "--task", file).CombinedOutput(); err != nil {
		t.Fatalf("%v; it said\n%s", err, said)
	}
	if text, err = os.ReadFile(task.Out); err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s.Format != scenario.TaskFormat || s.Versions["go"] == "" || s.Versions["gofsdp"] == "" || s.Versions["isa"] == "" {
		t.Errorf("format %d, versions %v", s.Format, s.Versions)
	}
	for _, c := range s.Cases {
		if len(c.Seconds) != task.Work.Timed || slices.Min(c.Seconds) <= 0 || len(c.Limit) > 0 && (len(c.Limit) != len(c.Seconds) || slices.Min(c.Limit) <= 0) {
			t.Errorf("%s: %d measurements: %v of at least %v", c.Name, task.Work.Timed, c.Seconds, c.Limit)
		}
	}
	return s
}

// namesOf returns the cases' names.
func namesOf(s scenario.Sample) (names []string) {
	for _, c := range s.Cases {
		names = append(names, c.Name)
	}
	return names
}

// trained is what training says of each of its steps.
type trained struct{ losses, norms []float64 }

func (r *trained) Step(s train.StepReport) error {
	r.losses, r.norms = append(r.losses, s.Loss), append(r.norms, s.Norm)
	return nil
}

func (*trained) Evaluated(int, train.Evaluation) error { return nil }

// trainAlone trains a small model on one rank. It leaves the weights that it
// begins with and the rows of its steps in dir, for the task that it returns.
func trainAlone(t *testing.T, dir string, steps int) (scenario.Task, *trained) {
	t.Helper()
	const length, seqs, batch = 32, 2, 4
	o := scenario.Optimizer{LR: 0.02, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Clip: 0.5}
	files := map[string]string{"shape/config.json": sessionShape}
	for _, name := range []string{"a", "b"} { // one of the two is held out
		files["text/"+name+".txt"] = strings.Repeat("the quick cats of "+name+" and the old dogs run. ", 40)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	dev, err := openCPU(nil, config.Scaling{Threads: 1, ISA: autoISA})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	r, err := train.Open(t.Context(), train.Work{
		Model: filepath.Join(dir, "shape"),
		Data: data.Settings{
			Path: []string{filepath.Join(dir, "text")}, Format: data.FormatText, Holdout: 0.5, SequenceLength: length,
			Tokenizer: data.TokenizerTrain, VocabSize: 257, CacheDir: filepath.Join(dir, "cache"),
		},
		Train: train.Settings{
			Steps: steps, Batch: batch, MicroBatch: seqs, Precision: "f32", Recompute: "none", LR: o.LR, Schedule: "constant", Clip: o.Clip,
			Optimizer: fsdp.Optimizer{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay}, Weights: "fresh", Export: "f32",
		},
	}, train.Place{}, dev, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	task := scenario.Task{Start: filepath.Join(dir, "start"), Tokens: filepath.Join(dir, "rows"), Optimizer: o}
	task.Work = scenario.Work{Kind: scenario.Steps, Model: r.Model.Name, Precision: "f32", Length: length, Sequences: seqs, Ranks: 2, Threads: 1}
	if err := errors.Join(r.Export(task.Start), os.WriteFile(task.Tokens, rowsOf(t, r.Data.Train, batch, steps), 0o666)); err != nil {
		t.Fatal(err)
	}
	report := new(trained)
	if _, err := r.Train(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	if slices.Max(report.norms) <= o.Clip {
		t.Fatalf("no gradient of norms %v is clipped to %v", report.norms, o.Clip)
	}
	return task, report
}

// rowsOf returns the packs of steps as rows of a token more.
func rowsOf(t *testing.T, set *data.Dataset, batch, steps int) (text []byte) {
	t.Helper()
	s, err := data.NewSampler(set, batch)
	if err != nil {
		t.Fatal(err)
	}
	n := set.Length()
	p := data.Pack{IDs: make([]int32, n), Targets: make([]int32, n), Start: make([]int32, n), Pos: make([]int32, n)}
	for step := range steps {
		for _, ref := range s.Step(step) {
			set.Read(ref.Epoch, ref.Pack, p)
			if slices.Min(p.Targets) < 0 || slices.Max(p.Start) > 0 {
				t.Fatalf("pack %d is not of one document", ref.Pack)
			}
			for _, id := range append(p.IDs, p.Targets[n-1]) {
				text = binary.LittleEndian.AppendUint32(text, uint32(id))
			}
		}
	}
	return text
}

func TestASideOfAComparisonTrainsAsTrainDoes(t *testing.T) {
	t.Parallel()
	task, want := trainAlone(t, t.TempDir(), 4)
	task.Work.Warm, task.Work.Timed = 2, 4
	task.Work.Cases = []scenario.StepCase{
		{Name: "one rank", Ranks: 1, Strategy: "no_shard", MicroBatches: 2},
		{Name: "full_shard", Strategy: "full_shard"},
		{Name: "block recomputation", Mesh: "1x2", Strategy: "shard_grad_op", Recompute: "block"},
	}
	s := sample(t, task)
	if got := namesOf(s); !slices.Equal(got, []string{"one rank", "full_shard", "block recomputation"}) {
		t.Fatalf("cases %q", got)
	}
	for i, c := range s.Cases {
		if len(c.Losses) != len(want.losses) {
			t.Fatalf("%s: losses %v, those of train are %v", c.Name, c.Losses, want.losses)
		}
		for step, loss := range want.losses {
			if math.Abs(c.Losses[step]/loss-1) > 1e-5 {
				t.Errorf("%s, step %d: loss %v, that of train is %v", c.Name, step+1, c.Losses[step], loss)
			}
		}
		ranks := []int{1, 2, 2}[i]
		if c.Tokens != 4*32 || c.FLOPs != s.Cases[0].FLOPs || c.FLOPs <= 0 || len(c.Limit) != 4 || len(c.Peak) != ranks || slices.Min(c.Peak) < 1<<20 {
			t.Errorf("%s: %+v", c.Name, c)
		}
	}
}

func TestAStepFromFreshWeightsIsThatOfTrain(t *testing.T) {
	t.Parallel()
	task, want := trainAlone(t, t.TempDir(), 3)
	task.Start, task.Work.Timed = "", 3
	task.Work.Cases = []scenario.StepCase{{Name: "full_shard", Strategy: "full_shard"}}
	s := sample(t, task)
	for step, loss := range want.losses {
		if got := s.Cases[0].Losses[step]; math.Abs(got/loss-1) > 1e-5 {
			t.Errorf("step %d: loss %v, that of train is %v", step+1, got, loss)
		}
	}
}

func TestCollectivesAndOperationsOfATaskHaveTheirLimits(t *testing.T) {
	t.Parallel()
	s := sample(t, scenario.Task{Work: scenario.Work{Kind: scenario.Collectives, Ranks: 2, Threads: 1, Warm: 1, Timed: 3, Sizes: []int64{1}}})
	if got, want := namesOf(s), []string{"barrier", "all-gather 1 MB", "reduce-scatter 1 MB", "all-reduce 1 MB", "broadcast 1 MB"}; !slices.Equal(got, want) {
		t.Errorf("collectives %q, want %q", got, want)
	}
	for _, c := range s.Cases {
		if limited := c.Name != "barrier"; limited != (len(c.Limit) > 0) {
			t.Errorf("%s: limits %v", c.Name, c.Limit)
		}
	}
	s = sample(t, scenario.Task{Work: scenario.Work{Kind: scenario.Operations, Model: "tiny", Precision: "f32", Length: 32, Sequences: 1, Ranks: 1, Threads: 1, Warm: 1, Timed: 2}})
	for _, op := range []device.Op{&device.MatMul{}, &device.AttentionBackward{}, &device.SwiGLU{}, &device.AdamW{}} {
		if !slices.Contains(namesOf(s), device.Name(op)) {
			t.Errorf("operations %q, want %s", namesOf(s), device.Name(op))
		}
	}
	for _, c := range s.Cases {
		if len(c.Limit) == 0 {
			t.Errorf("%s has no limit", c.Name)
		}
	}
}

func TestSeveralCasesTakeTurnsOfFewSteps(t *testing.T) {
	for _, c := range []struct{ cases, timed, rounds, steps int }{
		{1, 10, 1, 10}, {2, 10, 5, 2}, {3, 2, 1, 2}, {2, 9, 3, 3}, {2, 5, 5, 1}, {2, 1, 1, 1},
	} {
		if rounds, steps := turns(c.cases, c.timed); rounds != c.rounds || steps != c.steps {
			t.Errorf("%d cases, %d timed steps: %d rounds of %d, want %d of %d", c.cases, c.timed, rounds, steps, c.rounds, c.steps)
		}
	}
}
