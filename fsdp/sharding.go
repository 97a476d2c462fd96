package fsdp

import (
	"fmt"
	"strconv"
	"strings"
)

// Sharding is the part of the configuration that says how the work is spread
// over ranks. It changes where numbers are kept, and not which come out.
type Sharding struct {
	Mesh                string `yaml:"mesh" default:"" help:"Ranks across nodes and within one, such as 2x4; empty makes a row of each node."`
	Strategy            string `yaml:"strategy" default:"full_shard" enum:"no_shard,shard_optimizer,shard_grad_op,full_shard,hybrid_shard,hybrid_full_shard" help:"What is sharded: nothing (DDP); optimizer state (ZeRO-1); gradients too (ZeRO-2); weights too (FSDP, ZeRO-3); the same within nodes only (HSDP); or weights within nodes and optimizer state over all (HFSDP)."`
	ReshardAfterForward bool   `yaml:"reshard_after_forward" default:"true" help:"Release gathered weights after the forward and gather them again for the backward."`
	Prefetch            int    `yaml:"prefetch" default:"1" min:"0" help:"Units whose weights are gathered ahead of their use."`
	Offload             string `yaml:"offload" default:"none" enum:"none,optimizer,parameters,all" help:"Keep in the host's memory: master weights and moments (optimizer), the weights that compute (parameters), or both (all). It is for devices with memory of their own; on a CPU it only costs copies."`
	ReduceEachMicro     bool   `yaml:"reduce_each_micro_batch" default:"true" help:"Reduce gradients after each micro-batch; false adds up whole gradients and reduces them once a step, with fewer collectives and more memory."`
}

// ParseMesh reads a mesh as String writes it.
func ParseMesh(text string) (Mesh, error) {
	across, within, ok := strings.Cut(text, "x")
	a, err1 := strconv.Atoi(across)
	w, err2 := strconv.Atoi(within)
	if !ok || err1 != nil || err2 != nil || a < 1 || w < 1 {
		return Mesh{}, fmt.Errorf("mesh: %q is no mesh; write it as 2x4", text)
	}
	return Mesh{a, w}, nil
}

// Over fills in what o says about ranks: s over so many of them.
func (s Sharding) Over(ranks int, o *Options) error {
	o.Mesh = Mesh{Within: ranks}
	if s.Mesh != "" {
		m, err := ParseMesh(s.Mesh)
		if err != nil {
			return err
		}
		if m.Size() != ranks {
			return fmt.Errorf("mesh: %s has %d ranks, the run has %d", s.Mesh, m.Size(), ranks)
		}
		o.Mesh = m
	}
	o.Strategy, o.KeepWeights, o.Prefetch, o.LateReduce = Strategy(s.Strategy), !s.ReshardAfterForward, s.Prefetch, !s.ReduceEachMicro
	o.Offload = Offload(s.Offload)
	return nil
}
