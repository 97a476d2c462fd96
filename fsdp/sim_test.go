//go:build sim && cgo && linux

package fsdp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/nccl"
)

// gpus are those of a simulated machine, one a rank.
type gpus struct {
	machine *sim.Machine
	library *nccl.Library
	devices []nccl.Device
	before  []uint64 // bytes of each GPU's memory that were used before there was an engine
}

// onGPUs calls f with a machine of so many GPUs. When f is done they are closed,
// and then nothing may be left, have been refused or have gone wrong.
func onGPUs(t *testing.T, ranks int, c sim.Config, o cuda.Options, f func(*gpus)) {
	t.Helper()
	for range ranks {
		c.Devices = append(c.Devices, sim.L4())
	}
	m, err := sim.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	g := &gpus{machine: m, devices: make([]nccl.Device, ranks), before: make([]uint64, ranks)}
	driver, err := cuda.OpenTable(m.Table(), m.BLAS())
	if err != nil {
		t.Fatal(err)
	}
	if g.library, err = nccl.OpenTable(m.NCCLTable()); err != nil {
		t.Fatal(err)
	}
	o.Urgent = []string{Gathering.String(), Reducing.String()}
	for n := range ranks {
		o.Ordinal = n
		d, err := cuda.New(driver, o)
		if err != nil {
			t.Fatal(err)
		}
		g.devices[n] = d.(nccl.Device)
	}
	defer func() {
		for _, d := range g.devices {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		m.Wait()
		for _, fault := range m.Faults() {
			t.Error(fault)
		}
		for _, what := range append(m.Leaks(), m.Refused()...) {
			t.Error(what)
		}
	}()
	f(g)
}

// ground is the GPUs' for ranks that NCCL connects.
func (g *gpus) ground(t *testing.T, m Mesh) ground {
	values := make([][]byte, m.Size())
	var here sync.WaitGroup
	here.Add(m.Size())
	exchange := func(rank int) func(context.Context, []byte) ([][]byte, error) {
		return func(_ context.Context, value []byte) ([][]byte, error) {
			values[rank] = value
			here.Done()
			here.Wait()
			return values, nil
		}
	}
	return func(rank int) (device.Device, Comms, func() error, error) {
		dev := g.devices[rank]
		groups, err := g.library.Connect(t.Context(), m.Groups(), rank, nccl.ConnectSettings{
			Run: "a test", Deadline: 2 * time.Minute, Device: dev, Exchange: exchange(rank),
		})
		if err != nil {
			return nil, Comms{}, nil, err
		}
		g.before[rank], _ = g.machine.Memory(rank)
		return dev, m.Comms(groups.Comms), groups.Close, nil
	}
}

// forGPUs returns the smallest models that a GPU has kernels for, of sizes of
// which nothing is a multiple: query heads in pairs, with biases, or of twice the
// size and with norms.
func forGPUs(family string, tied bool) model.Config {
	c := model.Config{
		Family: family, Vocab: 61, Hidden: 36, Layers: 2, Heads: 2, KVHeads: 1, HeadSize: 64, MLP: 50,
		MaxPositions: 64, NormEps: 1e-6, RopeTheta: 10000, Tied: tied, InitStd: 0.2,
	}
	switch family {
	case "qwen2":
		c.QKVBias = true
	case "qwen3":
		c.QKNorm, c.HeadSize = true, 128
	}
	return c
}

// workspace is what each stream of an L4 gives its cuBLAS.
const workspace = 4 << 20

// checkMemory requires that a rank has taken of its GPU what the plan says and what
// its streams have for cuBLAS, neither less nor, at any time, more.
func (g *gpus) checkMemory(e *Engine) error {
	used, most := g.machine.Memory(e.Plan.Rank)
	want := g.before[e.Plan.Rank]
	for m, a := range e.Plan.Arenas {
		if device.Memory(m) != device.Pinned {
			want += uint64(a.Bytes+511) / 512 * 512 // as it is counted
		}
	}
	for _, q := range e.queues {
		if q != nil {
			want += workspace
		}
	}
	if used != want || most != want {
		return fmt.Errorf("rank %d uses %d bytes of its GPU, and %d at the most; the plan and cuBLAS have %d", e.Plan.Rank, used, most, want)
	}
	return nil
}

// collectives counts those of a step of so many micro-batches, or of another
// program, as NCCL's calls.
func collectives(p *Plan, micros int) map[string]int {
	calls := map[string]int{}
	for _, x := range p.Traffic(micros) {
		calls["nccl"+x.Kind] += x.Count
	}
	return calls
}

// checkCalls requires that between two counts of a rank's calls there were the
// collectives of so many steps, after weights were brought in line.
func checkCalls(p *Plan, micros, steps int, before, after map[string]int) error {
	want := collectives(p, micros)
	for kind := range want {
		want[kind] *= steps
	}
	for _, s := range p.Refresh.Steps {
		if c, ok := s.Op.(collective.Op); ok {
			want["nccl"+device.Name(c)]++
		}
	}
	var errs []error
	for _, kind := range []string{"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast", "ncclReduce"} {
		if n := after[kind] - before[kind]; n != want[kind] {
			errs = append(errs, fmt.Errorf("rank %d: %d calls of %s in %d steps, the plan has %d", p.Rank, n, kind, steps, want[kind]))
		}
	}
	return errors.Join(errs...)
}

// trained is the function trained on these GPUs, with what the plan says of memory
// and collectives.
func (g *gpus) trained(t *testing.T, o Options, steps, sequences int) outcome {
	t.Helper()
	shares := make([]share, o.Mesh.Size())
	world(t, toTrain(o), g.ground(t, o.Mesh), func(e *Engine) (err error) {
		p := e.Plan
		before := g.machine.Calls(p.Rank)
		if shares[p.Rank], err = trainRank(e, steps, sequences); err != nil {
			return err
		}
		return errors.Join(checkCalls(p, sequences/p.Seqs/p.Mesh.Size(), steps, before, g.machine.Calls(p.Rank)), g.checkMemory(e))
	})
	return together(t, o, shares)
}

func TestAModelOfHeadsWithoutKernelsIsRefusedForGPUsByName(t *testing.T) {
	onGPUs(t, 1, sim.Config{}, cuda.Options{}, func(g *gpus) {
		cfg := forGPUs("qwen2", true)
		cfg.HeadSize = 32
		for want, o := range map[string]Options{
			"device NVIDIA L4 cannot run the plan: fsdp: program micro-batch (first), block 0, attn.core: cuda: Attention: heads of 32 numbers: there are kernels for 64 and 128": {Train: true, Seqs: 1, SeqLen: 8},
			"device NVIDIA L4 cannot run the plan: fsdp: program prefill, block 0, attn.core: cuda: AttentionDecode: heads of 32 numbers":                                         {Decoding: Decoding{Seqs: 1, CacheLen: 8, Prefill: 4}},
		} {
			o.Model, o.Type = cfg, device.BF16
			p, err := NewPlan(o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := NewEngine(p, g.devices[0], Comms{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nwant %s", err, want)
			}
			// The same is known where there is no GPU.
			if err := p.Limits(cuda.Runs); err == nil || !strings.HasSuffix(want, err.Error()) && !strings.Contains(want, "fsdp: ") {
				t.Error(err)
			}
		}
		p, err := NewPlan(toTrain(Options{Model: forGPUs("qwen3", false), Seqs: 1, SeqLen: 8, Mesh: Mesh{2, 2}, Strategy: FullShard}))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Limits(cuda.Runs); err != nil {
			t.Error(err)
		}
	})
}

// A rank waits in a gather to which the other does not come, graphs and all. What
// frees memory does not wait with it, and once its groups have ended so does all
// else.
func TestAGPUWhosePeerDoesNotComeIsEndedWithItsGraphs(t *testing.T) {
	o := toTrain(Options{Model: forGPUs("qwen2", true), Type: device.BF16, Mesh: Mesh{1, 2}, Strategy: FullShard, Seqs: 1, SeqLen: 12, Prefetch: 1})
	onGPUs(t, 2, sim.Config{Seed: *seed}, cuda.Options{Graphs: true}, func(g *gpus) {
		reason, apart := errors.New("rank 1 has gone"), make(chan bool)
		run := func(e *Engine) error {
			b := packed(rand.New(rand.NewPCG(3, 3)), 1, o.SeqLen, o.Model.Vocab)
			extra, err := e.dev.Alloc(1, device.Local)
			for range 3 {
				err = errors.Join(err, e.MicroBatch(b, 1, true))
			}
			if err != nil {
				return err
			}
			if e.Plan.Rank == 1 {
				<-apart
				return reason
			}
			calls := func(name string) int { return g.machine.Calls(0)[name] }
			gathers, launches, destroyed := calls("ncclAllGather"), calls("cuGraphLaunch"), calls("cuGraphExecDestroy")
			failed := make(chan error, 1)
			go func() { failed <- e.MicroBatch(b, 1, true) }()
			for calls("ncclAllGather") == gathers || calls("cuGraphLaunch") == launches {
				time.Sleep(time.Millisecond)
			}
			if err := e.dev.Free(extra); err != nil || calls("cuGraphExecDestroy") == destroyed {
				t.Errorf("freeing memory: %v; %d graphs are gone", err, calls("cuGraphExecDestroy")-destroyed)
			}
			close(apart)
			abort(e.comms, reason)
			return <-failed
		}
		ground, errs := g.ground(t, o.Mesh), make([]error, 2)
		var both sync.WaitGroup
		for rank := range 2 {
			both.Go(func() {
				o := o
				o.Rank = rank
				errs[rank] = onGround(o, ground, run)
			})
		}
		both.Wait()
		for rank, err := range errs {
			if !errors.Is(err, reason) {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	})
}
