package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/train"
)

type planCommand struct {
	configured
	spread
	Memory string `placeholder:"SIZE" help:"Say whether the ranks of a node fit this much memory, such as 24GiB, instead of this machine's; on GPUs, whether each rank fits a GPU of it."`
	Ops    bool   `help:"Print every operation of every program, too."`
}

// Run prints what a run would take. It reads neither text nor weights.
func (c *planCommand) Run(a *app) error {
	cfg, _, err := c.load(a, c.assignments()...)
	if err != nil {
		return err
	}
	src, err := model.Resolve(cfg.Model)
	if err != nil {
		return asUser(err)
	}
	ranks := cfg.Scaling.Workers
	plan, err := cfg.Train.NewPlanOver(ranks, 0, cfg.Scaling.Layout(), src.Config, cfg.Data.SequenceLength)
	if err != nil {
		return asUser(err)
	}
	on, err := foreseen(cfg.Scaling)
	if err != nil {
		return err
	}
	limit, what, err := c.limit(on, cfg.Scaling)
	if err != nil {
		return err
	}
	a.printf("%s (%s): %d parameters in %d units, %d blocks\n", src.Name, src.Config.Family, src.Config.NumParams(), len(plan.Units), src.Config.Layers)
	accumulate := cfg.Train.Batch / plan.Seqs / ranks
	a.printf("a step: %s of %d tokens as %s of %d, %.4g GFLOP a token\n", train.Number(cfg.Train.Batch, "sequence"), plan.SeqLen, train.Number(accumulate, "micro-batch"), plan.Seqs,
		src.Config.FLOPsPerToken(plan.SeqLen)/1e9)
	of := ""
	if ranks > 1 {
		on := ""
		if n := cfg.Scaling.Nodes; n > 1 {
			on = fmt.Sprintf(" on %d nodes", n)
		}
		a.printf("%d ranks as %v%s, %s: what follows is of each rank\n", ranks, plan.Mesh, on, plan.Strategy)
		of = " of each rank"
	}
	a.printf("\n%15s  %9s  memory%s for\n", "bytes", "", of)
	for _, r := range plan.Memory() {
		where := ""
		if r.Host {
			where = ", in the host's memory"
		}
		a.printf("%15d  %9s  %s%s\n", r.Bytes, train.Bytes(r.Bytes), r.Kind, where)
	}
	a.printf("%15d  %9s  in all\n", plan.Bytes(), train.Bytes(plan.Bytes()))
	c.besides(a, plan, on, cfg.Scaling)
	a.printf("\n%15s  %9s  program\n", "operations", "GFLOP")
	for _, p := range plan.Programs() {
		if len(plan.Whole) > 0 && p == &plan.Whole[0] {
			break // a few copies a unit, at the run's end
		}
		a.printf("%15d  %9.4g  %s\n", len(p.Steps), float64(p.Cost().FLOPs)/1e9, p.Name)
	}
	c.traffic(a, plan, accumulate, ranks/cfg.Scaling.Nodes)
	if c.Ops {
		for _, p := range plan.Programs() {
			a.printf("\n%s\n", p.Name)
			if err := plan.Transcript(a.out, p); err != nil {
				return err
			}
		}
	}
	if on.gpus == nil {
		return c.fit(a, plan, cfg.Scaling, limit, what)
	}
	if err := on.apart(cfg.Scaling, plan.Mesh).Supports(plan); err != nil {
		return asUser(err)
	}
	return c.fitGPUs(a, plan, on, cfg.Scaling, limit, what)
}

// foreseen is what a run would compute on, as far as that is known here: GPUs need
// not be here to be planned for.
func foreseen(s config.Scaling) (on choice, err error) {
	on.kind = s.Device
	if on.gpus, err = gpusOf(s.Device, s.Workers/s.Nodes, -1); err != nil {
		return on, err
	}
	if s.Device == autoDevice {
		if on.kind = cudaDevice; on.gpus.lacks(0, 1, false) != "" {
			on.kind, on.gpus = cpuDevice, nil
		}
	}
	return on, nil
}

// traffic prints the collectives of a step, where nodes have so many ranks.
func (c *planCommand) traffic(a *app, plan *fsdp.Plan, microBatches, node int) {
	if plan.Mesh.Size() == 1 {
		return
	}
	a.printf("\n%15s  %9s  a step reads from other ranks by\n", "collectives", "")
	for _, t := range plan.Traffic(microBatches) {
		beyond := ""
		if node < plan.Mesh.Size() && (t.Axis == fsdp.Across || node < plan.Mesh.Along(fsdp.Within)) {
			beyond = ", between nodes"
		}
		a.printf("%15d  %9s  %s %v%s\n", t.Count, train.Bytes(t.Bytes), t.Kind, t.Axis, beyond)
	}
}

// limit returns the memory to compare with, and what has it.
func (c *planCommand) limit(on choice, scaling config.Scaling) (int64, string, error) {
	if c.Memory != "" {
		n, err := parseSize(c.Memory)
		return n, "the given memory", asUser(err)
	}
	if on.gpus != nil && len(on.gpus.report.Devices) == 0 {
		return 0, "a GPU, of which there is none here (--memory says it),", nil
	}
	info, err := on.info(scaling)
	return info.Memory, info.Name, err
}

// parseSize reads a size such as 24GiB, 16GB, 512MiB or 1000.
func parseSize(s string) (int64, error) {
	units := map[string]float64{"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
	at := len(s) - len(strings.TrimLeft(s, "0123456789."))
	unit, ok := units[strings.ToLower(strings.TrimSpace(s[at:]))]
	n, err := strconv.ParseFloat(s[:at], 64)
	if err != nil || !ok || n <= 0 {
		return 0, fmt.Errorf("--memory: %q is no size; write it as 24GiB or 16GB", s)
	}
	return int64(n * unit), nil
}
