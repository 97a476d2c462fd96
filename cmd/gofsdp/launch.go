package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

// directoryVariable tells ranks where the run's directory is.
const directoryVariable = "GOFSDP_RUN_DIRECTORY"

// launch runs what was checked as processes of this machine: this one is the
// launcher, which starts an agent, which starts the ranks. It leaves the record,
// unless the first rank has.
func (j *job) launch(binding *config.Binding) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir := j.dir.Path() // which ranks find from where they are started, as this process does
	j.printf("%s: %s; results in %s\n", j.run.Model.Name, j.run.Outline(), j.dir.Path())
	outcome, err := launcher.Run(j.ctx, launcher.Job{
		Settings: j.cfg.Run.Processes, Run: filepath.Base(dir), Nodes: 1, Ranks: j.cfg.Scaling.Workers, Mesh: j.run.Plan.Mesh.String(),
		Config: binding.Marshal(), Environment: []string{directoryVariable + "=" + dir}, Dir: dir,
		Placer: launcher.Local{Command: []string{self, "agent"}, Stderr: j.err}, Stdout: j.out, Stderr: j.err,
	})
	if err == nil && outcome.Code != 0 {
		err = outcomeError(outcome)
	}
	// The first rank writes how it went; where it could not, it is written here.
	rec, failed := j.dir.ReadRun()
	if failed != nil {
		return errors.Join(err, failed)
	}
	os.Remove(j.reserve()) // its owner may have
	code := j.codeOf(err)
	if said, known := rec.Outcome.ExitCode.Get(); known && said == code {
		return err
	}
	reason := ""
	if code != 0 {
		reason = j.oneLine(err)
	}
	rec.End(record.OutcomeOf(code, reason))
	return errors.Join(err, j.dir.WriteRun(rec))
}

// outcomeError is how a run of several processes failed.
type outcomeError launcher.Outcome

func (o outcomeError) Error() string { return o.Reason }

// ExitCode is the one for the launcher's process.
func (o outcomeError) ExitCode() int { return o.Code }

// mostWorkers is as many ranks as one machine is asked to start.
const mostWorkers = 64

// canLaunch refuses several ranks where their processes cannot share memory.
func canLaunch(workers int) error {
	if workers > mostWorkers {
		return fmt.Errorf("scaling.num_workers: %d ranks are more than the %d that one machine starts, and several machines are not supported yet", workers, mostWorkers)
	}
	if workers > 1 && runtime.GOOS != "linux" {
		return fmt.Errorf("scaling.num_workers: %d ranks of one machine share memory in a way that only Linux has; take 1 with more scaling.threads", workers)
	}
	return nil
}

// place is where a rank stands, as far as the configuration says it.
func place(s config.Scaling) train.Place {
	return train.Place{Ranks: s.Workers, Sharding: s.Sharding}
}

// oneLine joins an error's statements.
func (a *app) oneLine(err error) string { return strings.Join(a.statements(err), "; ") }
