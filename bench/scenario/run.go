package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/record"
)

// Runner runs scenarios. All fields must be set.
type Runner struct {
	Device  string     // what all sides compute on: cpu, cuda or sim, as Task has it
	Open    bench.Open // a device that measures the machine's limits; of GPUs one
	Gofsdp  string     // the program that "gofsdp" stands for
	Python  string     // and "python"
	Dir     string     // that commands run in
	Within  time.Duration
	Command []string  // to be noted in results
	Log     io.Writer // gets what sides write
	Say     func(format string, args ...any)

	starts *starts
}

// Each of the machine's limits is measured so often and so long.
const (
	readings = 3
	reading  = 50 * time.Millisecond
)

// Close removes what was prepared for the sides.
func (r *Runner) Close() error {
	if r.starts == nil {
		return nil
	}
	return r.starts.Close()
}

// Check refuses a scenario whose programs are not there, before anything runs.
func (r *Runner) Check(s *Scenario) error {
	var errs []error
	if s.Work.Kind == Startup && r.Device == simulated {
		errs = append(errs, fmt.Errorf("%s: a start-up is of programs as they are, which take no simulated GPUs", s.Name))
	}
	for _, side := range s.Sides {
		command := r.commandOf(side, "")
		if info, err := os.Stat(command[0]); side.Command[0] == "python" && (err != nil || info.IsDir()) {
			errs = append(errs, fmt.Errorf("%s: side %s needs %s, which is not there; make it with: make bench-peers", s.Name, side.Name, command[0]))
		}
		for _, arg := range command[1:] {
			if !strings.HasSuffix(arg, ".py") {
				continue
			}
			if _, err := os.Stat(filepath.Join(r.Dir, arg)); err != nil && !filepath.IsAbs(arg) {
				errs = append(errs, fmt.Errorf("%s: side %s runs %s, which is not in %s; run this where the repository is", s.Name, side.Name, arg, r.Dir))
			}
		}
	}
	return errors.Join(errs...)
}

// commandOf returns what a side's command is here. scratch is an empty directory
// for what it leaves.
func (r *Runner) commandOf(side Side, scratch string) []string {
	command := slices.Clone(side.Command)
	switch command[0] {
	case "gofsdp":
		command[0] = r.Gofsdp
	case "python":
		command[0] = r.Python
	}
	for i := range command {
		command[i] = strings.ReplaceAll(command[i], "{scratch}", scratch)
	}
	return command
}

// Run runs every side of a scenario in every round and returns what came of it.
// That a side fails is no error but in the result; see Result.Err. It blocks, for
// minutes or hours; after an error, which may be ctx's, no process is left.
func (r *Runner) Run(ctx context.Context, s *Scenario) (*Result, error) {
	res := &Result{
		Format: Format, Time: time.Now().UTC().Truncate(time.Second), Host: record.ThisHost(), Build: record.ThisBuild(),
		Command: r.Command, Scenario: *s,
	}
	if err := r.describe(res); err != nil {
		return nil, err
	}
	if r.starts == nil {
		var err error
		if r.starts, err = newStarts(); err != nil {
			return nil, err
		}
	}
	r.Say("%s: %s", s.Name, s.Title)
	task, err := r.starts.task(s.Work)
	if err != nil {
		return nil, fmt.Errorf("%s: preparing what all sides start from: %w", s.Name, err)
	}
	task.Device = r.Device
	given := map[string]*Failure{} // sides that are not tried again
	before, err := r.limits(ctx, res)
	if err != nil {
		return nil, err
	}
	for round := range s.Rounds {
		var done Round
		for i := range s.Sides {
			side := s.Sides[(round+i)%len(s.Sides)]
			run := Run{Side: side.Name, Limits: before, Failure: given[side.Name]}
			if run.Failure == nil {
				if err := r.once(ctx, s, side, task, &run); err != nil {
					return nil, fmt.Errorf("%s: %s: %w", s.Name, side.Name, err)
				}
				after, err := r.limits(ctx, res)
				if err != nil {
					return nil, err
				}
				run.Limits, before = mean(before, after), after
			}
			if f := run.Failure; f != nil && f.Reason != Failed {
				given[side.Name] = f
			}
			done.Runs = append(done.Runs, run)
			r.Say("%s: round %d of %d: %s: %s", s.Name, round+1, s.Rounds, side.Name, run.summary())
		}
		res.Rounds = append(res.Rounds, done)
	}
	res.judge()
	return res, nil
}

