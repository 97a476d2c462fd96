package gpucheck

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/nvml"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/train"
)

// Machine is what is checked, as its user opens it. All fields but Pythons and the last must be set.
type Machine struct {
	Report cuda.Report
	// Open opens a GPU: a device of package cuda, or what stands in for one.
	Open func(cuda.Options) (device.Device, error)
	// CPU opens the device that GPUs are compared with.
	CPU func() (device.Device, error)
	// NCCL opens the library.
	NCCL func() (*nccl.Library, error)
	// Gofsdp is this program, which with the arguments Side does gofsdp's side of a comparison; and
	// Tools the folder of what else is needed: gpucheck.test, witness.test, bench/peers.
	Gofsdp, Tools string
	Side          []string
	// Pythons are asked for PyTorch, one after the other.
	Pythons []string
	// Log gets what programs write that are started.
	Log interface{ Write([]byte) (int, error) }
	// State tells how a GPU is just now, by its UUID, as NVML does; false where nobody tells.
	State func(uuid string) (nvml.Device, bool)
	// Environment is added to that of the test binaries that are started.
	Environment []string
}

// timed is a stream that tells how long the GPU took, as cuda's do.
type timed interface {
	device.Stream
	Time(f func()) (time.Duration, error)
}

// roomy is a device that tells of its memory, as cuda's do.
type roomy interface{ Room() (cuda.Room, error) }

// first is the first GPU that can be used, on which all parts work that need one.
func (m *Machine) first() cuda.Properties {
	for _, p := range m.Report.Devices {
		if p.Problem == "" {
			return p
		}
	}
	return cuda.Properties{}
}

// state is how the first GPU is just now.
func (m *Machine) state() (nvml.Device, bool) { return m.State(m.first().UUID) }

// open opens it.
func (m *Machine) open(o cuda.Options) (device.Device, error) {
	o.Ordinal = m.first().Ordinal
	return m.Open(o)
}

// gpu is an open device with a stream to measure on.
type gpu struct {
	device.Device
	stream   timed
	held     []device.Buffer
	patterns map[device.DType]device.Tensor // in pinned memory
}

// onGPU opens the first GPU with a stream. It is to be closed.
func (c *check) onGPU(o cuda.Options) (*gpu, error) {
	d, err := c.open(o)
	if err != nil {
		return nil, err
	}
	return onStream(d)
}

// onStream takes an open device, which is closed with it.
func onStream(d device.Device) (*gpu, error) {
	s, ok := d.NewStream("compute").(timed)
	if !ok {
		return nil, errors.Join(fmt.Errorf("gpucheck: device %s cannot time its streams", d.Info().Name), d.Close())
	}
	return &gpu{Device: d, stream: s, patterns: map[device.DType]device.Tensor{}}, nil
}

// local returns a tensor in the GPU's memory, which lives until release or Close.
func (g *gpu) local(typ device.DType, n int) (device.Tensor, error) {
	b, err := g.Alloc(max(1, int64(n)*typ.Size()), device.Local)
	if err != nil {
		return device.Tensor{}, err
	}
	g.held = append(g.held, b)
	return b.In(typ, 0, int64(n)), nil
}

// release frees what local has given out.
func (g *gpu) release() (err error) {
	for _, b := range g.held {
		err = errors.Join(err, g.Free(b))
	}
	g.held = nil
	return err
}

// pinned returns a tensor that the host sees. It lives until Close.
func (g *gpu) pinned(typ device.DType, n int) (device.Tensor, error) {
	b, err := g.Alloc(int64(n)*typ.Size(), device.Pinned)
	if err != nil {
		return device.Tensor{}, err
	}
	return b.In(typ, 0, int64(n)), nil
}

// patternLen is after how many elements random numbers begin again: a prime, so that rows differ.
const patternLen = 65521

// pattern are normally distributed numbers, as bf16 holds them, so that they are the same in both types.
var pattern = func() []float32 {
	rng, list := rand.New(rand.NewPCG(1, 2)), make([]float32, patternLen)
	for i := range list {
		list[i] = device.FromBF16(device.ToBF16(float32(rng.NormFloat64())))
	}
	return list
}()

// random fills a tensor of f32 or bf16 with numbers: element i is pattern[i%patternLen].
func (g *gpu) random(t device.Tensor) error {
	p, ok := g.patterns[t.Type]
	if !ok {
		var err error
		if p, err = g.pinned(t.Type, patternLen); err != nil {
			return err
		}
		for i, x := range pattern {
			set(p, i, x)
		}
		g.patterns[t.Type] = p
	}
	// The first piece comes from the host; what is there is doubled.
	n := min(int64(patternLen), t.Len)
	g.stream.Launch(&device.Copy{Src: p.Slice(0, n), Dst: t.Slice(0, n), N: int(n)})
	for done := n; done < t.Len; {
		n := min(done/patternLen*patternLen, t.Len-done)
		g.stream.Launch(&device.Copy{Src: t.Slice(0, n), Dst: t.Slice(done, n), N: int(n)})
		done += n
	}
	return g.stream.Sync()
}

// set writes a number of f32 or bf16.
func set(t device.Tensor, i int, x float32) {
	if t.Type == device.BF16 {
		t.BF16()[i] = device.ToBF16(x)
	} else {
		t.F32()[i] = x
	}
}

// get reads one.
func get(t device.Tensor, i int) float32 {
	if t.Type == device.BF16 {
		return device.FromBF16(t.BF16()[i])
	}
	return t.F32()[i]
}

