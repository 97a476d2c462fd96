package fsdp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
	"github.com/gofsdp/gofsdp/internal/pairwise"
)

// hidden is a ground of devices whose own memory the host cannot see: who follows
// an address there faults.
func hidden(g ground) ground {
	return func(rank int) (device.Device, Comms, func() error, error) {
		dev, comms, leave, err := g(rank)
		if err != nil {
			return nil, comms, nil, err
		}
		return optest.Hidden(dev), comms, leave, nil
	}
}

// ofHidden are the factors in which the engine's use of memory differs.
var ofHidden = []pairwise.Factor[variant]{
	pairwise.Of("ranks", func(w *variant, n int) { w.ranks = n }, 1, 2, 4),
	pairwise.Of("nodes", func(w *variant, n int) { w.nodes = n }, 1, 2),
	pairwise.Of("strategy", func(w *variant, s Strategy) { w.Strategy = s }, Strategies()...),
	pairwise.Of("micro-batches", func(w *variant, n int) { w.micros = n }, 1, 3),
	pairwise.Of("reduced late", func(w *variant, x bool) { w.LateReduce = x }, false, true),
	pairwise.Of("weights kept", func(w *variant, x bool) { w.KeepWeights = x }, false, true),
	pairwise.Of("offload", func(w *variant, x Offload) { w.Offload = x }, OffloadNone, OffloadOptimizer, OffloadParameters, OffloadAll),
	pairwise.Of("recompute", func(w *variant, r Recompute) { w.Recompute = r }, RecomputeNone, RecomputeSelective, RecomputeBlock),
	pairwise.Of("type", func(w *variant, x device.DType) { w.Type = x }, device.F32, device.BF16),
	pairwise.Of("tied", func(w *variant, x bool) { w.Model = twoBlocks(x) }, false, true),
}

func TestMemoryThatTheHostCannotSeeGivesTheSameBits(t *testing.T) {
	cases := pairwise.Cover(ofHidden, possible, 0)
	if len(cases) > 30 {
		t.Errorf("%d cases are more than a test has time for", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			o, sequences := c.It.options()
			o.Prefetch = 1
			want := trained(t, o, 3, sequences, nil)
			same(t, "memory that the host sees", trained(t, o, 3, sequences, hidden(inProcess(o.Mesh))), want)
		})
	}
}

// answers returns what each rank's engine says besides training: losses, logits,
// and whole weights.
func answers(t *testing.T, o Options, g ground) [][]float32 {
	t.Helper()
	said := make([][]float32, o.Mesh.Size())
	var mu sync.Mutex
	world(t, o, g, func(e *Engine) error {
		p := e.Plan
		if err := fresh(e, 5); err != nil {
			return err
		}
		var all []float32
		data := rand.New(rand.NewPCG(3, uint64(p.Rank)))
		for range 2 {
			if err := e.Evaluate(packed(data, p.Seqs, p.SeqLen, p.Model.Vocab)); err != nil {
				return err
			}
			all = append(all, e.Losses()...)
		}
		for _, tokens := range [][][]int32{{{1, 2, 3, 4, 5}, {6}}, {{7}, {8}}, {{}, {9, 10}}} {
			logits, err := e.Extend(tokens)
			if err != nil {
				return err
			}
			all = append(all, logits...)
		}
		for u, unit := range p.Units {
			whole := make([]float32, unit.Len)
			if err := errors.Join(e.Whole(u), e.ReadWhole(0, whole)); err != nil {
				return err
			}
			all = append(all, whole...)
		}
		mu.Lock()
		defer mu.Unlock()
		said[p.Rank] = all
		return nil
	})
	return said
}

