package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/train"
)

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
	case scenario.Operations:
		s.checkTraining(errs)
		if w.Ranks > 1 {
			s.wrong(errs, "work.ranks", "%d, but operations are measured on 1", w.Ranks)
		}
	case scenario.Collectives:
		if w.Ranks == 1 {
			s.wrong(errs, "work.ranks", "1, but collectives need at least 2")
		}
		if len(w.Sizes) == 0 {
			s.wrong(errs, "work.sizes", "none is given")
		}
		for i, mb := range w.Sizes {
			if mb < 1 || mb > mostMB || slices.Contains(w.Sizes[:i], mb) {
				s.wrong(errs, fmt.Sprintf("work.sizes[%d]", i), "%d MB is not between 1 and %d, or there twice", mb, mostMB)
			}
		}
	default: // a start-up is a command of its own
		s.wrong(errs, "work.kind", "%q, want %s, %s or %s", w.Kind, scenario.Steps, scenario.Collectives, scenario.Operations)
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
	} else if err := train.CheckRows(w.Sequences, max(w.Length, 1)); err != nil {
		s.wrong(errs, "work.sequences", "%v", err)
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
