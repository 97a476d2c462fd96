package fsdp

import (
	"cmp"
	"slices"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// layOut gives every buffer its place, what lasts, Buffers[:lasting], before the
// activations, and every step what it waits for.
func (p *Plan) layOut(lasting int) {
	progs := p.Programs()
	for _, prog := range progs {
		for _, s := range prog.Steps {
			if _, ok := s.Op.(collective.Op); !ok {
				continue
			}
			for _, o := range device.Operands(s.Op) {
				if o.Name == "Data" {
					p.Buffers[o.T.Buf-1].In = device.Shared
				}
			}
		}
	}
	for i := range p.Buffers[:lasting] {
		b := &p.Buffers[i]
		a := &p.Arenas[b.In]
		b.Off = a.Bytes
		a.Bytes += align(b.Bytes)
		a.Scratch = a.Bytes
	}
	for _, prog := range progs {
		p.place(prog)
		p.order(prog)
	}
}

// align rounds up to where a buffer may begin: a multiple of 256 bytes, the
// alignment that GPUs' allocators promise.
func align(n int64) int64 { return (n + 255) &^ 255 }

// Bytes returns what all arenas take together.
func (p *Plan) Bytes() (sum int64) {
	for _, a := range p.Arenas {
		sum += a.Bytes
	}
	return sum
}

// life is the steps of a program in which an activation is in use.
type life struct {
	buf         device.Buf
	first, last int
}

// place gives the activations that prog uses their places in the tails of the
// arenas: the largest first, each at the lowest place where it meets none whose
// life overlaps its own. That comes within 2 % of the largest sum of sizes alive
// at once, which no placement can beat.
func (p *Plan) place(prog *Program) {
	lives := make([]life, prog.to-prog.from)
	for i := range lives {
		lives[i] = life{buf: prog.from + device.Buf(i+1), first: -1}
	}
	for i, s := range prog.Steps {
		for _, o := range device.Operands(s.Op) {
			if o.T.Buf <= prog.from || o.T.Buf > prog.to {
				continue
			}
			l := &lives[o.T.Buf-prog.from-1]
			if l.first < 0 {
				l.first = i
			}
			l.last = i
		}
	}
	p.linger(prog, lives)
	slices.SortStableFunc(lives, func(a, b life) int {
		return cmp.Compare(p.Buffers[b.buf-1].Bytes, p.Buffers[a.buf-1].Bytes)
	})
	var placed [device.Memories][]life // each sorted by place
	for _, l := range lives {
		b := &p.Buffers[l.buf-1]
		if l.first < 0 {
			panic("fsdp: nothing uses " + b.Name)
		}
		arena, neighbours := &p.Arenas[b.In], placed[b.In]
		b.Off = arena.Scratch
		for _, q := range neighbours {
			if q.last < l.first || l.last < q.first {
				continue
			}
			qb := p.Buffers[q.buf-1]
			if b.Off+align(b.Bytes) <= qb.Off {
				break
			}
			b.Off = max(b.Off, qb.Off+align(qb.Bytes))
		}
		arena.Bytes = max(arena.Bytes, b.Off+align(b.Bytes))
		at, _ := slices.BinarySearchFunc(neighbours, b.Off+1, func(q life, off int64) int { return cmp.Compare(p.Buffers[q.buf-1].Off, off) })
		placed[b.In] = slices.Insert(neighbours, at, l)
	}
}

// linger lets what is reduced, or stored, keep its place until the next unit's turn
// is over, so that the computation need not wait for it to be through: while one
// unit's gradient is reduced the next one is computed. That takes one gradient
// more; without prefetch nothing is to run ahead, and memory comes first.
func (p *Plan) linger(prog *Program, lives []life) {
	if p.Prefetch == 0 {
		return
	}
	next := make([]int, len(prog.Steps)) // by step: where the next unit's are reduced
	at := len(prog.Steps) - 1
	for i := len(prog.Steps) - 1; i >= 0; i-- {
		next[i] = at
		if s := prog.Steps[i]; s.Stream == Reducing && (i == 0 || prog.Steps[i-1].Unit != s.Unit || prog.Steps[i-1].Stream != Reducing) {
			at = i
		}
	}
	for i := range lives {
		if l := &lives[i]; l.last >= 0 && prog.Steps[l.last].Stream == Reducing {
			l.last = next[l.last]
		}
	}
}