// tries is how often something is timed; the fastest counts, since others were interrupted.
const tries = 3

// seconds returns what the GPU takes for op, launched in a row for about d, and at least once.
func (g *gpu) seconds(op device.Op, d time.Duration) (float64, error) {
	run := func(n int) (float64, error) {
		took, err := g.stream.Time(func() {
			for range n {
				g.stream.Launch(op)
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

// mostLaunches is how often an operation is launched in a row: the queue of a device is not to be filled, since
// then launching is what is timed.
const mostLaunches = 500

// copying returns the bytes a second, read and written, of a copy of that many.
func (g *gpu) copying(bytes int64, d time.Duration) (rate float64, err error) {
	n := int(bytes / 4)
	from, err := g.local(device.F32, n)
	if err != nil {
		return 0, err
	}
	to, err := g.local(device.F32, n)
	if err != nil {
		return 0, errors.Join(err, g.release())
	}
	defer func() { err = errors.Join(err, g.release()) }()
	if err := g.random(from); err != nil {
		return 0, err
	}
	t, err := g.seconds(&device.Copy{Src: from, Dst: to, N: n}, d)
	return 2 * 4 * float64(n) / t, err
}

// square returns a product of n rows, columns and depth, of random numbers.
func (g *gpu) square(typ device.DType, n int) (*device.MatMul, error) {
	o := &device.MatMul{M: n, N: n, K: n, TransB: true}
	for _, t := range []*device.Tensor{&o.A, &o.B, &o.C} {
		var err error
		if *t, err = g.local(typ, n*n); err != nil {
			return nil, err
		}
	}
	return o, errors.Join(g.random(o.A), g.random(o.B))
}

// multiplying returns the FLOP/s of a large product.
func (g *gpu) multiplying(typ device.DType, edge int, d time.Duration) (rate float64, err error) {
	defer func() { err = errors.Join(err, g.release()) }()
	o, err := g.square(typ, edge)
	if err != nil {
		return 0, err
	}
	t, err := g.seconds(o, d)
	return float64(o.Cost().FLOPs) / t, err
}

// limits are what a GPU can do, a second.
type limits struct{ f32, bf16, copy float64 }

// limits measures them.
func (g *gpu) limits(s Sizes) (l limits, err error) {
	if l.copy, err = g.copying(s.Copy, s.Reading); err != nil {
		return l, err
	}
	if l.bf16, err = g.multiplying(device.BF16, s.Edge, s.Reading); err != nil {
		return l, err
	}
	l.f32, err = g.multiplying(device.F32, s.Edge, s.Reading)
	return l, err
}

// least returns the least seconds that an operation could take, and what bounds it.
func (l limits) least(typ device.DType, c device.Cost) (seconds float64, by string) {
	peak := l.f32
	if typ == device.BF16 {
		peak = l.bf16
	}
	compute, memory := float64(c.FLOPs)/peak, float64(c.Bytes)/l.copy
	if compute >= memory {
		return compute, "compute"
	}
	return memory, "memory"
}

// add writes the limits into the table that shares are of.
func (l limits) add(c *check) {
	t := c.table("Limits that were measured", Column{"limit", Text}, Column{"products", FLOPS}, Column{"bytes", Rate})
	t.add(fmt.Sprintf("a copy of %s", train.Bytes(c.Copy)), nil, l.copy)
	t.add(fmt.Sprintf("cuBLAS, bf16, %d × %d × %d", c.Edge, c.Edge, c.Edge), l.bf16, nil)
	t.add(fmt.Sprintf("cuBLAS, f32, %d × %d × %d", c.Edge, c.Edge, c.Edge), l.f32, nil)
}

// measured is a GPU as package bench measures one: it knows its own limits.
type measured struct {
	device.Device
	gpu *gpu
	Sizes
	products map[device.DType]*device.MatMul
}

// measures returns a device that measures its own limits. Closing it closes d.
func measures(d device.Device, s Sizes) (*measured, error) {
	g, err := onStream(d)
	if err != nil {
		return nil, err
	}
	return &measured{d, g, s, map[device.DType]*device.MatMul{}}, nil
}

// PeakFLOPS implements bench.Limits by a large product of cuBLAS, whose memory stays.
func (m *measured) PeakFLOPS(typ device.DType, d time.Duration) float64 {
	o := m.products[typ]
	if o == nil {
		var err error
		if o, err = m.gpu.square(typ, m.Edge); err != nil {
			return 0
		}
		m.products[typ] = o
	}
	t, err := m.gpu.seconds(o, d)
	if err != nil {
		return 0
	}
	return float64(o.Cost().FLOPs) / t
}

// CopyBandwidth implements bench.Limits.
func (m *measured) CopyBandwidth(d time.Duration) float64 {
	g := &gpu{Device: m.Device, stream: m.gpu.stream, patterns: m.gpu.patterns}
	rate, err := g.copying(m.Copy, d)
	if err != nil {
		return 0
	}
	return rate
}

// TriadBandwidth implements bench.Limits: no operation is one.
func (m *measured) TriadBandwidth(time.Duration) float64 { return 0 }

// ncclDevice returns a device as NCCL needs it.
func ncclDevice(d device.Device) (nccl.Device, error) {
	if n, ok := d.(nccl.Device); ok {
		return n, nil
	}
	return nil, fmt.Errorf("gpucheck: device %s is none that NCCL takes", d.Info().Name)
}
