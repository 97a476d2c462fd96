package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/train"
)

// How far steps on a GPU may be from those on the CPU, relatively. Both compute in bf16, whose numbers are
// 2⁻⁸ apart, and round each activation once, from sums in other orders: so single activations differ by a unit in
// the last place here and there, and the loss, a mean over thousands, by far less. A forgotten term, a wrong mask
// or a gradient that is not added is off by percents.
const (
	lossTolerance = 2e-3
	normTolerance = 2e-2
)

// engine trains a small model on CPU and GPU.
func engine(ctx context.Context, c *check) error {
	cpu, err := c.onOne(ctx, 1, c.CPU)
	if err != nil {
		return fmt.Errorf("on the CPU: %w", err)
	}
	onGPU := func(graphs bool) func() (device.Device, error) {
		return func() (device.Device, error) {
			return c.open(cuda.Options{Graphs: graphs, Urgent: asRanks.Urgent})
		}
	}
	gpu, err := c.onOne(ctx, 1, onGPU(false))
	if err != nil {
		return err
	}
	again, err := c.onOne(ctx, 1, onGPU(true))
	if err != nil {
		return fmt.Errorf("with graphs: %w", err)
	}
	c.parity("the GPU", cpu, gpu)
	for i := range gpu {
		if again[i] != gpu[i] {
			c.fail("step %d: with graphs the loss is %v and the norm %v, without %v and %v", i+1, again[i].loss, again[i].norm, gpu[i].loss, gpu[i].norm)
		}
	}
	return nil
}

// engineOfAll trains it on all GPUs, sharded, and with the same sequences on the CPU.
func engineOfAll(ctx context.Context, c *check) error {
	n, err := c.several()
	if err != nil {
		return err
	}
	library, err := c.NCCL()
	if err != nil {
		return err
	}
	src, err := model.Resolve(c.Engine.Model)
	if err != nil {
		return err
	}
	cpu, err := c.onOne(ctx, n, c.CPU)
	if err != nil {
		return fmt.Errorf("on the CPU: %w", err)
	}
	mesh := fsdp.Mesh{Across: 1, Within: n}
	byRank := make([][]stepped, n)
	err = c.ranks(ctx, library, n, mesh.Groups(), func(ctx context.Context, rank int, g *gpu, ends []collective.Comm) error {
		o := c.Engine.options(src.Config, c.Engine.Sequences[0])
		o.Mesh, o.Rank, o.Strategy, o.Prefetch = mesh, rank, fsdp.FullShard, 1
		plan, err := fsdp.NewPlan(o)
		if err != nil {
			return err
		}
		byRank[rank], err = c.steps(ctx, plan, g.Device, mesh.Comms(ends))
		return err
	})
	if err != nil {
		return err
	}
	c.parity(train.Number(n, "GPU")+", full_shard", cpu, byRank[0])
	for rank, list := range byRank {
		for i := range list {
			if list[i] != byRank[0][i] {
				c.fail("step %d: rank %d knows another loss or norm (%v) than rank 0 (%v)", i+1, rank, list[i], byRank[0][i])
			}
		}
	}
	return nil
}

// onOne trains on one device what so many ranks would have in a step.
func (c *check) onOne(ctx context.Context, ranks int, open func() (device.Device, error)) (list []stepped, err error) {
	src, err := model.Resolve(c.Engine.Model)
	if err != nil {
		return nil, err
	}
	plan, err := fsdp.NewPlan(c.Engine.options(src.Config, ranks*c.Engine.Sequences[0]))
	if err != nil {
		return nil, err
	}
	d, err := open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return c.steps(ctx, plan, d, fsdp.Comms{})
}

// steps trains a plan.
func (c *check) steps(ctx context.Context, plan *fsdp.Plan, d device.Device, comms fsdp.Comms) (list []stepped, err error) {
	t, err := newTrainee(plan, d, comms)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.engine.Close()) }()
	for range c.EngineSteps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, err := t.step()
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// parity holds steps on GPUs against those on the CPU.
func (c *check) parity(on string, cpu, gpu []stepped) {
	t := c.table(fmt.Sprintf("Training %s in bf16 on %s", c.Engine.Model, on), Column{"step", Count}, Column{"loss, CPU", Text}, Column{"loss, GPU", Text}, Column{"differs by", Error}, Column{"norm, CPU", Text}, Column{"norm, GPU", Text}, Column{"differs by", Error})
	t.Note = fmt.Sprintf("Losses may differ by %g and gradient norms by %g, relatively.", lossTolerance, normTolerance)
	for i, want := range cpu {
		loss, norm := relative(gpu[i].loss, want.loss), relative(gpu[i].norm, want.norm)
		t.add(float64(i+1), number(want.loss), number(gpu[i].loss), loss, number(want.norm), number(gpu[i].norm), norm)
		if !(loss <= lossTolerance) {
			c.fail("step %d: the loss is %v on %s and %v on the CPU", i+1, gpu[i].loss, on, want.loss)
		}
		if !(norm <= normTolerance) {
			c.fail("step %d: the gradient's norm is %v on %s and %v on the CPU", i+1, gpu[i].norm, on, want.norm)
		}
	}
}

// relative is the relative difference of two numbers.
func relative(got, want float64) float64 { return math.Abs(got-want) / math.Abs(want) }

func number(x float64) string { return fmt.Sprintf("%.5g", x) }
