package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
)

// gpuKind is what device.Info calls a GPU.
const gpuKind = "cuda"

// onGPU reports whether a device is a GPU: it has a memory of its own, no threads
// that compute, and Limits only as a GPU of OnGPU.
func onGPU(i device.Info) bool { return i.Kind == gpuKind }

// TimedStream is a stream that tells how long the device took, as package cuda's
// do.
type TimedStream interface {
	device.Stream
	Time(f func()) (time.Duration, error)
}

// GPUSizes are what a GPU's limits are measured by, at most: less where its memory
// has no room.
type GPUSizes struct {
	Edge int   // rows, columns and depth of a product that is large
	Copy int64 // bytes of a copy that no cache holds
}

// WholeGPU are the sizes for real GPUs.
var WholeGPU = GPUSizes{Edge: 8192, Copy: 1 << 30}

// smallestPart is the part of the sizes that is still measured.
const smallestPart = 8

// GPU is a GPU that measures its own limits: by the products of its own library
// and by copies in its own memory, on a stream of its own.
type GPU struct {
	device.Device
	Stream   TimedStream
	sizes    GPUSizes
	held     []device.Buffer
	patterns map[device.DType]device.Tensor // in pinned memory
}

// OnGPU takes an open device of package cuda, which is closed with the GPU and at
// an error.
func OnGPU(d device.Device, s GPUSizes) (*GPU, error) {
	stream, ok := d.NewStream("measuring").(TimedStream)
	if !ok {
		return nil, errors.Join(fmt.Errorf("bench: device %s cannot time its streams", d.Info().Name), d.Close())
	}
	return &GPU{Device: d, Stream: stream, sizes: s, patterns: map[device.DType]device.Tensor{}}, nil
}

// Runs says what of an operation the GPU cannot do, as package fsdp asks.
func (g *GPU) Runs(op device.Op) error { return cuda.Runs(op) }

// Room tells of the GPU's memory.
func (g *GPU) Room() (cuda.Room, error) {
	r, ok := g.Device.(interface{ Room() (cuda.Room, error) })
	if !ok {
		return cuda.Room{}, fmt.Errorf("bench: device %s does not tell of its memory", g.Info().Name)
	}
	return r.Room()
}

// Local returns a tensor in the GPU's memory, which lives until Release or Close.
func (g *GPU) Local(typ device.DType, n int) (device.Tensor, error) {
	b, err := g.Alloc(max(1, int64(n)*typ.Size()), device.Local)
	if err != nil {
		return device.Tensor{}, err
	}
	g.held = append(g.held, b)
	return b.In(typ, 0, int64(n)), nil
}

// Release frees what Local has given out.
func (g *GPU) Release() (err error) {
	for _, b := range g.held {
		err = errors.Join(err, g.Free(b))
	}
	g.held = nil
	return err
}

// Pinned returns a tensor that the host sees. It lives until Close.
func (g *GPU) Pinned(typ device.DType, n int) (device.Tensor, error) {
	b, err := g.Alloc(int64(n)*typ.Size(), device.Pinned)
	if err != nil {
		return device.Tensor{}, err
	}
	return b.In(typ, 0, int64(n)), nil
}

// patternLen is after how many elements random numbers begin again: a prime, so
// that rows differ.
const patternLen = 65521

// pattern are normally distributed numbers, as bf16 holds them, so that they are
// the same in both types.
var pattern = func() []float32 {
	rng, list := rand.New(rand.NewPCG(1, 2)), make([]float32, patternLen)
	for i := range list {
		list[i] = device.FromBF16(device.ToBF16(float32(rng.NormFloat64())))
	}
	return list
}()

// At is element i of a tensor that Random has filled.
func At(i int) float64 { return float64(pattern[i%patternLen]) }

