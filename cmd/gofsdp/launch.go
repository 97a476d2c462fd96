package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

// directoryVariable tells ranks where the run's directory is.
const directoryVariable = "GOFSDP_RUN_DIRECTORY"

// launch runs what was checked as processes of this machine: this one is the
// launcher, which starts an agent, which starts the ranks. While they run, the
// first rank has run.json; then the launcher brings its part of the record
// there, and says how it went where the first rank could not.
func (j *job) launch(binding *config.Binding) error {
	j.printf("%s: %s; results in %s\n", j.run.Model.Name, j.run.Outline(), j.dir.Path())
	nodes := j.cfg.Scaling.Nodes
	attempt, err := beginAttempt(j.dir, j.rec.Attempts, nodes, j.cfg.Scaling.Workers/nodes)
	if err == nil && j.on.gpus != nil {
		err = j.dir.MakeEvidence() // for the logs of NCCL
	}
	if err == nil {
		err = j.start(binding, nodes, attempt)
		j.traced()
	}
	os.Remove(j.reserve()) // its owner may have
	code, reason := j.codeOf(err), ""
	if code != 0 {
		reason = j.oneLine(err)
	}
	how := record.OutcomeOf(code, reason)
	rec, failed := record.LoadRun(j.dir.RunFile())
	if failed != nil {
		return errors.Join(err, failed)
	}
	// Of a failure the launcher knows the first reason.
	if said, known := rec.Outcome.ExitCode.Get(); code != 0 || !known || said != code {
		rec.End(how)
	}
	return errors.Join(err, j.dir.Conclude(rec, attempt.end(how)))
}

// start runs the processes of an attempt to their end.
func (j *job) start(binding *config.Binding, nodes int, attempt *attempt) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir := j.dir.Path() // which ranks find from where they are started, as this process does
	outcome, err := launcher.Run(j.ctx, launcher.Job{
		Settings: j.cfg.Run.Processes, Run: filepath.Base(dir), Attempt: len(attempt.before),
		Nodes: nodes, Ranks: j.cfg.Scaling.Workers / nodes, Mesh: j.run.Plan.Mesh.String(),
		Config: binding.Marshal(), Environment: []string{directoryVariable + "=" + dir}, Dir: dir,
		Placer: launcher.Local{Command: []string{self, "agent"}, Stderr: j.err}, Stdout: j.out, Stderr: j.err,
		OnReport: attempt.report,
	})
	if err == nil && outcome.Code != 0 {
		if flights, failed := j.dir.ReadFlights(); failed == nil && len(flights) > 0 {
			j.printf("where the ranks stood: gofsdp flight %s\n", dir)
		}
		err = outcomeError(outcome)
	}
	return err
}

// outcomeError is how a run of several processes failed.
type outcomeError launcher.Outcome

func (o outcomeError) Error() string { return o.Reason }

// ExitCode is the one for the launcher's process.
func (o outcomeError) ExitCode() int { return o.Code }

// mostWorkers is as many ranks as one machine is asked to start.
const mostWorkers = 64

// canLaunch refuses ranks that this machine cannot start.
func canLaunch(s config.Scaling) error {
	var errs []error
	if s.Workers > mostWorkers {
		errs = append(errs, fmt.Errorf("scaling.num_workers: %d ranks are more than the %d that one machine starts, and several machines are not supported yet", s.Workers, mostWorkers))
	}
	if s.Transport == "shared" && !shares(s.Transport) {
		errs = append(errs, fmt.Errorf("scaling.transport: processes share memory in a way that only Linux has; take tcp, or auto"))
	}
	return errors.Join(errs...)
}

// place is where a rank stands, as far as the configuration says it.
func (c choice) place(s config.Scaling) train.Place {
	at := train.Place{Ranks: s.Workers, Sharding: s.Layout()}
	var o fsdp.Options
	if at.Sharding.Over(s.Workers, &o) == nil { // else the plan says what is wrong with it
		at.Apart = c.apart(s, o.Mesh)
	}
	return at
}

// oneLine joins an error's statements.
func (a *app) oneLine(err error) string { return strings.Join(a.statements(err), "; ") }
