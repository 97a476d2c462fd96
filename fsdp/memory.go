package fsdp

import "github.com/gofsdp/gofsdp/device"

// MemoryRow is one line of the plan's memory table.
type MemoryRow struct {
	Kind  Kind
	Bytes int64
}

// Memory returns the arena by kind, in the order in which it is laid out. The
// rows add up to Arena.
func (p *Plan) Memory() []MemoryRow {
	var rows []MemoryRow
	for _, k := range []Kind{Parameters, ComputeCopy, Gradients, Moments, InputKind, Tables, Outputs, Caches} {
		var n int64
		for _, b := range p.Buffers {
			if b.Kind == k {
				n += align(b.Bytes)
			}
		}
		if n > 0 {
			rows = append(rows, MemoryRow{k, n})
		}
	}
	if n := p.Arena - p.Scratch; n > 0 {
		rows = append(rows, MemoryRow{Activations, n})
	}
	return rows
}

// Kinds counts the operations of a program by name, in order of first use.
func (p *Program) Kinds() (names []string, counts map[string]int, cost device.Cost) {
	counts = map[string]int{}
	for _, s := range p.Steps {
		n := device.Name(s.Op)
		if counts[n] == 0 {
			names = append(names, n)
		}
		counts[n]++
		c := s.Op.Cost()
		cost.FLOPs += c.FLOPs
		cost.Bytes += c.Bytes
	}
	return names, counts, cost
}
