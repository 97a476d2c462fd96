package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

type agentCommand struct{}

// Run is a node's agent. Its ranks share windows of memory and control files.
func (agentCommand) Run(a *app) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	os.Exit(launcher.RunAgent(a.ctx, []string{self, "rank"}, launcher.Node{Files: nodeFiles, Environment: rankEnvironment}))
	return nil
}

type rankCommand struct{}

// Run is one rank's process.
func (rankCommand) Run(a *app) error {
	client, err := launcher.Join()
	if err != nil {
		return err
	}
	told := a.ctx
	defer context.AfterFunc(told, func() { client.Told(context.Cause(told).Error()) })()
	a.leave(client, a.rank(client))
	return nil
}

// leave tells the launcher how this rank ends, by err, and ends the process where
// it has failed.
func (a *app) leave(client *launcher.Client, err error) {
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
}

// rank trains as one of several. The first rank reports, writes the run's files
// and shows samples; the others do the same work in silence.
func (a *app) rank(client *launcher.Client) (err error) {
	m := &member{app: a, client: client, start: client.Start(), began: time.Now()}
	if m.cfg, err = told(m.start); err != nil {
		return err
	}
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

	if m.recorder, err = a.newFlight(m.start.Rank, m.start.World); err != nil {
		return err
	}
	defer m.recorder.watch()()
	if err := m.agree(); err != nil {
		return err
	}
	world, err := worldOf(m.cfg.Scaling, m.start)
	if err != nil {
		return err
	}
	if err = m.enter(world); err != nil {
		return err
	}
	defer func() { err = errors.Join(m.failed(err), m.leaveNode()) }()
	if m.dev, err = m.device(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.dev.Close()) }()
	if err = m.join(ctx, world); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.groups.Close()) }()
	defer func() {
		if err != nil && !m.agreed(err) {
			m.groups.Abort(err) // nobody has to wait for this rank any more
		}
	}()
	// What fails elsewhere must not leave this rank waiting.
	defer context.AfterFunc(client.Context(), func() {
		m.recorder.stand(context.Cause(client.Context()))
		m.groups.Abort(context.Cause(client.Context()))
		m.recorder.write()
	})()
	return m.train()
}

// member is one of several ranks, in a process of its own.
type member struct {
	*app
	client   *launcher.Client
	start    launcher.Start
	cfg      *config.Config
	began    time.Time
	recorder *flight
	on       choice           // what all ranks compute on
	isa      string           // that all ranks compute by, on CPUs
	node     *collective.Node // what ranks on CPUs share with others of their node
	dev      device.Device
	groups   groups
	ends     []collective.Comm // this rank's, of its groups
	training bool              // ranks now agree on when they end
}

// agree tells the launcher and the other ranks where this one runs, and finds what
// all can compute by.
func (m *member) agree() error {
	here, err := thisMachine()
	if err != nil {
		return err
	}
	s, at := m.cfg.Scaling, m.start
	if m.on.gpus, err = gpusOf(s.Device, at.LocalRanks, at.LocalRank); err != nil {
		return err
	}
	here.GPU = m.on.gpus.of(at.LocalRank, at.LocalRanks, at.World > 1)
	if err := introduce(m.client, here, m.on.gpus); err != nil {
		return err
	}
	all, err := agreeOn(m.ctx, m.client, s, here)
	if err != nil {
		return err
	}
	if m.on.kind, m.isa = all.device, all.isa; m.on.kind == cpuDevice {
		m.on.gpus = nil
	}
	if m.on.gpus != nil {
		m.recorder.blind()
	}
	if at.Rank == 0 {
		for _, note := range all.notes {
			m.printf("%s\n", note)
		}
	}
	return nil
}

// enter opens what the rank shares with others of its node. On a GPU that is
// nothing.
func (m *member) enter(world collective.World) (err error) {
	if m.on.gpus == nil {
		m.node, err = openNode(world, m.start)
		return err
	}
	for _, f := range sharedFiles(m.start) {
		err = errors.Join(err, f.Close())
	}
	return err
}

// leaveNode closes what enter has opened.
func (m *member) leaveNode() error {
	if m.node == nil {
		return nil
	}
	return m.node.Close()
}

// join joins the rank's groups.
func (m *member) join(ctx context.Context, world collective.World) error {
	if m.on.gpus == nil {
		g, err := connect(ctx, world, m.node, m.dev, m.client)
		if err != nil {
			return err
		}
		m.groups, m.ends = g, g.Comms
		return nil
	}
	g, err := m.on.gpus.meet(ctx, m.client, world.Groups, m.dev, m.cfg.Scaling.NCCL.On(m.start.Nodes))
	if err != nil {
		return err
	}
	m.groups, m.ends = g, g.Comms
	return nil
}

