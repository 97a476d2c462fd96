package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/train"
)

type planCommand struct {
	configured
	Memory string `placeholder:"SIZE" help:"Say whether it fits this much memory, such as 24GiB, instead of this machine's."`
}

// Run prints what a run would take. It reads neither text nor weights.
func (c *planCommand) Run(a *app) error {
	cfg, _, err := c.load(a)
	if err != nil {
		return err
	}
	src, err := model.Resolve(cfg.Model)
	if err != nil {
		return asUser(err)
	}
	plan, err := cfg.Train.NewPlan(src.Config, cfg.Data.SequenceLength)
	if err != nil {
		return asUser(err)
	}
	limit, of, err := c.limit(cfg.Scaling)
	if err != nil {
		return err
	}
	a.printf("%s (%s): %d parameters in %d units, %d blocks\n", src.Name, src.Config.Family, src.Config.NumParams(), len(plan.Units), src.Config.Layers)
	accumulate := cfg.Train.Batch / plan.Seqs
	a.printf("a step: %s of %d tokens as %s of %d, %.4g GFLOP a token\n\n", train.Number(cfg.Train.Batch, "sequence"), plan.SeqLen, train.Number(accumulate, "micro-batch"), plan.Seqs,
		src.Config.FLOPsPerToken(plan.SeqLen)/1e9)
	a.printf("%15s  %9s  memory for\n", "bytes", "")
	for _, r := range plan.Memory() {
		a.printf("%15d  %9s  %s\n", r.Bytes, train.Bytes(r.Bytes), r.Kind)
	}
	a.printf("%15d  %9s  in all\n\n", plan.Arena, train.Bytes(plan.Arena))
	a.printf("%15s  %9s  program\n", "operations", "GFLOP")
	for _, p := range plan.Programs() {
		a.printf("%15d  %9.4g  %s\n", len(p.Steps), float64(p.Cost().FLOPs)/1e9, p.Name)
	}
	switch {
	case limit == 0:
		a.printf("\nthe memory of %s is not known\n", of)
	case plan.Arena > limit:
		a.printf("\n")
		return asUser(fmt.Errorf("%s does not fit %s (%s)", train.Bytes(plan.Arena), of, train.Bytes(limit)))
	default:
		a.printf("\nit fits %s (%s)\n", of, train.Bytes(limit))
	}
	return nil
}

// limit returns the memory to compare with, and what has it.
func (c *planCommand) limit(scaling config.Scaling) (int64, string, error) {
	if c.Memory == "" {
		dev, err := openDevice(scaling)
		if err != nil {
			return 0, "", err
		}
		info := dev.Info()
		return info.Memory, info.Name, dev.Close()
	}
	n, err := parseSize(c.Memory)
	return n, "the given memory", asUser(err)
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
