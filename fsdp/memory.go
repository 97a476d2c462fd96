package fsdp

import (
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// MemoryRow is one line of the plan's memory table.
type MemoryRow struct {
	Kind  Kind
	Bytes int64
	Host  bool // offloaded: in the host's memory
}

// Memory returns the arenas by kind, in the order in which they are laid out. The
// rows add up to Bytes; of what shares the tails there is one.
func (p *Plan) Memory() []MemoryRow {
	var rows []MemoryRow
	for _, k := range []Kind{Parameters, ComputeCopy, Gradients, Moments, Inputs, Tables, Outputs, Caches, Mailbox} {
		var n int64
		var host bool
		for _, b := range p.Buffers {
			if b.Kind == k && b.Lasts {
				n += align(b.Bytes)
				host = b.In == device.Pinned // all of a kind lie together, or apart as ranks read them
			}
		}
		if n > 0 {
			rows = append(rows, MemoryRow{k, n, host})
		}
	}
	var scratch int64
	for _, a := range p.Arenas {
		scratch += a.Bytes - a.Scratch
	}
	if scratch > 0 {
		kind := Activations
		if p.Train && !p.accumulates() {
			kind = Sharing
		}
		rows = append(rows, MemoryRow{kind, scratch, false})
	}
	return rows
}

// PeerWindows returns how much of other ranks' memory this rank's process maps
// where so many ranks in a row share it, as those of a node do: all that the
// others of its groups let be read. It is theirs, and is there once; but the
// system counts what a process has read of it with that process, too.
func (p *Plan) PeerWindows(sharing int) int64 {
	var peers []int
	for _, g := range p.Mesh.Groups() {
		if !slices.Contains(g, p.Rank) {
			continue
		}
		for _, r := range g {
			if r != p.Rank && r/sharing == p.Rank/sharing && !slices.Contains(peers, r) {
				peers = append(peers, r)
			}
		}
	}
	return int64(len(peers)) * p.Arenas[device.Shared].Bytes
}

// Cost returns the work of all operations.
func (p *Program) Cost() (sum device.Cost) {
	for _, s := range p.Steps {
		c := s.Op.Cost()
		sum.FLOPs += c.FLOPs
		sum.Bytes += c.Bytes
	}
	return sum
}
