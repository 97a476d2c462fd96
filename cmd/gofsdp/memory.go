package main

import (
	"fmt"
	"runtime"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/train"
)

// What a rank's process takes besides its plan, as the system counts it. Measured
// with one thread 18 to 30 MiB, of which Go's heap has 8 to 20, a thread's
// scratch 4 to 6, and the rest C's heap and stacks; a tokenizer of 150,000
// entries takes 25 more. Products of bf16 with a long inner dimension fill 13 MiB of
// a thread's scratch.
const (
	processBase   = 44 << 20
	processThread = 14 << 20
)

// processMemory is the most that a rank's process has been seen to take besides
// its plan.
func processMemory(s config.Scaling) int64 {
	threads := threadsOf(s)
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	return processBase + int64(threads)*processThread
}

// besides prints what a rank takes that is not in its plan: what the system counts
// for its process, and what is taken of its GPU.
func (c *planCommand) besides(a *app, plan *fsdp.Plan, on choice, s config.Scaling) {
	row := func(bytes int64, what string) { a.printf("%15d  %9s  %s\n", bytes, train.Bytes(bytes), what) }
	if on.gpus != nil {
		for _, r := range gpuTaken(on.kind, plan.Mesh, plan.Rank, on.major()) {
			if !r.certain {
				r.what += " (not measured yet)"
			}
			row(r.bytes, "besides, of the GPU's, for "+r.what)
		}
		row(on.process(s), "besides, of the host's, for the process itself (not measured yet)")
		return
	}
	row(processMemory(s), "besides, at most, for the process itself (measured)")
	if !shares(s.Transport) {
		return
	}
	if peers := plan.PeerWindows(s.Workers / s.Nodes); peers > 0 {
		row(peers, "of other ranks, mapped to be read (counted with them)")
	}
}

// fit says whether the ranks that share a memory fit it: for this machine's all
// that train would start here, for another's those of a node.
func (c *planCommand) fit(a *app, plan *fsdp.Plan, s config.Scaling, limit int64, what string) error {
	ranks, where := s.Workers/s.Nodes, "of a node"
	if c.Memory == "" && canLaunch(s) == nil {
		ranks, where = s.Workers, "on this machine"
	}
	each := plan.Bytes() + processMemory(s)
	need := int64(ranks) * each
	takes := train.Bytes(need)
	if s.Workers > 1 {
		takes = fmt.Sprintf("%s %s take %s, %s each, which", train.Number(ranks, "rank"), where, takes, train.Bytes(each))
	}
	return a.fits(takes, s.Workers > 1, need, limit, what)
}

// fitGPUs says whether a rank fits its GPU, and those of a node the host's memory.
func (c *planCommand) fitGPUs(a *app, plan *fsdp.Plan, on choice, s config.Scaling, limit int64, what string) error {
	apart := on.apart(s, plan.Mesh)
	need, host := apart.Needs(plan)
	takes := train.Bytes(need)
	if s.Workers > 1 {
		takes = "each rank takes " + takes + " of its GPU's memory, which"
	}
	if err := a.fits(takes, s.Workers > 1, need, limit, what); err != nil || c.Memory != "" {
		return err
	}
	all := int64(apart.Ranks) * host
	takes = fmt.Sprintf("%s of a node take %s of the host's memory, %s each, which", train.Number(apart.Ranks, "rank"), train.Bytes(all), train.Bytes(host))
	return a.fits(takes, true, all, apart.Host, "this machine's")
}

// fits compares what is taken with a limit, 0 where that is not known.
func (a *app) fits(takes string, several bool, need, limit int64, what string) error {
	a.printf("\n")
	switch {
	case limit == 0:
		a.printf("the memory of %s is not known\n", what)
	case need > limit:
		return asUser(fmt.Errorf("%s does not fit %s (%s)", takes, what, train.Bytes(limit)))
	case several:
		a.printf("%s fits %s (%s)\n", takes, what, train.Bytes(limit))
	default:
		a.printf("it fits %s (%s)\n", what, train.Bytes(limit))
	}
	return nil
}
