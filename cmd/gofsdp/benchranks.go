package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/launcher"
)

// benchRanks are the flags of what several ranks measure.
type benchRanks struct {
	Ranks   []int `default:"2" help:"Numbers of ranks, each of which is measured: processes of this machine."`
	Threads int   `default:"1" help:"Threads of each rank."`
	isa
	benchDevice

	on choice // what all compute on, once it is chosen
}

type collectivesCommand struct {
	benchRanks
	Sizes []int64 `default:"1,4,16,64,256" help:"Sizes of the whole tensor in MB, of 2^20 bytes; --short takes 1 and 4."`
	benchOutput
}

// mostMB is the greatest tensor that is measured.
const mostMB = 1 << 20

// Run measures and prints.
func (c *collectivesCommand) Run(a *app) error {
	err := c.vacant()
	for _, mb := range c.Sizes {
		if mb < 1 || mb > mostMB {
			err = errors.Join(err, fmt.Errorf("--sizes: %d MB is not between 1 and %d", mb, mostMB))
		}
	}
	info, err := c.check(a, err)
	if err != nil {
		return err
	}
	var meshes bench.Meshes
	for _, n := range c.Ranks {
		meshes = append(meshes, fsdp.Mesh{Across: 1, Within: n})
	}
	s := bench.ShortCollectives(meshes)
	if !c.Short {
		s = bench.FullCollectives(meshes)
		s.Sizes = nil
		for _, mb := range c.Sizes {
			s.Sizes = append(s.Sizes, mb<<20)
		}
	}
	s.Threads = c.Threads
	if err := s.Check(info); err != nil {
		return asUser(err)
	}
	r := bench.NewResults(s.Short)
	r.Device = bench.DeviceOf(info)
	reported, err := c.launch(a, s.Meshes, benchTask{Collectives: &s})
	if err == nil {
		r.Collectives, err = s.Results(reported)
	}
	if err != nil {
		return err
	}
	return c.write(a, r)
}

type ranksCommand struct {
	benchModel
	Precision string `default:"f32" enum:"f32,bf16" help:"What weights and activations compute in."`
	benchRanks
	Rounds int `default:"5" help:"Rounds in which all cases take turns; --short takes 2."`
	benchOutput
}

// Run measures and prints.
func (c *ranksCommand) Run(a *app) error {
	err := errors.Join(c.sizes(), c.vacant())
	if c.Rounds < 1 {
		err = errors.Join(err, fmt.Errorf("--rounds: %d, want at least 1", c.Rounds))
	}
	info, err := c.check(a, err)
	if err != nil {
		return err
	}
	s, err := bench.ShortStrategies(fsdp.Recompute(c.Recompute), c.Ranks...)
	if !c.Short {
		s, err = bench.FullStrategies(fsdp.Recompute(c.Recompute), c.Ranks...)
		s.Model, s.Length, s.Sequences, s.Rounds = c.Model, c.Seq, c.MicroBatch, c.Rounds
	}
	s.Threads = c.Threads
	if c.Precision == "bf16" {
		s.Precision = device.BF16
	}
	if err == nil {
		err = s.Check(info)
	}
	if err != nil {
		return asUser(err)
	}
	r := bench.NewResults(c.Short)
	r.Device = bench.DeviceOf(info)
	reported, err := c.launch(a, s.Meshes(), benchTask{Steps: &s})
	if err == nil {
		r.Ranks, err = s.Results(reported)
	}
	if err != nil {
		return err
	}
	return c.write(a, r)
}

// check refuses what cannot be measured, with what is wrong already, chooses, and
// returns what each rank's device will be.
func (c *benchRanks) check(a *app, err error) (device.Info, error) {
	for i, n := range c.Ranks {
		switch {
		case n < 2 || n > mostWorkers:
			err = errors.Join(err, fmt.Errorf("--ranks: %d is not between 2 and %d", n, mostWorkers))
		case slices.Contains(c.Ranks[:i], n):
			err = errors.Join(err, fmt.Errorf("--ranks: %d is there twice", n))
		}
	}
	if c.Threads < 1 {
		err = errors.Join(err, fmt.Errorf("--threads: %d, want at least 1", c.Threads))
	}
	if err != nil {
		return device.Info{}, asUser(err)
	}
	if err := c.choose(a, slices.Max(c.Ranks)); err != nil {
		return device.Info{}, err
	}
	if err := c.on.ofCPUs(c.Threads, 1, c.ISA); err != nil {
		return device.Info{}, asUser(err)
	}
	return c.device()
}

// choose decides on what so many ranks compute.
func (c *benchRanks) choose(a *app, ranks int) (err error) {
	c.on, err = c.benchDevice.choose(a.err, ranks)
	return err
}

// device is what each rank's will be, as it was chosen.
func (c *benchRanks) device() (device.Info, error) {
	if c.on.gpus != nil {
		c.Threads = 0 // that compute
	} else if !shares("shared") {
		return device.Info{}, asUser(errors.New("ranks are measured over shared memory, as processes share it only on Linux"))
	}
	return c.on.info(config.Scaling{Threads: c.Threads, ISA: c.ISA})
}

