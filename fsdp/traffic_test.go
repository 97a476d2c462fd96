package fsdp

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

func TestTrafficOfAStepIsThatOfATableByHand(t *testing.T) {
	cfg := small(false) // 5 units: embed, 3 blocks, head
	p, err := NewPlan(Options{Model: cfg, Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{2, 4}, Strategy: FullShard})
	if err != nil {
		t.Fatal(err)
	}
	// Bytes of all units' whole vectors, and of those that are gathered again in
	// the backward: all blocks but the last.
	var v, again int64
	for i, u := range p.Units {
		v += int64(u.Len) * 4
		if i == 1 || i == 2 {
			again += int64(u.Len) * 4
		}
	}
	agree := int64(agreeLen(8)) * 8
	for _, micro := range []int64{1, 3} {
		want := fmt.Sprint([]Traffic{
			{"AllGather", Across, int(7 * micro), micro * (v + again) / 4 / 2},
			{"AllGather", Within, int(7 * micro), micro * (v + again) / 4 * 3},
			{"ReduceScatter", Within, int(5 * micro), micro * v / 4 * 3},
			{"ReduceScatter", Across, int(5 * micro), micro * v / 4 / 2},
			{"AllReduce", Within, 1, 2 * (agree / 4 * 3)},
			{"AllReduce", Across, 1, 2 * (agree / 2)},
		})
		if got := fmt.Sprint(p.Traffic(int(micro))); got != want {
			t.Errorf("%d micro-batches move\n%s\nwant\n%s", micro, got, want)
		}
	}
	one, err := NewPlan(Options{Model: cfg, Type: device.F32, Train: true, Seqs: 1, SeqLen: 8})
	if err != nil {
		t.Fatal(err)
	}
	if got := one.Traffic(4); got != nil {
		t.Errorf("one rank moves %v", got)
	}
}

func TestAMeshIsReadAsItIsWritten(t *testing.T) {
	for _, c := range []struct {
		mesh  string
		ranks int
		want  Mesh
		err   string
	}{
		{"", 4, Mesh{0, 4}, ""},
		{"2x4", 8, Mesh{2, 4}, ""},
		{"1x1", 1, Mesh{1, 1}, ""},
		{"2x3", 8, Mesh{}, "2x3 has 6 ranks, the run has 8"},
		{"2*4", 8, Mesh{}, "write it as 2x4"},
		{"x", 8, Mesh{}, "write it as 2x4"},
		{"-2x-4", 8, Mesh{}, "write it as 2x4"},
	} {
		var o Options
		err := Sharding{Mesh: c.mesh, Strategy: "full_shard", ReshardAfterForward: true, ReduceEachMicro: true}.Over(c.ranks, &o)
		if c.err == "" && (err != nil || o.Mesh != c.want || o.KeepWeights || o.LateReduce || o.Strategy != FullShard) {
			t.Errorf("%q over %d ranks: %v, %v", c.mesh, c.ranks, o.Mesh, err)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%q over %d ranks: %v, want %q", c.mesh, c.ranks, err, c.err)
		}
	}
}
