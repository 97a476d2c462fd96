package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

type benchCommand struct {
	Model      string `default:"bench-98m" help:"Shape to train: a built-in one, a directory with config.json or a Hub name in the local cache."`
	Seq        int    `default:"512" help:"Tokens of a sequence."`
	MicroBatch int    `default:"2" help:"Sequences of a micro-batch."`
	Precision  string `default:"both" enum:"f32,bf16,both" help:"What weights and activations compute in: f32, bf16 or both, one after the other."`
	Recompute  string `default:"none" enum:"none,selective,block" help:"Activations that are computed again in the backward."`
	Threads    int    `default:"0" help:"Threads that compute; 0 takes all cores."`
	ISA        string `name:"isa" default:"auto" enum:"auto,generic,avx2,avx512,avx512bf16" help:"Instruction set of the kernels."`
	Short      bool   `help:"A tiny model and few repetitions, to show in seconds that all runs; leaves out --model, --seq and --micro-batch."`
	JSON       string `name:"json" placeholder:"FILE" help:"Write all results to this file, which must not exist."`
}

// Run measures and prints.
func (c *benchCommand) Run(a *app) error {
	if c.Seq < 1 || c.MicroBatch < 1 {
		return asUser(fmt.Errorf("--seq and --micro-batch must be at least 1"))
	}
	if err := c.vacant(); err != nil {
		return asUser(err)
	}
	results, err := bench.Run(a.ctx, c.settings(), func(threads int) (device.Device, error) {
		return openDevice(config.Scaling{Threads: threads, ISA: c.ISA})
	}, func(format string, args ...any) { fmt.Fprintf(a.err, format+"\n", args...) })
	if err != nil { // the model, its length, its memory, the device that was asked for
		return asUser(err)
	}
	if c.JSON != "" {
		err = asUser(results.WriteFile(c.JSON))
	}
	return errors.Join(err, results.WriteTable(a.out))
}

// vacant refuses a file that cannot be written, before minutes are spent.
func (c *benchCommand) vacant() error {
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
func (c *benchCommand) settings() bench.Settings {
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
