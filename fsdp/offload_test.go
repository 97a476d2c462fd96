package fsdp

import (
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

var offloads = []Offload{OffloadOptimizer, OffloadParameters, OffloadAll}

func TestWhatIsOffloadedLiesInTheHostsMemory(t *testing.T) {
	for _, c := range []struct {
		typ      device.DType
		strategy Strategy
		offload  Offload
		pinned   map[Kind]bool // of all state that there is
	}{
		{device.F32, FullShard, OffloadNone, map[Kind]bool{Parameters: false, Moments: false}},
		{device.F32, FullShard, OffloadOptimizer, map[Kind]bool{Parameters: true, Moments: true, ComputeCopy: false}},
		{device.F32, FullShard, OffloadParameters, map[Kind]bool{Parameters: false, Moments: false, ComputeCopy: true}},
		{device.F32, FullShard, OffloadAll, map[Kind]bool{Parameters: true, Moments: true}},
		{device.F32, NoShard, OffloadAll, map[Kind]bool{Parameters: true, Moments: true}},
		{device.BF16, FullShard, OffloadAll, map[Kind]bool{Parameters: true, Moments: true, ComputeCopy: true}},
		{device.BF16, NoShard, OffloadOptimizer, map[Kind]bool{Parameters: true, Moments: true, ComputeCopy: false}},
		{device.F32, ShardOptimizer, OffloadAll, map[Kind]bool{Parameters: true, Moments: true, ComputeCopy: true}},
	} {
		o := Options{Model: twoBlocks(true), Type: c.typ, Train: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{1, 2}, Strategy: c.strategy, Offload: c.offload}
		p, err := NewPlan(o)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[Kind]bool{}
		for _, b := range p.Buffers {
			want, state := c.pinned[b.Kind]
			if b.Kind != Parameters && b.Kind != ComputeCopy && b.Kind != Moments {
				want, state = b.Kind == Mailbox, true
			} else {
				seen[b.Kind] = true
			}
			if !state || (b.In == device.Pinned) != want {
				t.Errorf("%s, %s, offload %s: %s lies in %v memory", c.typ, c.strategy, c.offload, b.Name, b.In)
			}
		}
		if len(seen) != len(c.pinned) {
			t.Errorf("%s, %s, offload %s: the plan has the state %v, want %v", c.typ, c.strategy, c.offload, seen, c.pinned)
		}
	}
}

func TestOffloadLeavesTheDeviceLess(t *testing.T) {
	cfg := small(true)
	cfg.Layers = 12
	for _, typ := range []device.DType{device.F32, device.BF16} {
		var last int64 = 1 << 62
		for _, offload := range []Offload{OffloadNone, OffloadOptimizer, OffloadAll} {
			p, err := NewPlan(Options{Model: cfg, Type: typ, Train: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{1, 2}, Strategy: FullShard, Offload: offload})
			if err != nil {
				t.Fatal(err)
			}
			if n := p.Bytes() - p.Arenas[device.Pinned].Bytes; n >= last {
				t.Errorf("%s, offload %s: the device holds %d bytes, with less offloaded %d", typ, offload, n, last)
			} else {
				last = n
			}
		}
	}
}