// describe notes the model and the device.
func (r *Runner) describe(res *Result) error {
	w := res.Scenario.Work
	if w.Model != "" {
		src, err := model.Resolve(w.Model)
		if err != nil {
			return err
		}
		res.Parameters = src.Config.NumParams()
		if w.Length > 0 {
			res.FLOPsPerToken = src.Config.FLOPsPerToken(w.Length)
		}
	}
	dev, err := r.Open(coresOf(w.Ranks, w.Threads))
	if err != nil {
		return err
	}
	res.Device = bench.DeviceOf(dev.Info())
	return dev.Close()
}

// The devices that Task names and that make a difference here.
const (
	cpu       = "cpu"
	simulated = "sim"
)

// noGPUs keeps CUDA's programs from seeing GPUs, so that no side takes one where the
// others compute on the CPU.
const noGPUs = "CUDA_VISIBLE_DEVICES="

// coresOf returns the cores that so many ranks may use.
func coresOf(ranks, threads int) int {
	return min(max(ranks, 1)*max(threads, 1), runtime.NumCPU())
}

// limits measures what the machine can do now, the best of some readings: what
// else runs can only take from it. It blocks for a second or two.
func (r *Runner) limits(ctx context.Context, res *Result) (l Limits, err error) {
	if err := ctx.Err(); err != nil {
		return l, err
	}
	dev, err := r.Open(coresOf(res.Scenario.Work.Ranks, res.Scenario.Work.Threads))
	if err != nil {
		return l, err
	}
	m, err := bench.LimitsOf(dev)
	for range readings {
		if err == nil {
			l.F32, l.BF16 = max(l.F32, m.PeakFLOPS(device.F32, reading)), max(l.BF16, m.PeakFLOPS(device.BF16, reading))
			l.Copy = max(l.Copy, m.CopyBandwidth(reading))
		}
	}
	if ranks := float64(max(res.Scenario.Work.Ranks, 1)); dev.Info().Kind == gpu {
		l.F32, l.BF16, l.Copy = ranks*l.F32, ranks*l.BF16, ranks*l.Copy // they are alike
	}
	return l, errors.Join(err, dev.Close())
}

func mean(a, b Limits) Limits {
	return Limits{(a.F32 + b.F32) / 2, (a.BF16 + b.BF16) / 2, (a.Copy + b.Copy) / 2}
}

// once runs a side once and fills in what came of it.
func (r *Runner) once(ctx context.Context, s *Scenario, side Side, task Task, run *Run) (err error) {
	scratch, err := os.MkdirTemp(r.starts.dir, "run-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	p := &process{command: r.commandOf(side, scratch), dir: r.Dir, within: r.Within, log: r.Log}
	if r.Device == cpu {
		p.environment = []string{noGPUs}
	}
	task.Out = filepath.Join(scratch, "sample.json")
	if side.Marker != "" {
		p.marker = regexp.MustCompile(side.Marker) // as Load has checked
	} else {
		text, err := json.MarshalIndent(task, "", "  ")
		if err != nil {
			return err
		}
		file := filepath.Join(scratch, "task.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
		p.command = append(p.command, "--task", file)
	}
	if _, err := fmt.Fprintf(r.Log, "=== %s: %s: %s\n", s.Name, side.Name, strings.Join(p.command, " ")); err != nil {
		return err
	}
	e, err := p.run(ctx)
	if err != nil {
		return err
	}
	run.Seconds, run.Failure = e.seconds, e.failure
	switch {
	case run.Failure != nil:
		run.Failure.Text = r.impersonal(run.Failure.Text, scratch)
		return nil
	case p.marker == nil:
		run.Sample, err = readSample(task.Out, s)
	case e.marked == 0:
		err = fmt.Errorf("it wrote no line that %q matches", side.Marker)
	default:
		run.Sample = &Sample{Format: TaskFormat, Cases: []Case{{Name: firstStep, Seconds: []float64{e.marked}}}}
	}
	if err != nil {
		run.Failure = &Failure{Reason: Failed, Text: r.impersonal(err.Error(), scratch)}
	}
	return nil
}

// impersonal leaves out of a text where things lie on this machine, which results are
// not to tell: what is below the folder of the tools is named from there.
func (r *Runner) impersonal(text, scratch string) string {
	home, _ := os.UserHomeDir() // else there is none to be told
	tools, _ := filepath.Abs(r.Dir)
	for _, x := range []struct{ dir, name string }{{scratch, "TASK"}, {r.starts.dir, "STARTS"}, {tools, "."}, {home, "~"}} {
		if dir := filepath.Clean(x.dir); dir != "." && dir != "/" {
			text = regexp.MustCompile(regexp.QuoteMeta(dir)+`(/|\b)`).ReplaceAllString(text, x.name+"$1")
		}
	}
	return text
}

// firstStep is the case of a start-up.
const firstStep = "first step"
