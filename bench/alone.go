package bench

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

// atLeast is how long an operation is run in a row, so that neither the clock
// nor the launch counts.
const atLeast = 5 * time.Millisecond

// measureAlone runs each operation by itself, rounds times. A round takes all of
// them, one after the other, with a reading of the peaks between any two; so
// what disturbs the machine for a while disturbs one round of each.
func measureAlone(ctx context.Context, dev device.Device, stream device.Stream, plan *fsdp.Plan, ops []*operation, g gauge, rounds int) error {
	ordinary := fillHost
	if gpu, ok := dev.(*GPU); ok {
		ordinary = gpu.Random
	}
	for range rounds {
		before := g.all()
		for _, o := range ops {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := fill(plan, o.op, ordinary); err != nil {
				return err
			}
			t, err := timeOf(stream, o.op)
			if err != nil {
				return err
			}
			after := g.peaks(before)
			limit, _ := between(before, after).limit(o.typ, o.op.Cost())
			o.alone, o.aloneShare = append(o.alone, t), append(o.aloneShare, limit/t)
			before = after
		}
	}
	return nil
}

// tries is how often an operation is timed in a round. The fastest counts, as
// it does for the peaks: the others were interrupted.
const tries = 3

// timeOf returns the seconds that op takes on memory that it has just used.
func timeOf(stream device.Stream, op device.Op) (float64, error) {
	run := func(n int) (float64, error) {
		seconds, err := timeIn(stream, func() {
			for range n {
				stream.Launch(op)
			}
		})
		return seconds / float64(n), err
	}
	best, err := run(1)                           // finds the memory cold; so it counts least
	n := min(1+int(atLeast.Seconds()/best), 1000) // which is fewer than fill a device's queue
	for range tries {
		if err != nil {
			break
		}
		var t float64
		t, err = run(n)
		best = min(best, t)
	}
	return best, err
}

// fill gives ordinary values to what op reads and does not last: other operations
// have used its memory since, and where it was for another type its bits may be
// numbers that take longer to compute with.
func fill(plan *fsdp.Plan, op device.Op, ordinary func(device.Tensor) error) error {
	for _, o := range device.Operands(op) {
		if o.Access&device.Read == 0 || o.T.Buf == 0 || plan.Buffers[o.T.Buf-1].Lasts {
			continue
		}
		if typ := o.T.Type; typ == device.F32 || typ == device.BF16 {
			if err := ordinary(*o.T); err != nil {
				return err
			}
		}
	}
	return nil
}

// fillHost fills a tensor of f32 or bf16 that the host sees.
func fillHost(t device.Tensor) error {
	if t.Type == device.BF16 {
		repeat(t.BF16(), normalsBF16)
	} else {
		repeat(t.F32(), normals)
	}
	return nil
}

// repeat fills dst with copies of pattern.
func repeat[E any](dst, pattern []E) {
	for len(dst) > 0 {
		dst = dst[copy(dst, pattern):]
	}
}

// normals are what they are filled with: normally distributed.
var normals, normalsBF16 = func() (f []float32, b []uint16) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1 << 12 {
		f = append(f, float32(rng.NormFloat64()))
		b = append(b, device.ToBF16(f[len(f)-1]))
	}
	return f, b
}()
