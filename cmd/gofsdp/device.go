package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
)

// choice is what the ranks of a run compute on, as far as it is this machine's.
type choice struct {
	kind string // cpuDevice, cudaDevice or simDevice
	gpus *gpus  // nil where it is the CPU
}

// choose decides on what the ranks compute that this machine is to start, as they
// will among themselves. It is the only place, with member.agree, where a device is
// chosen. What a user should know of it goes to notes.
func choose(s config.Scaling, notes io.Writer) (choice, error) {
	local := 0
	if s.Workers > 1 {
		local = -1 // this process starts ranks, and is none
	}
	found, err := gpusOf(s.Device, s.Workers/s.Nodes, local)
	if err != nil {
		return choice{}, err
	}
	return found.choose(s, notes)
}

// choose is the function choose of what a machine has been found to have; of no
// GPUs it is the CPU.
func (g *gpus) choose(s config.Scaling, notes io.Writer) (c choice, err error) {
	c.gpus = g
	ranks := s.Workers / s.Nodes
	all := make([]machine, ranks)
	for i := range all {
		all[i] = machine{Host: "this machine", GPU: c.gpus.of(i, ranks, s.Workers > 1)}
	}
	var said []string
	if c.kind, said, err = settle(s, all); err != nil {
		return c, err
	}
	if c.kind == cpuDevice {
		c.gpus = nil
	} else if s.Nodes > 1 {
		return c, asUser(fmt.Errorf("scaling.nodes: %d nodes would be on this machine and share its GPUs, which is not supported; take one node, or scaling.device: cpu", s.Nodes))
	}
	for _, note := range said {
		fmt.Fprintln(notes, note)
	}
	return c, nil
}

// open opens the device of the only rank.
func (c choice) open(s config.Scaling) (device.Device, error) {
	if c.gpus == nil {
		return openCPU(nil, s)
	}
	return c.gpus.device(s, 0)
}

// info describes the device of each rank. On a GPU none is opened.
func (c choice) info(s config.Scaling) (device.Info, error) {
	if c.gpus != nil {
		return c.gpus.report.Devices[0].Info(), nil
	}
	dev, err := openCPU(nil, s)
	if err != nil {
		return device.Info{}, err
	}
	return dev.Info(), dev.Close()
}

// mostThreads is the limit of scaling.threads, for flags too.
const mostThreads = 1024

// threadsOf returns the threads of a rank: all cores where it is alone, its share
// of them among several.
func threadsOf(s config.Scaling) int {
	if s.Threads == 0 && s.Workers > 1 {
		return max(runtime.GOMAXPROCS(0)/s.Workers, 1)
	}
	return s.Threads
}

// openCPU opens this machine's CPU, with its memory in a window unless that is nil.
func openCPU(window *device.Window, s config.Scaling) (device.Device, error) {
	s.Threads = threadsOf(s)
	if s.Threads < 0 || s.Threads > mostThreads {
		return nil, asUser(fmt.Errorf("threads: %d is not between 0, which takes all cores, and %d", s.Threads, mostThreads))
	}
	o := cpu.Options{Threads: s.Threads, Window: window}
	if s.ISA != autoISA {
		o.ISA = s.ISA
		if err := checkISA(s.ISA, cpu.Detect()); err != nil {
			return nil, asUser(err)
		}
	}
	dev, err := cpu.New(o)
	if err != nil {
		return nil, asUser(err)
	}
	return dev, nil
}

// checkISA refuses a level that is more than the machine has.
func checkISA(asked string, has cpu.ISA) error {
	level, err := cpu.ParseISA(asked)
	if err != nil {
		return fmt.Errorf("scaling.isa: %w", err)
	}
	if level > has {
		return fmt.Errorf("scaling.isa: %v is more than this machine has, which is %v; auto takes the best that there is", level, has)
	}
	return nil
}
