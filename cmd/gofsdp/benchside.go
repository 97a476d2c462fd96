package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
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
	if err := s.ranks.choose(a, s.Work.Ranks); err != nil {
		return err
	}
	sample := scenario.Sample{Format: scenario.TaskFormat}
	switch s.Work.Kind {
	case scenario.Steps:
		sample.Cases, err = s.steps(a)
	case scenario.Collectives:
		sample.Cases, err = s.collectives(a)
	case scenario.Operations:
		sample.Cases, err = s.operations(a)
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

// steps measures training steps.
func (s *side) steps(a *app) ([]scenario.Case, error) {
	w, o := s.Work, s.Optimizer
	cases, err := s.cases()
	if err != nil {
		return nil, err
	}
	x := bench.StepSettings{
		Cases: cases, Model: w.Model, Length: w.Length, Sequences: w.Sequences, Precision: s.precision(), Threads: w.Threads,
		Start: s.Start, Tokens: s.Tokens,
		Optimizer: fsdp.Optimizer{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay}, LR: o.LR, Clip: o.Clip,
		Warm: w.Warm, Reading: peakReading,
	}
	x.Rounds, x.Steps = turns(len(x.Cases), w.Timed)
	info, err := s.ranks.device()
	if err != nil {
		return nil, err
	}
	x.Threads = s.ranks.Threads
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

// collectives measures what ranks do together.
func (s *side) collectives(a *app) ([]scenario.Case, error) {
	w := s.Work
	x := bench.FullCollectives(bench.Meshes{{Across: 1, Within: w.Ranks}})
	x.Threads, x.Least, x.Most, x.Warm, x.Sizes = w.Threads, w.Timed, w.Timed, w.Warm, nil
	for _, mb := range w.Sizes {
		x.Sizes = append(x.Sizes, mb<<20)
	}
	info, err := s.ranks.device()
	if err != nil {
		return nil, err
	}
	x.Threads = s.ranks.Threads
	if err := x.Check(info); err != nil {
		return nil, asUser(s.inFile(err))
	}
	reported, err := s.ranks.launch(a, x.Meshes, benchTask{Collectives: &x})
	if err != nil {
		return nil, err
	}
	times, err := x.Times(reported)
	var list []scenario.Case
	for _, t := range times {
		c := scenario.Case{Name: t.Kind, Seconds: t.Seconds, Limit: t.Copy}
		if t.Bytes > 0 {
			c.Name = fmt.Sprintf("%s %d MB", t.Kind, t.Bytes>>20)
		}
		list = append(list, c)
	}
	return list, err
}

// operations measures those of a training step, each kind within its steps.
func (s *side) operations(a *app) ([]scenario.Case, error) {
	w, x := s.Work, bench.Full()
	x.Model, x.Length, x.Sequences, x.Precisions = w.Model, w.Length, w.Sequences, []device.DType{s.precision()}
	x.Threads, x.Watched = w.Threads, w.Timed
	times, err := bench.Watch(a.ctx, x, w.Warm, s.ranks.on.measured(s.ranks.ISA))
	if err != nil { // the model, its length, its memory
		return nil, asUser(s.inFile(err))
	}
	var list []scenario.Case
	for _, t := range times {
		list = append(list, scenario.Case{Name: t.Name, Seconds: t.Seconds, Limit: t.Limit})
	}
	return list, nil
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
	info, err := s.ranks.device()
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
	all := map[string]string{"gofsdp": version, "go": runtime.Version(), "isa": info.ISA}
	if g := s.ranks.on.gpus; g != nil {
		all["driver"] = driverOf(g.report)
		if s.Work.Ranks > 1 {
			all["nccl"] = g.report.NCCL.Version
		}
	}
	return all, err
}
