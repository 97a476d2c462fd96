package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/record"
)

type benchSideCommand struct {
	Task string `required:"" placeholder:"FILE" help:"What to do: a task as JSON."`
}

// Run does the work of a task and writes the sample.
func (c *benchSideCommand) Run(a *app) error {
	s, err := readTask(c.Task)
	if err != nil {
		return asUser(err)
	}
	sample := scenario.Sample{Format: scenario.TaskFormat}
	switch s.Work.Kind {
	case scenario.Steps:
		sample.Cases, err = s.steps(a)
	}
	if err != nil {
		return err
	}
	if sample.Versions, err = s.versions(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(sample, "", "  ")
	if err != nil {
		return err
	}
	return asUser(record.WriteFileAtomic(s.Out, append(text, '\n'), 0o644))
}

// side is a task that has been checked.
type side struct {
	scenario.Task
	file  string
	ranks benchRanks
	cases []bench.StepCase // of training steps
}

// wrong adds a mistake at a key of the task's file.
func (s *side) wrong(errs *[]error, key, format string, args ...any) {
	*errs = append(*errs, fmt.Errorf("%s: %s: %s", s.file, key, fmt.Sprintf(format, args...)))
}

// readTask reads a task. Its error is of all mistakes that can be seen before
// the model and the files are opened.
func readTask(path string) (*side, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := &side{file: path}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s.Task); err != nil {
		return nil, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "json: "))
	}
	var errs []error
	if s.Format != scenario.TaskFormat {
		s.wrong(&errs, "format", "%d, want %d", s.Format, scenario.TaskFormat)
	}
	if s.Out == "" {
		s.wrong(&errs, "out", "a file to write to is missing")
	} else if dir, err := os.Stat(filepath.Dir(s.Out)); err != nil || !dir.IsDir() {
		s.wrong(&errs, "out", "%s is no directory", filepath.Dir(s.Out))
	}
	s.checkWork(&errs)
	s.ranks.Threads, s.ranks.ISA = s.Work.Threads, "auto"
	return s, errors.Join(errs...)
}

func (s *side) checkWork(errs *[]error) {
	w := s.Work
	for _, x := range []struct {
		key          string
		value, least int
	}{{"threads", w.Threads, 1}, {"warm", w.Warm, 0}, {"timed", w.Timed, 1}, {"ranks", w.Ranks, 1}} {
		if x.value < x.least {
			s.wrong(errs, "work."+x.key, "%d, want at least %d", x.value, x.least)
		}
	}
	if w.Ranks > mostWorkers {
		s.wrong(errs, "work.ranks", "%d, want at most %d", w.Ranks, mostWorkers)
	}
	switch w.Kind {
	case scenario.Steps:
		s.checkTraining(errs)
		s.checkCases(errs)
		s.checkOptimizer(errs)
	default:
		s.wrong(errs, "work.kind", "%q, want %s", w.Kind, scenario.Steps)
	}
}

// checkTraining checks what is trained.
func (s *side) checkTraining(errs *[]error) {
	w := s.Work
	if _, err := model.Resolve(w.Model); err != nil {
		s.wrong(errs, "work.model", "%v", err)
	}
	if w.Precision != "f32" && w.Precision != "bf16" {
		s.wrong(errs, "work.precision", "%q, want f32 or bf16", w.Precision)
	}
	if w.Length < 1 {
		s.wrong(errs, "work.length", "%d, want at least 1", w.Length)
	}
	if w.Sequences < 1 {
		s.wrong(errs, "work.sequences", "%d, want at least 1", w.Sequences)
	}
}

// checkCases translates the cases; where there are none, all ranks shard fully.
func (s *side) checkCases(errs *[]error) {
	list := s.Work.Cases
	if len(list) == 0 {
		list = []scenario.StepCase{{Name: string(fsdp.FullShard), Strategy: string(fsdp.FullShard)}}
	}
	for i, c := range list {
		key := fmt.Sprintf("work.cases[%d].", i)
		x := bench.StepCase{Name: c.Name, Strategy: fsdp.Strategy(c.Strategy), MicroBatches: c.MicroBatches, Recompute: fsdp.Recompute(c.Recompute)}
		if c.Name == "" {
			s.wrong(errs, key+"name", "is missing")
		}
		if slices.ContainsFunc(s.cases, func(other bench.StepCase) bool { return other.Name == c.Name }) {
			s.wrong(errs, key+"name", "%q is there twice", c.Name)
		}
		ranks := c.Ranks
		if ranks == 0 {
			ranks = s.Work.Ranks
		}
		if ranks < 1 || ranks > mostWorkers {
			s.wrong(errs, key+"ranks", "%d is not between 1 and %d", ranks, mostWorkers)
		}
		x.Mesh = fsdp.Mesh{Across: 1, Within: ranks}
		if c.Mesh != "" {
			mesh, err := fsdp.ParseMesh(c.Mesh)
			if x.Mesh = mesh; err != nil {
				s.wrong(errs, key+"mesh", "%s", strings.TrimPrefix(err.Error(), "mesh: "))
			} else if mesh.Size() != ranks {
				s.wrong(errs, key+"mesh", "%s has %d ranks, the case has %d", c.Mesh, mesh.Size(), ranks)
			}
		}
		if !slices.Contains(fsdp.Strategies(), x.Strategy) {
			s.wrong(errs, key+"strategy", "%q, want one of %v", c.Strategy, fsdp.Strategies())
		}
		if x.MicroBatches == 0 {
			x.MicroBatches = 1
		}
		if x.MicroBatches < 1 {
			s.wrong(errs, key+"micro_batches", "%d, want at least 1", c.MicroBatches)
		}
		switch x.Recompute {
		case "":
			x.Recompute = fsdp.RecomputeNone
		case fsdp.RecomputeNone, fsdp.RecomputeSelective, fsdp.RecomputeBlock:
		default:
			s.wrong(errs, key+"recompute", "%q, want none, selective or block", c.Recompute)
		}
		s.cases = append(s.cases, x)
	}
}