// device opens the rank's device, on cores of its own where ranks take all of them.
func (m *member) device() (device.Device, error) {
	scaling := m.cfg.Scaling
	scaling.ISA = m.isa
	if m.on.gpus != nil {
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), processors))
		return m.on.gpus.device(scaling, m.start.LocalRank)
	}
	// A rank that waits for a peer keeps one of Go's processors until the runtime
	// notices; with a few more its other streams go on meanwhile. The threads that
	// compute are counted before.
	scaling.Threads = threadsOf(scaling)
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), processors))
	if scaling.BindCores && m.start.LocalRanks == m.start.World {
		if _, err := cpu.Bind(m.start.LocalRank, m.start.LocalRanks, scaling.Threads); err != nil {
			return nil, err
		}
	}
	return openCPU(m.node.Window, scaling)
}

// train does the rank's part of the run.
func (m *member) train() (err error) {
	at := m.on.place(m.cfg.Scaling)
	at.Rank, at.Flight = m.start.Rank, m.recorder.Flight
	at.Join = func(p *fsdp.Plan) (fsdp.Comms, error) { return p.Mesh.Comms(m.ends), nil }
	at.Meet = func() error {
		_, err := m.client.Exchange(m.client.Context(), "export", nil)
		return err
	}
	log := func(format string, args ...any) {
		if m.start.Rank == 0 {
			m.printf(format+"\n", args...)
		}
	}
	r, err := train.Open(m.ctx, train.Work{Model: m.cfg.Model, Data: m.cfg.Data, Train: m.cfg.Train}, at, m.dev, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := alike(m.ctx, m.client, r.Data.Fingerprint); err != nil {
		return err
	}
	defer m.recorder.panicked()
	if m.start.Rank > 0 {
		m.training = true
		return m.follow(m.cfg, r, m.recorder)
	}
	j := &job{app: m.app, cfg: m.cfg, run: r, on: m.on, dev: m.dev, began: m.began, flight: m.recorder}
	if err := j.adopt(os.Getenv(directoryVariable)); err != nil {
		return err
	}
	m.training = true
	return j.train()
}

// agreed reports whether err is an end that all ranks have agreed on.
func (m *member) agreed(err error) bool { return m.training && errors.Is(err, context.Canceled) }

// failed leaves the flight recorder where err is a failure, and returns err with
// the exit code of what it says of other ranks.
func (m *member) failed(err error) error {
	ended := m.client.Context()
	if err == nil || m.agreed(err) && ended.Err() == nil {
		return err
	}
	if !m.training && !errors.Is(err, context.Canceled) || ended.Err() != nil {
		m.recorder.stand(err)
	}
	m.recorder.write()
	if m.on.gpus != nil {
		return lostOnGPU(ended, err)
	}
	return lost(ended, err)
}

// processors is how many of Go's a rank has at the least: three streams, and
// what reports, beats and prepares.
const processors = 8

// follow does a rank's part of what the first does in job.train: steps, the
// export and the samples.
func (a *app) follow(cfg *config.Config, r *train.Run, f *flight) (err error) {
	f.trace(r, cfg.Run)
	sum, err := r.Train(a.ctx, train.Reporters{})
	defer func() { f.note(err, sum.Finite()) }()
	if ofAll(err) && sum.Steps > 0 && sum.Finite() {
		err = errors.Join(err, r.Export(""))
	}
	if err == nil && sum.Interrupted {
		return a.interrupted(context.Canceled)
	}
	for _, prompt := range cfg.Train.Sample.Prompts {
		if err != nil {
			break
		}
		err = a.interrupted(r.Generate(a.ctx, prompt, func([]byte) {}))
	}
	return err
}

// interrupted gives a cancellation that all ranks have agreed on, by whose wish
// ever, an exit code.
func (a *app) interrupted(err error) error {
	var by interruption
	switch {
	case !errors.Is(err, context.Canceled):
	case a.ctx.Err() == nil:
		return interruption{syscall.SIGINT}
	case errors.As(context.Cause(a.ctx), &by):
		return by // it says by which signal, in the record, too
	}
	return err
}

// ofAll says whether all ranks end with an error at once, or without one: then they
// can go on together.
func ofAll(err error) bool {
	var spoilt *train.NotFinite
	return err == nil || errors.As(err, &spoilt)
}

// adopt opens the directory that the launcher has made, and takes over run.json:
// while ranks run the launcher has attempts.json.
func (j *job) adopt(path string) (err error) {
	if j.dir, err = record.Open(path); err != nil {
		return err
	}
	if j.rec, err = record.LoadRun(j.dir.RunFile()); err != nil {
		return err
	}
	j.describe() // by what the ranks have agreed on
	if err := j.dir.WriteRun(j.rec); err != nil {
		return err
	}
	j.recorder, err = train.NewRecorder(j.dir, j.began, j.cfg.Tree())
	return err
}