// Random fills a tensor of f32 or bf16 with normally distributed numbers, the same
// each time: see At.
func (g *GPU) Random(t device.Tensor) error {
	p, ok := g.patterns[t.Type]
	if !ok {
		var err error
		if p, err = g.Pinned(t.Type, patternLen); err != nil {
			return err
		}
		for i, x := range pattern {
			if t.Type == device.BF16 {
				p.BF16()[i] = device.ToBF16(x)
			} else {
				p.F32()[i] = x
			}
		}
		g.patterns[t.Type] = p
	}
	// The first piece comes from the host; what is there is doubled.
	n := min(int64(patternLen), t.Len)
	g.Stream.Launch(&device.Copy{Src: p.Slice(0, n), Dst: t.Slice(0, n), N: int(n)})
	for done := n; done < t.Len; {
		n := min(done/patternLen*patternLen, t.Len-done)
		g.Stream.Launch(&device.Copy{Src: t.Slice(0, n), Dst: t.Slice(done, n), N: int(n)})
		done += n
	}
	return g.Stream.Sync()
}

// mostLaunches is how often an operation is launched in a row: the queue of a
// device is not to be filled, since then launching is what is timed.
const mostLaunches = 500

// Seconds returns what the GPU takes for op, launched in a row for about d, and at
// least once.
func (g *GPU) Seconds(op device.Op, d time.Duration) (float64, error) {
	run := func(n int) (float64, error) {
		took, err := g.Stream.Time(func() {
			for range n {
				g.Stream.Launch(op)
			}
		})
		return max(took.Seconds(), 1e-9) / float64(n), err
	}
	best, err := run(1) // loads the kernel
	if err == nil {
		best, err = run(1)
	}
	n := min(max(int(d.Seconds()/tries/best), 1), mostLaunches)
	for range tries {
		if err != nil {
			return 0, err
		}
		var t float64
		t, err = run(n)
		best = min(best, t)
	}
	return best, err
}

// Square returns a product of n rows, columns and depth, of random numbers, whose
// tensors are as those of Local.
func (g *GPU) Square(typ device.DType, n int) (*device.MatMul, error) {
	o := &device.MatMul{M: n, N: n, K: n, TransB: true}
	for _, t := range []*device.Tensor{&o.A, &o.B, &o.C} {
		var err error
		if *t, err = g.Local(typ, n*n); err != nil {
			return nil, err
		}
	}
	return o, errors.Join(g.Random(o.A), g.Random(o.B))
}

// Multiplying returns the FLOP/s of a large product, measured for about d.
func (g *GPU) Multiplying(typ device.DType, d time.Duration) (float64, error) {
	return g.within(func(part int) (float64, error) {
		o, err := g.Square(typ, g.sizes.Edge/part)
		if err != nil {
			return 0, err
		}
		t, err := g.Seconds(o, d)
		return float64(o.Cost().FLOPs) / t, err
	})
}

// Copying returns the bytes a second, read and written, of a large copy, measured
// for about d.
func (g *GPU) Copying(d time.Duration) (float64, error) {
	return g.within(func(part int) (float64, error) {
		o := &device.Copy{N: int(g.sizes.Copy/4) / part}
		for _, t := range []*device.Tensor{&o.Src, &o.Dst} {
			var err error
			if *t, err = g.Local(device.F32, o.N); err != nil {
				return 0, err
			}
		}
		if err := g.Random(o.Src); err != nil {
			return 0, err
		}
		t, err := g.Seconds(o, d)
		return float64(o.Cost().Bytes) / t, err
	})
}

// within measures with the sizes divided by the least part that there is memory
// for.
func (g *GPU) within(measure func(part int) (float64, error)) (float64, error) {
	for part := 1; ; part *= 2 {
		held := len(g.held)
		rate, err := measure(part)
		for _, b := range g.held[held:] {
			err = errors.Join(err, g.Free(b))
		}
		g.held = g.held[:held]
		var e *cuda.Error
		if err == nil || part == smallestPart || !errors.As(err, &e) || e.Code != outOfMemory {
			return rate, err
		}
	}
}

// outOfMemory is CUDA_ERROR_OUT_OF_MEMORY.
const outOfMemory = 2

// PeakFLOPS implements Limits.
func (g *GPU) PeakFLOPS(typ device.DType, d time.Duration) float64 {
	rate, err := g.Multiplying(typ, d)
	if err != nil {
		return 0
	}
	return rate
}

// CopyBandwidth implements Limits.
func (g *GPU) CopyBandwidth(d time.Duration) float64 {
	rate, err := g.Copying(d)
	if err != nil {
		return 0
	}
	return rate
}

// TriadBandwidth implements Limits: no operation is one.
func (g *GPU) TriadBandwidth(time.Duration) float64 { return 0 }
