package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

// benchCommand is what is measured, a command each. All write the same form of
// results.
type benchCommand struct {
	Operations  operationsCommand   `cmd:"" default:"withargs" help:"Measure the operations and the training step of one rank; this is what bench alone does."`
	Collectives collectivesCommand  `cmd:"" help:"Measure what ranks do together, over shared memory or between GPUs, by size."`
	Ranks       ranksCommand        `cmd:"" help:"Measure the training step by strategy and number of ranks."`
	Run         benchRunCommand     `cmd:"" help:"Compare programs that do the same work, in turns, as scenario files say."`
	Report      benchReportCommand  `cmd:"" help:"Draw tables and charts of the results of bench run, beside them."`
	Compare     benchCompareCommand `cmd:"" help:"Show what has changed between two sets of results."`

	// What a comparison starts.
	Side benchSideCommand `cmd:"" hidden:"" help:"Gofsdp's side of a comparison: does the work of a task, and writes what it measured."`

	// What those with several ranks start.
	Agent benchAgentCommand `cmd:"" hidden:"" help:"A node's part of a measurement: started by gofsdp bench."`
	Rank  benchRankCommand  `cmd:"" hidden:"" help:"A rank's part of a measurement: started by an agent."`
}

// benchOutput is where results go besides the table.
type benchOutput struct {
	Short bool   `help:"Little work and few repetitions, to show in seconds that all runs."`
	JSON  string `name:"json" placeholder:"FILE" help:"Write all results to this file, which must not exist."`
}

// isa is the flag for the kernels' instruction set.
type isa struct {
	ISA string `name:"isa" default:"auto" enum:"auto,generic,avx2,avx512,avx512bf16" help:"Instruction set of the kernels."`
}

// benchModel are the flags that say what is trained.
type benchModel struct {
	Model      string `default:"bench-98m" help:"Shape to train: a built-in one, a directory with config.json or a Hub name in the local cache; --short takes tiny."`
	Seq        int    `default:"512" help:"Tokens of a sequence; --short takes 128."`
	MicroBatch int    `default:"2" help:"Sequences of a micro-batch."`
	Recompute  string `default:"none" enum:"none,selective,block" help:"Activations that are computed again in the backward."`
}

type operationsCommand struct {
	benchModel
	Precision string `default:"both" enum:"f32,bf16,both" help:"What weights and activations compute in: f32, bf16 or both, one after the other."`
	Threads   int    `default:"0" help:"Threads that compute; 0 takes all cores."`
	isa
	benchDevice
	benchOutput
}

// Run measures and prints.
func (c *operationsCommand) Run(a *app) error {
	if err := errors.Join(c.sizes(), c.vacant()); err != nil {
		return asUser(err)
	}
	on, err := c.choose(a.err, 1)
	if err == nil {
		err = asUser(on.ofCPUs(c.Threads, 0, c.ISA))
	}
	if err != nil {
		return err
	}
	results, err := bench.Run(a.ctx, c.settings(), on.measured(c.ISA), a.say)
	if err != nil { // the model, its length, its memory, the device that was asked for
		return asUser(err)
	}
	return c.write(a, results)
}

// say tells what is being done, apart from the results.
func (a *app) say(format string, args ...any) { fmt.Fprintf(a.err, format+"\n", args...) }

func (c *benchModel) sizes() error {
	if c.Seq < 1 || c.MicroBatch < 1 {
		return fmt.Errorf("--seq and --micro-batch must be at least 1")
	}
	return nil
}

// write writes results to the file, if one is named, and as tables.
func (c *benchOutput) write(a *app, results *bench.Results) (err error) {
	if c.JSON != "" {
		err = asUser(results.WriteFile(c.JSON))
	}
	return errors.Join(err, results.WriteTable(a.out))
}

// vacant refuses a file that cannot be written, before minutes are spent.
func (c *benchOutput) vacant() error {
	if c.JSON == "" {
		return nil
	}
	if _, err := os.Lstat(c.JSON); err == nil {
		return fmt.Errorf("%s exists already; name another file with --json", c.JSON)
	}
	if dir, err := os.Stat(filepath.Dir(c.JSON)); err != nil || !dir.IsDir() {
		return fmt.Errorf("--json: %s is no directory; make it, or name another file", filepath.Dir(c.JSON))
	}
	return nil
}

// settings is the form that was asked for, with the flags in it.
func (c *operationsCommand) settings() bench.Settings {
	s := bench.Short()
	if !c.Short {
		s = bench.Full()
		s.Model, s.Length, s.Sequences = c.Model, c.Seq, c.MicroBatch
	}
	s.Threads, s.Recompute = c.Threads, fsdp.Recompute(c.Recompute)
	switch c.Precision {
	case "f32":
		s.Precisions = []device.DType{device.F32}
	case "bf16":
		s.Precisions = []device.DType{device.BF16}
	}
	return s
}