func TestMemoryThatTheHostCannotSeeAnswersTheSame(t *testing.T) {
	for i, s := range Strategies() {
		o := Options{
			Model: twoBlocks(i%2 == 0), Type: device.F32, Eval: true, Seqs: 2, SeqLen: 7, HeadRows: 5,
			Mesh: []Mesh{{1, 1}, {1, 2}, {2, 2}}[i%3], Strategy: s, Offload: []Offload{OffloadNone, OffloadAll}[i/3],
			Decoding: Decoding{Seqs: 2, CacheLen: 9, Prefill: 3},
		}
		want, got := answers(t, o, nil), answers(t, o, hidden(inProcess(o.Mesh)))
		for rank := range want {
			if j := firstDifference(got[rank], want[rank]); j >= 0 || len(want[rank]) == 0 {
				t.Errorf("%s, mesh %v, rank %d: number %d of %d differs", s, o.Mesh, rank, j, len(want[rank]))
			}
		}
	}
}

func TestAParameterLargerThanTheStagingMemoryPassesInPieces(t *testing.T) {
	cfg := twoBlocks(true)
	cfg.Vocab, cfg.Layers = 2*stagingLen/cfg.Hidden+77, 1
	dev := optest.Hidden(device.NewReference())
	t.Cleanup(func() { dev.Close() })
	e := engine(t, Options{Model: cfg, Type: device.F32, Eval: true, Seqs: 1, SeqLen: 8, HeadRows: 8}, dev)
	const name = "model.embed_tokens.weight"
	first, n := e.Owned(name)
	if first != 0 || n <= 2*stagingLen {
		t.Fatalf("the test writes %d numbers from %d on", n, first)
	}
	want := make([]float32, n)
	for i := range want {
		want[i] = float32(i)
	}
	got := make([]float32, n)
	if err := errors.Join(e.WriteOwned(name, 0, want), e.ReadOwned(name, 0, got)); err != nil || !slices.Equal(got, want) {
		t.Errorf("what was read is not what was written: %v", err)
	}
	// A piece that lies over the end of what is staged at once, and what is beside it.
	const from, to = stagingLen - 3, 2*stagingLen + 5
	for i := from; i < to; i++ {
		want[i] = -want[i]
	}
	if err := errors.Join(e.WriteOwned(name, from, want[from:to]), e.ReadOwned(name, 1, got[1:])); err != nil || !slices.Equal(got, want) {
		t.Errorf("a piece was not written in its place: %v", err)
	}
}

func TestWeightsThatARankDoesNotHoldAreNotRead(t *testing.T) {
	world(t, Options{Model: twoBlocks(true), Type: device.F32, Eval: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{1, 2}, Strategy: FullShard}, nil, func(e *Engine) error {
		const name = "model.layers.0.mlp.down_proj.weight"
		first, n := e.Owned(name)
		for what, x := range map[string][2]int{"in front of it": {first - 1, 1}, "behind it": {first + n, 1}, "over its end": {first, n + 1}} {
			func() {
				defer func() {
					if said := fmt.Sprint(recover()); !strings.Contains(said, name) {
						t.Errorf("reading %s says %q", what, said)
					}
				}()
				_ = e.ReadOwned(name, x[0], make([]float32, x[1]))
			}()
		}
		return nil
	})
}

// strange is a device whose pinned memory is not as it should be.
type strange struct {
	device.Device
	change func(*device.Buffer)
}

// Alloc implements device.Device.
func (s strange) Alloc(size int64, in device.Memory) (device.Buffer, error) {
	b, err := s.Device.Alloc(size, in)
	if in == device.Pinned {
		s.change(&b)
	}
	return b, err
}

// Free implements device.Device, by closing it.
func (s strange) Free(device.Buffer) error { return nil }

func TestADeviceWithoutMemoryThatBothSeeIsRefused(t *testing.T) {
	for what, change := range map[string]func(*device.Buffer){
		"hidden":             func(b *device.Buffer) { b.Host = nil },
		"at another address": func(b *device.Buffer) { b.Addr += 256 },
	} {
		dev := strange{device.NewReference(), change}
		p, err := NewPlan(Options{Model: twoBlocks(true), Type: device.F32, Eval: true, Seqs: 1, SeqLen: 8})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewEngine(p, dev, Comms{}); err == nil || !strings.Contains(err.Error(), "device reference does not show its host memory to the host") {
			t.Errorf("%s: %v", what, err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}
