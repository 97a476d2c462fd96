package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

type agentCommand struct{}

// Run is a node's agent. Its ranks share a window of memory each, and a control
// file for each group of the mesh.
func (agentCommand) Run(*app) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	os.Exit(launcher.RunAgent([]string{self, "rank"}, sharedFiles))
	return nil
}

// sharedFiles makes the files of a node that has all ranks of the mesh: the
// windows by rank, then the control files in the order of groupsOf.
func sharedFiles(ranks int, mesh string) (files []*os.File, err error) {
	m, err := fsdp.ParseMesh(mesh)
	if err != nil {
		return nil, err
	}
	for r := range ranks {
		f, err := device.NewWindowFile(fmt.Sprintf("gofsdp-window-%d", r))
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	for _, g := range groupsOf(m) {
		f, err := collective.NewControl(len(g.ranks))
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// group is some ranks of a mesh, along an axis, that gather or reduce together.
type group struct {
	axis   fsdp.Axis
	reduce bool
	ranks  []int // of the mesh, by their place in the group
}

// groupsOf lists the groups of a mesh, always in the same order.
func groupsOf(m fsdp.Mesh) (list []group) {
	for _, axis := range []fsdp.Axis{fsdp.Across, fsdp.Within} {
		n := m.Along(axis)
		if n == 1 {
			continue
		}
		for other := range m.Size() / n {
			var ranks []int
			for r := range m.Size() {
				if at := m.At(r, fsdp.Across+fsdp.Within-axis); at == other {
					ranks = append(ranks, r)
				}
			}
			list = append(list, group{axis, false, ranks}, group{axis, true, ranks})
		}
	}
	return list
}

type rankCommand struct{}

// Run is one rank's process.
func (rankCommand) Run(a *app) error {
	client, err := launcher.Join()
	if err != nil {
		return err
	}
	err = a.rank(client)
	code, reason := a.codeOf(err), ""
	if code != 0 {
		reason = a.oneLine(err)
	}
	if said := client.Done(code, reason); said != nil {
		err = errors.Join(err, said)
	}
	if err != nil {
		os.Exit(code) // the launcher says why
	}
	return nil
}

// rank trains as one of several. The first rank reports, writes the run's files
// and shows samples; the others do the same work in silence.
func (a *app) rank(client *launcher.Client) (err error) {
	start, began := client.Start(), time.Now()
	var cfg config.Config
	b := config.Bind(&cfg)
	b.Load("the run's configuration", start.Config)
	if err := b.Check(); err != nil {
		return err
	}
	a.sources = nil
	ctx, cancel := context.WithCancelCause(client.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-client.Stopping():
			cancel(interruption{syscall.SIGINT})
		case <-ctx.Done():
		}
	}()
	a.ctx = ctx

	files := make([]*os.File, len(start.Files))
	for i, fd := range start.Files {
		files[i] = os.NewFile(uintptr(fd), fmt.Sprintf("shared %d", i))
	}
	window, err := device.NewWindow(files[start.Rank])
	if err != nil {
		return err
	}
	dev, err := openDeviceIn(window, cfg.Scaling)
	if err != nil {
		return errors.Join(err, window.Close())
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	at := place(cfg.Scaling)
	at.Rank = start.Rank
	var groups []*collective.Shared
	at.Join = func(p *fsdp.Plan) (c fsdp.Comms, err error) {
		c, groups, err = joinGroups(p, files, window, start.Deadline)
		joined := groups
		go func() { // what fails elsewhere must not leave this rank waiting
			<-client.Context().Done()
			for _, g := range joined {
				g.Abort(context.Cause(client.Context()))
			}
		}()
		return c, err
	}
	log := func(format string, args ...any) {
		if start.Rank == 0 {
			a.printf(format+"\n", args...)
		}
	}
	r, err := train.Open(ctx, train.Work{Model: cfg.Model, Data: cfg.Data, Train: cfg.Train}, at, dev, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if start.Rank == 0 {
		j := &job{app: a, cfg: &cfg, run: r, dev: dev, began: began}
		if err := j.adopt(os.Getenv(directoryVariable)); err != nil {
			return err
		}
		err = j.train()
	} else {
		err = a.follow(&cfg, r)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		for _, g := range groups { // nobody has to wait for this rank any more
			g.Abort(err)
		}
		err = lost(err)
	}
	return err
}

// joinGroups joins this rank's groups of the plan's mesh.
func joinGroups(p *fsdp.Plan, files []*os.File, window *device.Window, deadline time.Duration) (c fsdp.Comms, all []*collective.Shared, err error) {
	views := make([]*device.View, p.Mesh.Size())
	for r := range views {
		if r != p.Rank {
			if views[r], err = device.NewView(files[r]); err != nil {
				return c, all, err
			}
		}
	}
	for i, g := range groupsOf(p.Mesh) {
		set := collective.SharedSettings{Rank: -1, Control: files[p.Mesh.Size()+i], Window: window, Deadline: deadline}
		for k, r := range g.ranks {
			set.Peers = append(set.Peers, views[r])
			if r == p.Rank {
				set.Rank = k
			}
		}
		if set.Rank < 0 {
			continue
		}
		s, err := collective.NewShared(set)
		if err != nil {
			return c, all, err
		}
		all = append(all, s)
		if g.reduce {
			c.Reduce[g.axis] = s
		} else {
			c.Gather[g.axis] = s
		}
	}
	return c, all, nil
}

// follow does a rank's part of what the first does in job.train: steps, the
// export and the samples.
func (a *app) follow(cfg *config.Config, r *train.Run) error {
	sum, err := r.Train(a.ctx, train.Reporters{})
	if err == nil && sum.Steps > 0 && sum.Finite() {
		err = r.Export("")
	}
	if err == nil && sum.Interrupted {
		return context.Canceled
	}
	for _, prompt := range cfg.Train.Sample.Prompts {
		if err != nil {
			break
		}
		err = r.Generate(a.ctx, prompt, func([]byte) {})
	}
	return err
}

// adopt opens the directory that the launcher has made.
func (j *job) adopt(path string) (err error) {
	if j.dir, err = record.Open(path); err != nil {
		return err
	}
	if j.rec, err = j.dir.ReadRun(); err != nil {
		return err
	}
	j.recorder, err = train.NewRecorder(j.dir, j.began, j.cfg.Tree())
	return err
}

// lost gives an error of a collective the exit code of a lost peer, and one that
// another rank's failure caused that of a rank which is not the reason.
func lost(err error) error {
	var stopped launcher.Stopped
	var c *collective.Error
	switch {
	case errors.As(err, &stopped):
		return coded{err, stopped.ExitCode()}
	case errors.As(err, &c) && c.Missing == nil:
		return coded{err, launcher.Stopped{}.ExitCode()}
	case errors.As(err, &c):
		return coded{err, exitLost}
	}
	return err
}

// exitLost is the exit code of a rank that has lost a peer.
const exitLost = 5

// coded is an error with an exit code.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

// ExitCode is what the process ends with.
func (c coded) ExitCode() int { return c.code }
