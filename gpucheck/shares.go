package gpucheck

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

// shares times every operation of a training step at the models' shapes.
func shares(ctx context.Context, c *check) (err error) {
	g, err := c.onGPU(cuda.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	l, err := g.limits(c.Sizes)
	if err != nil {
		return err
	}
	l.add(c)
	for _, m := range c.Models {
		if err := m.shares(ctx, c, g, l); err != nil {
			return err
		}
	}
	return nil
}

// shares lets an engine run a step, and then each of its operations on the memory that the engine has given it.
func (s Shape) shares(ctx context.Context, c *check, g *gpu, l limits) (err error) {
	plan, err := s.small(c)
	if err != nil {
		return err
	}
	seen := &watcher{Device: g.Device, byKey: map[string]*seenOp{}}
	t, err := newTrainee(plan, seen, fsdp.Comms{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.engine.Close()) }()
	seen.list, seen.byKey = nil, map[string]*seenOp{} // what setting up has launched
	if _, err := t.step(); err != nil {
		return err
	}
	var all float64
	for _, o := range seen.list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if o.seconds, err = g.Seconds(o.op, c.Reading/8); err != nil {
			return err
		}
		all += o.seconds * float64(o.count)
	}
	slices.SortStableFunc(seen.list, func(a, b *seenOp) int {
		return cmp.Compare(b.seconds*float64(b.count), a.seconds*float64(a.count))
	})
	table := c.table("Operations of a step of "+s.Model, Column{"operation", Text}, Column{"in a step", Count}, Column{"time", Second}, Column{"part of the step's operations", Share},
		Column{"speed", FLOPS}, Column{"bytes", Rate}, Column{"limit", Text}, Column{"share of the limit", Share})
	table.Note = "Of a model of few layers with all other sizes as they are, most time first; each alone, again and again on the same memory: one that fits the GPU's second-level cache may be faster than memory is. Bytes and FLOPs are those that cannot be avoided."
	for _, o := range seen.list {
		cost := o.op.Cost()
		least, by := l.least(device.Operands(o.op)[0].T.Type, cost)
		table.add(o.name, float64(o.count), o.seconds, o.seconds*float64(o.count)/all, float64(cost.FLOPs)/o.seconds, float64(cost.Bytes)/o.seconds, by, least/o.seconds)
	}
	if len(seen.list) == 0 {
		c.fail("a step of %s has launched no operation that was seen", s.Model)
	}
	return nil
}

// seenOp is an operation, by name and shape, with the first of them as it was launched.
type seenOp struct {
	name    string
	op      device.Op
	count   int
	seconds float64
}

// watcher is a device that remembers what is launched on it.
type watcher struct {
	device.Device
	list  []*seenOp
	byKey map[string]*seenOp
}

// NewStream implements device.Device. What its streams are given as lists they launch one by one.
func (w *watcher) NewStream(name string) device.Stream {
	return watchedStream{w.Device.NewStream(name), w}
}

type watchedStream struct {
	device.Stream
	w *watcher
}

// Launch implements device.Stream.
func (s watchedStream) Launch(op device.Op) {
	s.Stream.Launch(op)
	name := describe(op)
	o := s.w.byKey[name]
	if o == nil {
		o = &seenOp{name: name, op: op}
		s.w.byKey[name] = o
		s.w.list = append(s.w.list, o)
	}
	o.count++
}

// describe names an operation by its numbers and the types of its operands: those that differ in where their
// operands lie alone are the same.
func describe(op device.Op) string {
	text, _, _ := strings.Cut(device.Format(op), ": ")
	fields := strings.Fields(text)
	fields = slices.DeleteFunc(fields, func(f string) bool {
		key, _, _ := strings.Cut(f, "=")
		return slices.Contains([]string{"Seed", "Index", "Eps", "Scale", "Beta1", "Beta2", "WeightDecay", "Value"}, key)
	})
	var types []string
	for _, o := range device.Operands(op) {
		if typ := o.T.Type.String(); !slices.Contains(types, typ) && (o.T.Type.Float() || len(types) == 0) {
			types = append(types, typ)
		}
	}
	return strings.Join(append(fields, strings.Join(types, "/")), " ")
}
