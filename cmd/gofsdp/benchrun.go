package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gofsdp/gofsdp/bench/scenario"
	"github.com/gofsdp/gofsdp/record"
)

type benchRunCommand struct {
	Scenarios []string      `arg:"" name:"scenario" placeholder:"FILE" help:"Scenario files, such as bench/scenarios/step-98m-f32.yaml."`
	Rounds    int           `default:"0" help:"Rounds in which every side runs once; 0 takes the scenario's."`
	Side      []string      `placeholder:"NAME" help:"Run these sides only."`
	Out       string        `placeholder:"DIR" help:"Directory of results and logs; by default this machine's in bench/results. A run of fewer rounds or sides leaves files only where this is given."`
	Within    time.Duration `default:"30m" help:"The longest that one run of a side may take."`
	Verbose   bool          `help:"Show what the sides write, too."`
	benchDevice
}

// resultsDir is where results are, below the directory of the repository.
const resultsDir = "bench/results"

// Run runs scenarios one after the other. The result of each is written when all
// its rounds are done, so an interrupted one leaves the older result as it was.
func (c *benchRunCommand) Run(a *app) (err error) {
	scenarios, whole, err := c.load()
	if err != nil {
		return asUser(err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := repositoryOf(c.Scenarios[0])
	if err != nil {
		return err
	}
	scenarios, whole, on, err := c.possible(a, scenarios, whole)
	if err != nil {
		return err
	}
	r := &scenario.Runner{
		Device: on.kind, Open: on.measured(autoISA),
		Gofsdp: self, Python: filepath.Join(dir, ".venv", "peers", "bin", "python"), Dir: dir,
		Within: c.Within, Command: append([]string{"gofsdp"}, os.Args[1:]...), Say: a.say,
	}
	var missing []error
	for _, s := range scenarios {
		missing = append(missing, r.Check(s))
	}
	if err := errors.Join(missing...); err != nil {
		return asUser(err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	usual := filepath.Join(dir, resultsDir, machineName(record.ThisHost(), on.gpus))
	var wrong []error
	for i, s := range scenarios {
		out := c.Out
		if out == "" && whole[i] {
			out = usual
		}
		wrong = append(wrong, c.one(a, r, s, out))
		if err := a.ctx.Err(); err != nil {
			return err
		}
	}
	return errors.Join(wrong...)
}

// load reads the scenarios, with rounds and sides as they were asked for. whole
// says which of them that leaves as they are.
func (c *benchRunCommand) load() (all []*scenario.Scenario, whole []bool, err error) {
	var errs []error
	if c.Rounds < 0 || c.Within <= 0 {
		errs = append(errs, fmt.Errorf("--rounds: %d and --within: %v must not be negative; leave them out for the usual ones", c.Rounds, c.Within))
	}
	unused := slices.Clone(c.Side)
	for _, path := range c.Scenarios {
		s, err := scenario.Load(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i := slices.IndexFunc(all, func(o *scenario.Scenario) bool { return o.Name == s.Name }); i >= 0 {
			errs = append(errs, fmt.Errorf("%s: the scenario %s is there twice; its results would have one name", path, s.Name))
		}
		complete := c.Rounds == 0 || c.Rounds >= s.Rounds
		if c.Rounds > 0 {
			s.Rounds = c.Rounds
		}
		if len(c.Side) > 0 {
			all := len(s.Sides)
			s.Only(c.Side)
			complete = complete && len(s.Sides) == all
			for _, side := range s.Sides {
				unused = slices.DeleteFunc(unused, func(name string) bool { return name == side.Name })
			}
			if len(s.Sides) == 0 {
				errs = append(errs, fmt.Errorf("--side: %s has no side of %s", path, strings.Join(c.Side, ", ")))
			}
		}
		all, whole = append(all, s), append(whole, complete)
	}
	if len(errs) == 0 && len(unused) > 0 {
		errs = append(errs, fmt.Errorf("--side: no scenario has a side %s", strings.Join(unused, ", ")))
	}
	return all, whole, errors.Join(errs...)
}

// possible chooses what all sides compute on, and leaves out the scenarios that take
// more ranks than there are GPUs; it says so. Where all do, that is an error.
func (c *benchRunCommand) possible(a *app, all []*scenario.Scenario, whole []bool) (left []*scenario.Scenario, leftWhole []bool, on choice, err error) {
	most := 1
	for _, s := range all {
		most = max(most, s.Work.Ranks)
	}
	found, err := c.find(most)
	if err != nil {
		return nil, nil, on, err
	}
	notes := a.err
	for i, s := range all {
		chosen, lacking := c.among(found, notes, max(s.Work.Ranks, 1))
		notes = io.Discard // they are the same
		if lacking != nil {
			a.say("%s is left out: %s", s.Name, a.oneLine(lacking))
			err = lacking
			continue
		}
		left, leftWhole, on = append(left, s), append(leftWhole, whole[i]), chosen
	}
	if len(left) > 0 {
		err = nil
	}
	return left, leftWhole, on, err
}

// one runs a scenario, writes its result to out unless that is empty, and shows
// it.
func (c *benchRunCommand) one(a *app, r *scenario.Runner, s *scenario.Scenario, out string) (err error) {
	r.Log = io.Discard
	if c.Verbose {
		r.Log = a.err
	}
	logFile := filepath.Join(out, s.Name+".log")
	if out != "" {
		if err := os.MkdirAll(out, 0o777); err != nil {
			return asUser(err)
		}
		log, created := os.Create(logFile)
		if created != nil {
			return asUser(created)
		}
		defer func() { err = errors.Join(err, log.Close()) }()
		r.Log = io.MultiWriter(r.Log, log)
	}
	result, err := r.Run(a.ctx, s)
	if err != nil {
		return err
	}
	if out == "" {
		a.say("%s: not all rounds or sides were run, so no result is written; name a directory with --out to have it", s.Name)
	} else {
		path := filepath.Join(out, s.Name+".json")
		if err := result.WriteFile(path); err != nil {
			return err
		}
		a.say("%s: the result is in %s, what the sides wrote in %s", s.Name, path, logFile)
	}
	return errors.Join(result.WriteSummary(a.out), result.Err())
}

// repositoryOf returns the directory that scenarios run in: the module that the
// file is part of, or else the current directory.
func repositoryOf(file string) (string, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	for at := filepath.Dir(path); ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return os.Getwd()
		}
	}
}

// machineName is what a machine's results are called, such as amd-epyc-2-cpus or,
// where GPUs compute, nvidia-l4-8-gpus. Machines of one kind share it.
func machineName(h record.Host, g *gpus) string {
	name, known := h.CPU.Get()
	if !known {
		name = h.Platform
	}
	count, of := h.CPUs, "cpus"
	if g != nil {
		name, count, of = g.report.Devices[0].Name, len(g.report.Devices), "gpus"
	}
	words := strings.FieldsFunc(strings.ToLower(name), func(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) })
	return strings.Join(append(words, strconv.Itoa(count), of), "-")
}
