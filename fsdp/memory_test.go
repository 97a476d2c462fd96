package fsdp

import (
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

func TestARankMapsTheWindowsOfItsGroupsOnItsNode(t *testing.T) {
	for what, c := range map[string]struct {
		mesh    Mesh
		rank    int
		sharing int
		peers   int64
	}{
		"one rank alone": {Mesh{1, 1}, 0, 1, 0},
		"two ranks":      {Mesh{1, 2}, 1, 2, 1},
		"a row of eight": {Mesh{1, 8}, 3, 8, 7},
		"a mesh on one node: its row and its column":   {Mesh{2, 3}, 4, 6, 3},
		"a row on each node":                           {Mesh{2, 4}, 5, 4, 3},
		"two rows on each node":                        {Mesh{4, 2}, 6, 4, 2},
		"a row over two nodes":                         {Mesh{1, 4}, 2, 2, 1},
		"nodes of one rank":                            {Mesh{4, 1}, 2, 1, 0},
		"memory that is not shared, on whatever nodes": {Mesh{2, 2}, 3, 1, 0},
	} {
		for _, s := range Strategies() {
			var shared int64
			for rank := range c.mesh.Size() {
				p, err := NewPlan(Options{Model: twoBlocks(true), Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Mesh: c.mesh, Rank: rank, Strategy: s})
				if err != nil {
					t.Fatal(err)
				}
				if shared == 0 {
					shared = p.Arenas[device.Shared].Bytes
				}
				// One rank's memory can stand for another's.
				if got := p.Arenas[device.Shared].Bytes; got != shared {
					t.Errorf("%s, %s: rank %d lets others read %d bytes, rank 0 %d", what, s, rank, got, shared)
				}
				if rank == c.rank && p.PeerWindows(c.sharing) != c.peers*shared {
					t.Errorf("%s, %s: rank %d maps %d bytes of others, want %d windows of %d", what, s, rank, p.PeerWindows(c.sharing), c.peers, shared)
				}
			}
			if c.mesh.Size() > 1 && shared == 0 {
				t.Errorf("%s, %s: no rank lets another read anything", what, s)
			}
		}
	}
}
