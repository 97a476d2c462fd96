package train

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

// Apart is what is to be known of a device whose memory is apart from the
// host's, as a GPU's is, before a plan is run on it: a rank has one of its own, and
// the host's memory is shared by all ranks of the machine.
type Apart struct {
	Besides int64 // bytes of the device's memory that a rank takes besides its plan
	Process int64 // bytes of the host's that its process takes besides its plan
	Host    int64 // bytes that the host has; 0: not known
	Ranks   int   // of the machine
	// Lacks says why the device cannot do an operation of a plan, nil where it can.
	Lacks func(device.Op) error
}

// Needs returns the bytes that a rank takes of its device's memory and of the
// host's.
func (a *Apart) Needs(p *fsdp.Plan) (own, host int64) {
	own, host = p.Apart()
	return own + a.Besides, host + a.Process
}

// Supports returns an error where a device cannot do an operation of a plan: what
// Lacks says of it, without its place in the plan, which no user can change.
func (a *Apart) Supports(p *fsdp.Plan) error { return errors.Unwrap(p.Limits(a.Lacks)) }

// Check returns an error where a rank's device cannot run its plan, by its
// operations or by its memory, or where the host's memory does not hold what all
// ranks have there.
func (a *Apart) Check(p *fsdp.Plan, info device.Info) error {
	if err := a.Supports(p); err != nil {
		return err
	}
	need, host := a.Needs(p)
	if info.Memory > 0 && need > info.Memory {
		return fmt.Errorf("a rank needs %s of its GPU's memory, %s of them besides its plan, and %s has %s: shard over more ranks, take a smaller train.micro_batch, train.recompute block, scaling.sharding.offload, a shorter data.sequence_length or a smaller model (gofsdp plan shows what takes how much)",
			Bytes(need), Bytes(a.Besides), info.Name, Bytes(info.Memory))
	}
	ranks := max(a.Ranks, 1)
	if all := int64(ranks) * host; a.Host > 0 && all > a.Host {
		return fmt.Errorf("%s of this machine %s %s of the host's memory, which has %s: offload less (scaling.sharding.offload), or take more machines",
			Number(ranks, "rank"), map[bool]string{true: "needs", false: "need"}[ranks == 1], Bytes(all), Bytes(a.Host))
	}
	return nil
}
