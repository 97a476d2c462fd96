package fsdp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

// gauge is a device that notes how far into each buffer operations reach, and
// has a fence behind each that nothing may touch.
type gauge struct {
	device.Device
	mu    sync.Mutex
	taken []*measured
}

type measured struct {
	device.Buffer
	fence []byte
	used  int64 // up to the end of the furthest operand
}

const (
	fenceLen  = 1 << 16
	untouched = 0xa5
)

// Alloc implements device.Device.
func (g *gauge) Alloc(size int64, in device.Memory) (device.Buffer, error) {
	b, err := g.Device.Alloc(size+fenceLen, in)
	if err != nil {
		return b, err
	}
	m := &measured{Buffer: b, fence: b.Host[size:]}
	fill(m.fence)
	m.Size, m.Host = size, b.Host[:size:size]
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken = append(g.taken, m)
	return m.Buffer, nil
}

// NewStream implements device.Device.
func (g *gauge) NewStream(name string) device.Stream {
	return gaugedStream{g.Device.NewStream(name), g}
}

type gaugedStream struct {
	device.Stream
	gauge *gauge
}

// Launch implements device.Stream.
func (s gaugedStream) Launch(op device.Op) {
	s.gauge.note(op)
	s.Stream.Launch(op)
}

// note notes an operation's operands; those of a collective may be another
// rank's.
func (g *gauge) note(op device.Op) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, o := range device.Operands(op) {
		for _, m := range g.taken {
			if at := int64(o.T.Addr) - int64(m.Addr); at >= 0 && at < m.Size {
				m.used = max(m.used, at+o.T.Bytes())
			}
		}
	}
}

func fill(b []byte) {
	for i := range b {
		b[i] = untouched
	}
}

// reach returns how far b has been written to since it was filled.
func reach(b []byte) int {
	n := len(b)
	for n > 0 && b[n-1] == untouched {
		n--
	}
	return n
}

// What operations reach, and what they write to, is what the plan says, to the
// last 256 bytes; nothing writes behind it.
func TestTheHighWaterMarkOfEveryArenaIsThePlans(t *testing.T) {
	for _, s := range Strategies() {
		for _, o := range []Options{
			{Mesh: Mesh{1, 3}, Type: device.F32},
			{Mesh: Mesh{2, 2}, Type: device.BF16, KeepWeights: true, Prefetch: 1, Recompute: RecomputeSelective, Offload: OffloadAll},
			{Mesh: Mesh{2, 1}, Type: device.F32, LateReduce: true, Prefetch: 3, Recompute: RecomputeBlock, Offload: OffloadOptimizer},
			{Mesh: Mesh{1, 1}, Type: device.BF16},
			{Mesh: Mesh{2, 2}, Type: device.F32, MicroBatches: 1, Prefetch: 1, Offload: OffloadOptimizer},
			{Mesh: Mesh{1, 1}, Type: device.F32, MicroBatches: 1, Recompute: RecomputeBlock},
		} {
			o.Model, o.Strategy, o.Seqs, o.SeqLen, o.HeadRows = twoBlocks(o.KeepWeights), s, 2, 7, 5
			o = toTrain(o)
			o.Eval, o.Decoding = true, Decoding{Seqs: 2, CacheLen: 9, Prefill: 3}
			gauges := make([]*gauge, o.Mesh.Size())
			inner := inProcess(o.Mesh)
			world(t, o, func(rank int) (device.Device, Comms, func() error, error) {
				dev, comms, leave, err := inner(rank)
				gauges[rank] = &gauge{Device: dev}
				return gauges[rank], comms, leave, err
			}, func(e *Engine) error {
				p, g := e.Plan, gauges[e.Plan.Rank]
				for m, a := range p.Arenas {
					fill(e.arenas[m].Host[min(a.Scratch, e.arenas[m].Size):])
				}
				if err := everyProgram(e); err != nil {
					return err
				}
				var all int64
				for _, b := range g.taken {
					a := p.Arenas[b.Memory]
					all += b.Size
					if b.Size != a.Bytes || align(b.used) != a.Bytes {
						t.Errorf("%+v: operations reach %d bytes of %d of %v memory, the plan says %d", o, b.used, b.Size, b.Memory, a.Bytes)
					}
					if n := int64(reach(b.Host[a.Scratch:])); align(n) != a.Bytes-a.Scratch {
						t.Errorf("%+v: operations write to %d bytes of the tail of %v memory, the plan says %d", o, n, b.Memory, a.Bytes-a.Scratch)
					}
					if n := reach(b.fence); n > 0 {
						t.Errorf("%+v: something is written %d bytes behind the end of %v memory", o, n, b.Memory)
					}
				}
				if all != p.Bytes() {
					t.Errorf("%+v: the engine takes %d bytes, the plan says %d", o, all, p.Bytes())
				}
				return nil
			})
		}
	}
}