func (s *side) checkOptimizer(errs *[]error) {
	o := s.Optimizer
	for _, x := range []struct {
		key   string
		value float64
		ok    bool
		want  string
	}{
		{"lr", o.LR, o.LR > 0, "more than 0"},
		{"beta1", o.Beta1, o.Beta1 >= 0 && float32(o.Beta1) < 1, "from 0 to below 1"},
		{"beta2", o.Beta2, o.Beta2 >= 0 && float32(o.Beta2) < 1, "from 0 to below 1"},
		{"eps", o.Eps, float32(o.Eps) > 0, "more than 0"},
		{"weight_decay", o.WeightDecay, o.WeightDecay >= 0, "at least 0"},
		{"clip", o.Clip, o.Clip >= 0, "at least 0 (which is none)"},
	} {
		if !x.ok {
			s.wrong(errs, "optimizer."+x.key, "%g, want %s", x.value, x.want)
		}
	}
}

// steps measures training steps.
func (s *side) steps(a *app) ([]scenario.Case, error) {
	w, o := s.Work, s.Optimizer
	x := bench.StepSettings{
		Cases: s.cases, Model: w.Model, Length: w.Length, Sequences: w.Sequences, Precision: s.precision(), Threads: w.Threads,
		Weights: s.Start, Tokens: s.Tokens,
		Optimizer: fsdp.Optimizer{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay}, LR: o.LR, Clip: o.Clip,
		Warm: w.Warm, Reading: peakReading,
	}
	x.Rounds, x.Steps = turns(len(x.Cases), w.Timed)
	info, err := s.ranks.device(nil)
	if err != nil {
		return nil, err
	}
	if err := x.Check(info); err != nil {
		return nil, asUser(s.inFile(err))
	}
	reported, err := s.ranks.launch(a, x.Meshes(), benchTask{Steps: &x})
	if err != nil {
		return nil, err
	}
	times, err := x.Times(reported)
	var list []scenario.Case
	for _, t := range times {
		c := scenario.Case{Name: t.Name, Seconds: t.Seconds, Limit: t.Limit(), Tokens: t.Tokens, FLOPs: t.FLOPs, Losses: t.Losses}
		if !slices.Contains(t.Memory, 0) {
			c.Peak = t.Memory
		}
		list = append(list, c)
	}
	return list, err
}

// peakReading is how long the peaks are read before and after a step.
const peakReading = 100 * time.Millisecond

// turns cuts timed steps into rounds in which several cases take turns: of two
// steps or three, if that is possible, since each turn begins with warm ones.
func turns(cases, timed int) (rounds, steps int) {
	if cases == 1 {
		return 1, timed
	}
	for _, steps := range []int{2, 3} {
		if timed%steps == 0 {
			return timed / steps, steps
		}
	}
	return timed, 1
}

func (s *side) precision() device.DType {
	if s.Work.Precision == "bf16" {
		return device.BF16
	}
	return device.F32
}

// inFile gives what cannot be done the task's file.
func (s *side) inFile(err error) error {
	var all []error
	for _, e := range flatten(err) {
		all = append(all, fmt.Errorf("%s: %w", s.file, e))
	}
	return errors.Join(all...)
}

// versions are those of what the work was done by.
func (s *side) versions() (map[string]string, error) {
	info, err := s.ranks.device(nil)
	b := record.ThisBuild()
	version := "unknown"
	if v, ok := b.Version.Get(); ok {
		version = v
	}
	if c, ok := b.Commit.Get(); ok {
		version += " " + c
	}
	if m, ok := b.Modified.Get(); ok && m {
		version += " modified"
	}
	return map[string]string{"gofsdp": version, "go": runtime.Version(), "isa": info.ISA}, err
}
