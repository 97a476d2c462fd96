package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/nvml"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/gpucheck"
)

// gpuCheckCommand checks GPUs.
type gpuCheckCommand struct {
	All gpuCheckAll `cmd:"" name:"all" default:"withargs" help:"Check this machine's GPUs, part by part, and write one page and one JSON; this is what gpu-check alone does."`

	// What it starts.
	Part gpuCheckPart `cmd:"" hidden:"" help:"One part of a check: started by gofsdp gpu-check."`
	Side gpuCheckSide `cmd:"" hidden:"" help:"Gofsdp's side of a comparison on a GPU: started by gofsdp gpu-check."`
}

// gpuTools are the flags for what a check is of, and what it needs besides this program.
type gpuTools struct {
	Device string `default:"cuda" enum:"cuda,sim" help:"GPUs to check: this machine's, or with little work the two of the simulator, in a program that has it."`
	Tools  string `placeholder:"DIR" help:"Folder of gpucheck.test, witness.test and bench/peers, as make gpu-check-bundle makes it; by default that of this program."`
}

// exitNoGPU says that there was nothing to check.
const exitNoGPU = 3

// noGPU is a machine without one.
type noGPU struct{ why string }

func (n noGPU) Error() string { return "there is no GPU to check: " + n.why }

// ExitCode is none that a check has which ran.
func (noGPU) ExitCode() int { return exitNoGPU }

type gpuCheckAll struct {
	Out     string        `default:"gpu-check" placeholder:"DIR" help:"Folder for gpu-check.md, gpu-check.json and the log."`
	Parts   []string      `placeholder:"NAME" help:"Run these parts only, such as kernels,nccl; --parts list shows all."`
	Within  time.Duration `default:"8m" help:"The longest that all parts may take together; what does not fit is not run."`
	Verbose bool          `help:"Show what the parts write, too."`
	gpuTools
}

// Run checks. Its code is 1 where a part has failed, and 3 where there is no GPU.
func (c *gpuCheckAll) Run(a *app) (err error) {
	sizes := c.sizes()
	parts := gpucheck.Parts(sizes)
	if len(c.Parts) == 1 && c.Parts[0] == "list" {
		for _, p := range parts {
			a.printf("%-14s %s\n", p.Name, p.Claim)
		}
		return nil
	}
	if len(c.Parts) > 0 {
		if parts, err = gpucheck.Choose(parts, c.Parts); err != nil {
			return asUser(fmt.Errorf("--parts: %w", err))
		}
	}
	if c.Within <= 0 {
		return asUser(fmt.Errorf("--within: %v is no time", c.Within))
	}
	found, err := c.gpus()
	if err != nil {
		return err
	}
	if s := found.report.State; s == cuda.NoLibrary || s == cuda.NoDevice {
		return noGPU{found.report.Problem}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Out, 0o777); err != nil {
		return asUser(fmt.Errorf("--out: %w; choose another folder", err))
	}
	log, err := os.Create(filepath.Join(c.Out, "gpu-check.log"))
	if err != nil {
		return asUser(fmt.Errorf("--out: %w; choose another folder", err))
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	r := &gpucheck.Runner{
		Command: append([]string{self, "gpu-check", "part"}, c.flags()...), Report: found.report, Simulated: c.Device == simDevice,
		Within: c.Within, Log: log, Say: a.say,
	}
	if c.Verbose {
		r.Log = io.MultiWriter(log, a.err)
	}
	result, err := r.Run(a.ctx, sizes, parts)
	if err != nil {
		return err
	}
	if err := result.Write(c.Out); err != nil {
		return asUser(err)
	}
	a.say("the page is %s, with all figures in gpu-check.json beside it", filepath.Join(c.Out, "gpu-check.md"))
	return result.Err()
}

// simulatedGPUs is how many the simulator has for a check.
const simulatedGPUs = 2

// gpus are those to check.
func (t gpuTools) gpus() (*gpus, error) { return gpusOf(t.Device, simulatedGPUs, 0) }

// sizes are how much work is done.
func (t gpuTools) sizes() gpucheck.Sizes {
	if t.Device == simDevice {
		return gpucheck.Short()
	}
	return gpucheck.Full()
}

// flags are these, for the programs that a check starts.
func (t gpuTools) flags() []string {
	list := []string{"--device", t.Device}
	if t.Tools != "" {
		list = append(list, "--tools", t.Tools)
	}
	return list
}

// stateOf asks NVML about a GPU.
func stateOf(uuid string) (nvml.Device, bool) {
	library, err := nvml.Open(nvml.Sources{})
	if err != nil {
		return nvml.Device{}, false
	}
	d, found := library.Report().Find(uuid)
	return d, found && library.Close() == nil
}

// machine is this one, as a part checks it.
func (t gpuTools) machine(a *app) (*gpucheck.Machine, error) {
	found, err := t.gpus()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	m := &gpucheck.Machine{
		Report: found.report,
		Open: func(o cuda.Options) (device.Device, error) {
			if found.open == nil {
				return nil, errors.New(found.report.Problem)
			}
			return found.open(o)
		},
		CPU:  func() (device.Device, error) { return cpu.New(cpu.Options{}) },
		NCCL: found.nccl, State: stateOf,
		Gofsdp: self, Side: append([]string{"gpu-check", "side"}, t.flags()...), Tools: t.Tools, Log: a.err,
	}
	if m.Tools == "" {
		m.Tools = filepath.Dir(self)
	}
	if m.Tools, err = filepath.Abs(m.Tools); err != nil {
		return nil, err
	}
	for _, name := range []string{os.Getenv("GOFSDP_PYTHON"), filepath.Join(m.Tools, ".venv", "peers", "bin", "python"), "python3", "/opt/venv/bin/python3"} {
		if path, err := exec.LookPath(name); err == nil && !slices.Contains(m.Pythons, path) {
			m.Pythons = append(m.Pythons, path)
		}
	}
	return m, nil
}

type gpuCheckPart struct {
	Name string `arg:"" help:"Name of the part."`
	File string `arg:"" help:"File for what came of it."`
	gpuTools
}

// Run runs a part in this process.
func (c *gpuCheckPart) Run(a *app) error {
	sizes := c.sizes()
	for _, p := range gpucheck.Parts(sizes) {
		if p.Name != c.Name {
			continue
		}
		m, err := c.machine(a)
		if err != nil {
			return err
		}
		o := p.Run(a.ctx, m, sizes)
		return o.WriteFile(c.File)
	}
	return asUser(fmt.Errorf("there is no part %q", c.Name))
}

type gpuCheckSide struct {
	Task string `required:"" placeholder:"FILE" help:"What to do: a task as JSON."`
	gpuTools
}

// Run does the work of a task and writes the sample.
func (c *gpuCheckSide) Run(a *app) error {
	m, err := c.machine(a)
	if err != nil {
		return err
	}
	return gpucheck.Side(a.ctx, m, c.sizes(), c.Task)
}
