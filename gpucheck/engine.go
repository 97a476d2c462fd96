package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
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
	src, err := model.Resolve(c.Engine.Model)
	if err != nil {
		return err
	}
	plan, err := fsdp.NewPlan(c.Engine.options(src.Config, c.Engine.Sequences[0]))
	if err != nil {
		return err
	}
	run := func(open func() (device.Device, error)) (list []stepped, err error) {
		d, err := open()
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, d.Close()) }()
		t, err := newTrainee(plan, d)
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
	onGPU := func(graphs bool) func() (device.Device, error) {
		return func() (device.Device, error) {
			return c.open(cuda.Options{Graphs: graphs, Urgent: asRanks.Urgent})
		}
	}
	cpu, err := run(c.CPU)
	if err != nil {
		return fmt.Errorf("on the CPU: %w", err)
	}
	gpu, err := run(onGPU(false))
	if err != nil {
		return err
	}
	again, err := run(onGPU(true))
	if err != nil {
		return fmt.Errorf("with graphs: %w", err)
	}
	t := c.table(fmt.Sprintf("Training %s in bf16", c.Engine.Model), Column{"step", Count}, Column{"loss, CPU", Text}, Column{"loss, GPU", Text}, Column{"differs by", Error}, Column{"norm, CPU", Text}, Column{"norm, GPU", Text}, Column{"differs by", Error}, Column{"with graphs", Text})
	t.Note = fmt.Sprintf("Losses may differ by %g and gradient norms by %g, relatively; with graphs all bits must be those without.", lossTolerance, normTolerance)
	for i, want := range cpu {
		loss, norm := relative(gpu[i].loss, want.loss), relative(gpu[i].norm, want.norm)
		same := "same bits"
		if again[i] != gpu[i] {
			same = "other bits"
			c.fail("step %d: with graphs the loss is %v and the norm %v, without %v and %v", i+1, again[i].loss, again[i].norm, gpu[i].loss, gpu[i].norm)
		}
		t.add(float64(i+1), number(want.loss), number(gpu[i].loss), loss, number(want.norm), number(gpu[i].norm), norm, same)
		if !(loss <= lossTolerance) {
			c.fail("step %d: the loss is %v on the GPU and %v on the CPU", i+1, gpu[i].loss, want.loss)
		}
		if !(norm <= normTolerance) {
			c.fail("step %d: the gradient's norm is %v on the GPU and %v on the CPU", i+1, gpu[i].norm, want.norm)
		}
	}
	return nil
}

// relative is the relative difference of two numbers.
func relative(got, want float64) float64 { return math.Abs(got-want) / math.Abs(want) }

func number(x float64) string { return fmt.Sprintf("%.5g", x) }