// benchTask is what ranks are told to measure: one of the two.
type benchTask struct {
	Collectives *bench.CollectiveSettings `json:"collectives,omitempty"`
	Steps       *bench.StepSettings       `json:"steps,omitempty"`
	Device      string                    `json:"device"` // cpuDevice, cudaDevice or simDevice
	Threads     int                       `json:"threads"`
	ISA         string                    `json:"isa"`
}

// benchDeadline is how long ranks wait for each other. It only ends what has
// gone wrong, so it is far more than one is ever behind.
const benchDeadline = 2 * time.Minute

// sampleReport is the kind of report that a rank makes of what it has measured.
const sampleReport = "sample"

// launch starts rank processes as training does, and returns what each has
// reported.
func (c *benchRanks) launch(a *app, meshes bench.Meshes, task benchTask) (reported [][]bench.Sample, err error) {
	task.Device, task.Threads, task.ISA = c.on.kind, c.Threads, c.ISA
	text, err := json.Marshal(task)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "gofsdp-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	reported = make([][]bench.Sample, meshes.World())
	var unread error
	outcome, err := launcher.Run(a.ctx, launcher.Job{
		Settings: launcher.Settings{Deadline: benchDeadline, StartWithin: benchDeadline},
		Run:      "bench", Nodes: 1, Ranks: meshes.World(), Mesh: meshes.String(), Config: text, Dir: dir,
		Placer: launcher.Local{Command: []string{self, "bench", "agent"}, Stderr: a.err}, Stdout: a.err, Stderr: a.err,
		OnReport: func(rank int, kind, text string) {
			var s bench.Sample
			if kind != sampleReport {
				return
			}
			unread = errors.Join(unread, json.Unmarshal([]byte(text), &s))
			reported[rank] = append(reported[rank], s)
		},
	})
	if err == nil && outcome.Code != 0 {
		err = outcomeError(outcome)
	}
	return reported, errors.Join(err, unread)
}

type benchAgentCommand struct{}

// Run is the agent of ranks that measure.
func (benchAgentCommand) Run(a *app) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	os.Exit(launcher.RunAgent(a.ctx, []string{self, "bench", "rank"}, launcher.Node{Environment: benchEnvironment, Files: func(first launcher.Start) ([]*os.File, error) {
		var task benchTask
		if err := json.Unmarshal(first.Config, &task); err != nil || task.Device != cpuDevice {
			return nil, err // between GPUs nothing is shared
		}
		meshes, err := bench.ParseMeshes(first.Mesh)
		if err != nil {
			return nil, err
		}
		return benchWorld(meshes, first).NodeFiles(first.Rank)
	}}))
	return nil
}

// benchWorld is all groups of all meshes, over shared memory.
func benchWorld(m bench.Meshes, start launcher.Start) collective.World {
	return collective.World{Ranks: start.World, Sharing: start.LocalRanks, Groups: m.Groups()}
}

type benchRankCommand struct{}

// Run is the process of a rank that measures.
func (benchRankCommand) Run(a *app) error {
	client, err := launcher.Join()
	if err != nil {
		return err
	}
	// There is nothing to save: who is interrupted, or is stopped because another
	// has failed, ends at once.
	go func() {
		code, reason := exitInterrupted, "interrupted"
		select {
		case <-client.Stopping():
		case <-client.Context().Done():
			var stopped launcher.Stopped
			if !errors.As(context.Cause(client.Context()), &stopped) {
				return // this rank is done
			}
			code, reason = stopped.ExitCode(), stopped.Reason
		}
		client.Done(code, reason)
		os.Exit(code)
	}()
	a.leave(client, benchRank(client))
	return nil
}

// benchRank measures as one of several.
func benchRank(client *launcher.Client) (err error) {
	start := client.Start()
	var task benchTask
	if err := json.Unmarshal(start.Config, &task); err != nil {
		return err
	}
	meshes, err := bench.ParseMeshes(start.Mesh)
	if err != nil {
		return err
	}
	if task.Device != cpuDevice {
		return task.onGPU(client, meshes)
	}
	world := benchWorld(meshes, start)
	node, err := openNode(world, start)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), processors)) // as in rank
	if _, err := cpu.Bind(start.LocalRank, start.LocalRanks, task.Threads); err != nil {
		return err
	}
	dev, err := openCPU(node.Window, config.Scaling{Threads: task.Threads, ISA: task.ISA})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	groups, err := connect(client.Context(), world, node, dev, client)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, groups.Close()) }()
	if err = task.measure(client, dev, groups.Comms); err != nil {
		groups.Abort(err) // nobody has to wait for this rank any more
		err = lost(client.Context(), err)
	}
	return err
}

// measure takes a rank's part in what is measured.
func (t *benchTask) measure(client *launcher.Client, dev device.Device, ends []collective.Comm) error {
	m := &bench.Member{
		Rank: client.Start().Rank, Device: dev, Ends: ends,
		Meet: func(ctx context.Context) error {
			_, err := client.Exchange(ctx, "bench", nil)
			return err
		},
		Report: func(s bench.Sample) error {
			text, err := json.Marshal(s)
			if err != nil {
				return err
			}
			return client.Report(sampleReport, string(text))
		},
		Log: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }, // which the launcher passes on
	}
	if t.Collectives != nil {
		return t.Collectives.Measure(client.Context(), m)
	}
	return t.Steps.Measure(client.Context(), m)
}
