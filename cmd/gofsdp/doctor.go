package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/doctor"
	"github.com/gofsdp/gofsdp/model"
)

type doctorCommand struct {
	File string `arg:"" optional:"" name:"config" help:"Configuration whose needs are looked for: the exit code is 1 where one of them is not met. Without a configuration it is 0 where anything can compute."`
	changed
	spread
	GPUs int    `name:"gpus" default:"0" placeholder:"N" help:"Need this many GPUs, and with a configuration one for each rank at least, with all that trains on them."`
	Root string `placeholder:"DIR" help:"Look below this folder for what belongs to the system: for an image that lies unpacked there."`
	JSON bool   `name:"json" help:"Print all that was found as JSON."`
}

// Run looks, and says what it has found. A machine that lacks what is needed is
// a failure, but the report is there.
func (c *doctorCommand) Run(a *app) error {
	cfg, err := c.configuration(a)
	if err != nil {
		return err
	}
	root := c.Root
	if root != "" {
		if root, err = filepath.Abs(root); err != nil {
			return err
		}
		if info, err := os.Stat(root); err != nil {
			return asUser(fmt.Errorf("--root: %w", err))
		} else if !info.IsDir() {
			return asUser(fmt.Errorf("--root: %s is no directory", c.Root))
		}
	}
	m := doctor.Sources{Root: root}.Find()
	judgeNCCL(&m.GPU, cuda.Sources{Root: root})
	m.Processor, err = processor()
	if err != nil {
		return err
	}
	needs, err := c.needs(cfg, m)
	if err != nil {
		return asUser(err)
	}
	r := m.Check(needs)
	if c.JSON {
		e := json.NewEncoder(a.out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	} else {
		err = r.Text(a.out)
	}
	if err != nil {
		return err
	}
	return r.Problem()
}

// processor describes what the CPU's kernels find.
func processor() (doctor.Processor, error) {
	here, err := thisMachine()
	p := doctor.Processor{ISA: here.ISA}
	if here.ISA == slowISA {
		p.Remedy = "this program was built without C and computes by its Go reference, hundreds of times slower: build it with CGO_ENABLED=1 and a C compiler"
	}
	return p, err
}

// configuration returns what is named, nil where nothing is.
func (c *doctorCommand) configuration(a *app) (*config.Config, error) {
	switch {
	case c.GPUs < 0:
		return nil, asUser(fmt.Errorf("--gpus: %d is no number of GPUs", c.GPUs))
	case c.File != "":
		cfg, _, err := configured{c.File, c.changed}.load(a, c.assignments()...)
		return cfg, err
	case len(c.Set)+len(c.assignments()) > 0 || c.Cluster != "":
		return nil, asUser(fmt.Errorf("there is no configuration to change; name one, such as %s", quickstartName))
	}
	return nil, nil
}

// needs returns what is asked of a machine.
func (c *doctorCommand) needs(cfg *config.Config, m doctor.Machine) (n doctor.Needs, err error) {
	if cfg == nil {
		if c.GPUs > 0 {
			n.GPUs, n.By = c.GPUs, fmt.Sprintf("--gpus %d", c.GPUs)
		}
		return n, nil
	}
	s := cfg.Scaling
	// As in commonDevice: auto takes GPUs where a rank has one, and asks for all then.
	some := m.UsableGPUs() > 0 && (s.Workers == 1 || m.GPU.NCCL.Problem == "")
	onGPUs := c.GPUs > 0 || s.Device == cudaDevice || s.Device == autoDevice && some
	if n, err = needsOf(cfg, onGPUs, m.GPU); err != nil {
		return n, err
	}
	if n.By = c.File; onGPUs {
		n.GPUs = max(c.GPUs, n.Ranks)
		n.EFA = s.NCCL.On(s.Nodes).Require == "efa"
	}
	return n, nil
}

// needsOf returns what a configuration asks of this machine for the ranks that
// are started here, on its CPU or a GPU each of those that were found.
func needsOf(cfg *config.Config, onGPUs bool, found cuda.Report) (n doctor.Needs, err error) {
	src, err := model.Resolve(cfg.Model)
	if err != nil {
		return n, err
	}
	s := cfg.Scaling
	plan, err := cfg.Train.NewPlanOver(s.Workers, 0, s.Layout(), src.Config, cfg.Data.SequenceLength)
	if err != nil {
		return n, err
	}
	n.Ranks = s.Workers
	if onGPUs || canLaunch(s) != nil { // as plan: nodes have machines of their own
		n.Ranks = s.Workers / s.Nodes
	}
	if onGPUs {
		apart := choice{kind: cudaDevice, gpus: &gpus{kind: cudaDevice, report: found}}.apart(s, plan.Mesh)
		own, host := apart.Needs(plan)
		n.GPUMemory, n.Memory = own, int64(n.Ranks)*host
		return n, apart.Supports(plan)
	}
	n.Memory = int64(n.Ranks) * (plan.Bytes() + processMemory(s))
	if s.Device == simDevice { // whose memory is the host's
		simulated, err := gpusOf(s.Device, n.Ranks, -1)
		if err != nil {
			return n, err
		}
		if why := simulated.lacks(n.Ranks-1, n.Ranks, s.Workers > 1); why != "" {
			return n, fmt.Errorf("scaling.device: sim: %s", why)
		}
		n.Simulated = len(simulated.report.Devices)
		return n, choice{kind: simDevice, gpus: simulated}.apart(s, plan.Mesh).Supports(plan)
	}
	if s.ISA != autoISA {
		if err := checkISA(s.ISA, cpu.Detect()); err != nil {
			n.Processor = err.Error()
		}
	}
	return n, nil
}
