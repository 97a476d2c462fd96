package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/train"
)

// memoryTolerance is how far the sum of the rows may be from what the driver counts, of that.
const memoryTolerance = 0.05

// memory measures what a process takes of a GPU besides its plan, piece by piece; and then, in a device of its
// own, whether these pieces and the plan add up to what training takes.
func memory(ctx context.Context, c *check) error {
	library, err := c.NCCL()
	if err != nil {
		return err
	}
	each, err := c.pieces(ctx, library)
	if err != nil {
		return err
	}
	shape := c.Models[0]
	_, plan, err := shape.fit(each.total)
	if err != nil {
		return err
	}
	queues := map[fsdp.Stream]bool{fsdp.Computing: true}
	for _, prog := range plan.Programs() {
		for _, s := range prog.Steps {
			queues[s.Stream] = true
		}
	}
	t := c.table("A GPU's memory", Column{"what", Text}, Column{"memory", Byte}, Column{"how", Text})
	t.Note = "Measured pieces are those of a device that was opened for it; the last row is of another one, on which the plan is trained. What other processes have is in the first row, and is taken to stay as it is."
	var sum int64
	row := func(what, how string, bytes int64) {
		t.add(what, float64(bytes), how)
		sum += bytes
	}
	row("the context, and what other processes have", "measured", each.context)
	row("kernels", "measured", each.kernels)
	row("the first stream with its cuBLAS", "measured", each.firstStream)
	if more := len(queues) - 1; more > 0 {
		row(fmt.Sprintf("streams with their cuBLAS, %d more", more), "measured", int64(more)*each.stream)
	}
	row("the first communicator", "measured", each.firstComm)
	row("the second communicator", "measured", each.comm)
	arenas, _ := plan.Apart()
	row("the plan's arenas for "+shape.Model, "planned", arenas)
	used, byNVML, err := c.inUse(ctx, library, plan)
	if err != nil {
		return err
	}
	apart := func(sum, used int64, who string) {
		off := math.Abs(float64(used-sum)) / float64(used)
		c.figure("memory off, "+who, off)
		if !(off <= memoryTolerance) {
			c.fail("the rows add up to %s, and %s counts %s in use: %.1f %% apart, where %.0f %% are allowed", train.Bytes(sum), who, train.Bytes(used), 100*off, 100*memoryTolerance)
		}
	}
	t.add("sum of these", float64(sum), "")
	t.add("in use after a step, as the driver counts", float64(used), "measured")
	apart(sum, used, "the driver")
	if byNVML > 0 {
		t.add("what the driver keeps for itself and NVML counts besides", float64(each.reserved), "measured")
		t.add("in use after a step, as NVML counts", float64(byNVML), "measured")
		apart(sum+each.reserved, byNVML, "NVML")
	}
	return nil
}

// usedByNVML is what NVML counts of the first GPU's memory; false where it does not tell.
func (c *check) usedByNVML() (int64, bool) {
	d, ok := c.state()
	if !ok {
		return 0, false
	}
	m, ok := d.Memory.Get()
	return m.Used, ok
}

// pieces are bytes that something takes.
type pieces struct{ total, context, kernels, firstStream, stream, firstComm, comm, reserved int64 }

// room tells of a device's memory.
func room(d device.Device) (cuda.Room, error) {
	r, ok := d.(roomy)
	if !ok {
		return cuda.Room{}, errors.New("the device does not tell of its memory")
	}
	return r.Room()
}

// asRanks are the options of a device that trains.
var asRanks = cuda.Options{Urgent: []string{"gather", "reduce"}}

// pieces adds one thing after the other to a device.
func (c *check) pieces(ctx context.Context, library *nccl.Library) (p pieces, err error) {
	d, err := c.open(asRanks)
	if err != nil {
		return p, err
	}
	var joined []*nccl.Groups
	defer func() {
		for _, j := range joined {
			err = errors.Join(err, j.Close())
		}
		err = errors.Join(err, d.Close())
	}()
	r, err := room(d)
	if err != nil {
		return p, err
	}
	p.total, p.context, p.kernels = r.Total, r.Context, r.Kernels
	if used, ok := c.usedByNVML(); ok {
		p.reserved = used - (r.Total - r.Unused)
	}
	last := r.Unused
	add := func(into *int64, what func() error) error {
		if err := what(); err != nil {
			return err
		}
		r, err := room(d)
		*into, last = last-r.Unused, r.Unused
		return err
	}
	stream := func() error {
		g, err := onStream(d, c.Sizes)
		if err != nil {
			return err
		}
		return g.multiply()
	}
	communicator := func() error {
		j, err := alone(ctx, library, d)
		if err == nil {
			joined = append(joined, j)
		}
		return err
	}
	return p, errors.Join(add(&p.firstStream, stream), add(&p.stream, stream), add(&p.firstComm, communicator), add(&p.comm, communicator))
}

// multiply runs a product of each type, which loads cuBLAS's kernels.
func (g *gpu) multiply() error {
	for _, typ := range []device.DType{device.F32, device.BF16} {
		o, err := g.Square(typ, 128)
		if err == nil {
			g.Stream.Launch(o)
			err = g.Stream.Sync()
		}
		if err = errors.Join(err, g.Release()); err != nil {
			return err
		}
	}
	return nil
}

// alone joins a group of one rank. Binding connects it.
func alone(ctx context.Context, library *nccl.Library, d device.Device) (*nccl.Groups, error) {
	n, err := ncclDevice(d)
	if err != nil {
		return nil, err
	}
	return library.Connect(ctx, [][]int{{0}}, 0, nccl.ConnectSettings{
		Run: "gpu-check", Deadline: collectiveDeadline, Device: n, Exchange: newMeeting(1).exchange(0),
	})
}

// inUse trains a step of the plan, with what a rank among several has, and returns what the driver counts, and
// NVML, or 0.
func (c *check) inUse(ctx context.Context, library *nccl.Library, plan *fsdp.Plan) (used, byNVML int64, err error) {
	d, err := c.open(asRanks)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	for range 2 {
		j, err := alone(ctx, library, d)
		if err != nil {
			return 0, 0, err
		}
		defer func() { err = errors.Join(err, j.Close()) }()
	}
	t, err := newTrainee(plan, d, fsdp.Comms{})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, t.engine.Close()) }()
	if _, err := t.step(); err != nil {
		return 0, 0, err
	}
	r, err := room(d)
	byNVML, _ = c.usedByNVML()
	return r.Total - r.Unused, byNVML, err
}