// everyProgram runs all of a plan's.
func everyProgram(e *Engine) error {
	p := e.Plan
	b := packed(rand.New(rand.NewPCG(1, 1)), p.Seqs, p.SeqLen, p.Model.Vocab)
	errs := []error{fresh(e, 5), e.MicroBatch(b, 0.1, true)}
	if p.accumulates() {
		errs = append(errs, e.MicroBatch(b, 0.1, false))
	}
	_, err := e.Agree(1, false)
	errs = append(errs, err, e.Update(Hyper{LR: 1e-3, GradScale: 1, Step: 1}), e.Evaluate(b))
	for _, tokens := range [][][]int32{{{1, 2, 3, 4}, {5}}, {{6}, {7}}} {
		_, err := e.Extend(tokens)
		errs = append(errs, err)
	}
	for u := range p.Units {
		errs = append(errs, e.Whole(u), e.ReadWhole(p.Units[u].Len-1, make([]float32, 1)))
	}
	return errors.Join(errs...)
}

// steady repeats a step of two micro-batches from one step to another and
// returns, for each fifteen of them, how often this process allocated.
func steady(e *Engine, from, to int) (allocated []uint64, err error) {
	const each = 15
	p := e.Plan
	b := packed(rand.New(rand.NewPCG(1, 1)), p.Seqs, p.SeqLen, p.Model.Vocab)
	var before, after runtime.MemStats
	for step := from; step < to; step++ {
		if (step-from)%each == 0 {
			runtime.ReadMemStats(&before)
		}
		for micro := range 2 {
			if err := e.MicroBatch(b, 0.1, micro == 0); err != nil {
				return nil, err
			}
		}
		if _, err := e.Agree(1, false); err != nil {
			return nil, err
		}
		if err := e.Update(Hyper{LR: 1e-3, GradScale: 1, Step: step + 1}); err != nil {
			return nil, err
		}
		if (step-from)%each == each-1 {
			runtime.ReadMemStats(&after)
			allocated = append(allocated, after.Mallocs-before.Mallocs)
		}
	}
	return allocated, nil
}

// wantNone wants no allocations but some that the runtime makes for itself as
// goroutines move between processors, up to so many in the best round: whatever a
// step allocated would be in each of them.
func wantNone(t *testing.T, what string, allocated []uint64, runtimes uint64) {
	t.Helper()
	if len(allocated) < 5 || slices.Min(allocated) > runtimes {
		t.Errorf("%s: in each 15 steps, the process allocates %v times", what, allocated)
	}
}

func TestRanksAllocateNothingFromStepFiveOn(t *testing.T) {
	dev, _, leave, err := inProcess(Mesh{})(0)
	if err != nil {
		t.Fatal(err)
	}
	needKernels(t, dev)
	if err := leave(); err != nil {
		t.Fatal(err)
	}
	for _, mesh := range []Mesh{{1, 1}, {2, 2}} {
		for i, s := range Strategies() {
			o := toTrain(Options{Model: twoBlocks(true), Mesh: mesh, Strategy: s, Seqs: 1, SeqLen: 7, Prefetch: 1, Offload: offloads[i%3]})
			if mesh.Size() == 1 && i > 2 {
				break
			}
			var allocated []uint64
			world(t, o, nil, func(e *Engine) error {
				if _, err := steady(e, 0, 5); err != nil {
					return err
				}
				a, err := steady(e, 5, 200)
				if e.Plan.Rank == 0 {
					allocated = a // of all: they are one process
				}
				return err
			})
			wantNone(t, fmt.Sprintf("mesh %v, %s", mesh, s), allocated, 2)
		}
	}
}

// taken is what a rank's process takes from the system.
type taken struct {
	Before, AtFive, AtEnd int64    // resident memory, shared files included
	Allocated             []uint64 // see steady
}
