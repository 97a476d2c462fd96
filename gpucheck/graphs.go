package gpucheck

import (
	"context"
	"errors"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
)

// listing is a stream that takes lists of operations, as cuda's do.
type listing interface{ LaunchAll(ops []device.Op) }

// graphs launches a list of small operations with and without graphs: what it costs then is launching.
func graphs(ctx context.Context, c *check) error {
	t := c.table("Launching a list of small operations", Column{"way", Text}, Column{"operations", Count}, Column{"an operation", Second})
	t.Note = "Seconds from the first launch to the end on the GPU, divided by operations; of the fastest of some repetitions."
	for _, on := range []bool{false, true} {
		if err := ctx.Err(); err != nil {
			return err
		}
		each, err := c.list(on)
		if err != nil {
			return err
		}
		name := "one by one"
		if on {
			name = "as a CUDA graph"
		}
		t.add(name, float64(c.GraphOps), each)
	}
	return nil
}

// list launches operations that count, and checks the count.
func (c *check) list(graphs bool) (each float64, err error) {
	const n, repetitions = 256, 6
	g, err := c.onGPU(cuda.Options{Graphs: graphs})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	l, ok := g.Stream.(listing)
	if !ok {
		return 0, errors.New("the device's streams take no lists of operations")
	}
	counter, err := g.Local(device.F32, n)
	if err != nil {
		return 0, err
	}
	one, err := g.Local(device.F32, n)
	if err != nil {
		return 0, err
	}
	back, err := g.Pinned(device.F32, n)
	if err != nil {
		return 0, err
	}
	g.Stream.Launch(&device.Fill{Dst: one, N: n, Value: 1})
	var ops []device.Op
	for range c.GraphOps {
		ops = append(ops, &device.ReduceSum{Srcs: []device.Tensor{counter, one}, Dst: counter, N: n})
	}
	for turn := range repetitions {
		if err := g.Stream.Sync(); err != nil {
			return 0, err
		}
		began := time.Now()
		l.LaunchAll(ops)
		if err := g.Stream.Sync(); err != nil {
			return 0, err
		}
		took := time.Since(began).Seconds() / float64(len(ops))
		if turn >= 2 && (each == 0 || took < each) { // by then it is a graph
			each = took
		}
		g.Stream.Launch(&device.Copy{Src: counter, Dst: back, N: n})
		if err := g.Stream.Sync(); err != nil {
			return 0, err
		}
		want := float32((turn + 1) * len(ops))
		for i, x := range back.F32() {
			if x != want {
				c.fail("graphs %v, turn %d: element %d is %v, want %v", graphs, turn+1, i, x, want)
				break
			}
		}
	}
	return each, nil
}
