package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/train"
)

// benchDevice is the flag for what is measured.
type benchDevice struct {
	Device string `default:"auto" enum:"auto,cpu,cuda,sim" help:"What computes: auto, cpu, cuda or sim, as scaling.device says of a run."`
}

// choose decides on what so many ranks of this machine are measured, as training
// does.
func (f benchDevice) choose(notes io.Writer, ranks int) (choice, error) {
	found, err := f.find(ranks)
	if err != nil {
		return choice{}, err
	}
	return f.among(found, notes, ranks)
}

// find looks for the GPUs of this machine, for so many ranks at the most.
func (f benchDevice) find(ranks int) (*gpus, error) {
	local := 0
	if ranks > 1 {
		local = -1 // this process starts ranks, and is none
	}
	found, err := gpusOf(f.Device, ranks, local)
	return found, byFlag(err)
}

// among chooses of what the machine has been found to have.
func (f benchDevice) among(g *gpus, notes io.Writer, ranks int) (choice, error) {
	on, err := g.choose(config.Scaling{Workers: ranks, Nodes: 1, Device: f.Device}, notes)
	if err != nil && g != nil && g.report.State == cuda.Ready && len(g.report.Devices) < ranks {
		err = fmt.Errorf("%s need %s, and this machine has %d: take fewer ranks, or let them compute on the CPU by --device cpu",
			train.Number(ranks, "rank"), train.Number(ranks, "GPU"), len(g.report.Devices))
	}
	return on, byFlag(err)
}

// ofCPUs refuses flags that say how a CPU computes, where none does. threads is
// what is usual.
func (c choice) ofCPUs(threads, usual int, isa string) (err error) {
	if c.gpus == nil {
		return nil
	}
	if threads != usual {
		err = fmt.Errorf("--threads: %d is for CPUs, and GPUs compute; leave it out, or take --device cpu", threads)
	}
	if isa != autoISA {
		err = errors.Join(err, fmt.Errorf("--isa: %s is for CPUs, and GPUs compute; leave it out, or take --device cpu", isa))
	}
	return err
}

// measured opens the device of the only rank as package bench measures it, by
// threads of an instruction set where it is the CPU.
func (c choice) measured(isa string) bench.Open {
	return func(threads int) (device.Device, error) {
		if c.gpus == nil {
			return openCPU(nil, config.Scaling{Threads: threads, ISA: isa})
		}
		dev, err := c.gpus.measured(0)
		if err != nil {
			return nil, err
		}
		return dev, nil
	}
}

// measured opens the GPU of the local-th of the machine's ranks, as package bench
// measures it.
func (g *gpus) measured(local int) (*bench.GPU, error) {
	dev, err := g.device(config.Scaling{}, local)
	if err != nil {
		return nil, err
	}
	return bench.OnGPU(dev, g.sizes)
}

// benchEnvironment is what the process of a rank that measures begins with.
func benchEnvironment(rank launcher.Start, _ []string) ([]string, error) {
	var task benchTask
	if err := json.Unmarshal(rank.Config, &task); err != nil || task.Device == cpuDevice {
		return nil, err
	}
	return withoutUsers(nccl.Settings{}.Environment("", rank.Rank)), nil
}

// onGPU measures as one of several ranks that have a GPU each.
func (t *benchTask) onGPU(client *launcher.Client, meshes bench.Meshes) (err error) {
	start, ctx := client.Start(), client.Context()
	gpus, err := gpusOf(t.Device, start.LocalRanks, start.LocalRank)
	if err != nil {
		return err
	}
	if why := gpus.lacks(start.LocalRank, start.LocalRanks, start.World > 1); why != "" {
		return asUser(errors.New(why))
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), processors)) // as in rank
	dev, err := gpus.measured(start.LocalRank)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	groups := &nccl.Groups{}
	if start.World > 1 {
		if groups, err = gpus.meet(ctx, client, meshes.Groups(), dev.Device, nccl.Settings{}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, groups.Close()) }()
	}
	if err = t.measure(client, dev, groups.Comms); err != nil {
		groups.Abort(err) // nobody has to wait for this rank any more
		err = lostOnGPU(ctx, err)
	}
	return err
}
