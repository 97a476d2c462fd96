package fsdp

import (
	"cmp"
	"fmt"
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
// meets none whose life overlaps its own. That is within a few per cent of the
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

// span is a range of bytes of the arena.
type span struct{ from, to int64 }

// verify executes prog on a shadow of the arena that remembers, for each
// activation, which of its bytes were written and not overwritten since by
// another buffer. Every read must find what it reads; so an operation out of
// order and two lives at one address are both found, by other means than place
// used.
func (p *Plan) verify(prog *Program) error {
	valid := map[device.Buf][]span{}
	for i, s := range prog.Steps {
		where := func(o device.Operand) string {
			return fmt.Sprintf("fsdp: program %s, step %d (%s, %s, %s)", prog.Name, i, p.Units[s.Unit].Name, s.Cut, device.Name(s.Op)+"."+o.Name)
		}
		operands := device.Operands(s.Op)
		for _, o := range operands {
			if o.T.Buf < 1 || int(o.T.Buf) > len(p.Buffers) {
				return fmt.Errorf("%s: no buffer %d", where(o), o.T.Buf)
			}
			b := p.Buffers[o.T.Buf-1]
			if o.T.Off < 0 || o.T.Off+o.T.Bytes() > b.Bytes || b.Off+b.Bytes > p.Arena {
				return fmt.Errorf("%s: outside of %s", where(o), b.Name)
			}
			r := span{b.Off + o.T.Off, b.Off + o.T.Off + o.T.Bytes()}
			if b.Kind == Activations && o.Access&device.Read != 0 && !covers(valid[o.T.Buf], r) {
				return fmt.Errorf("%s reads %s, which was not written, or was overwritten since", where(o), b.Name)
			}
		}
		for _, o := range operands {
			b := p.Buffers[o.T.Buf-1]
			if o.Access&device.Write == 0 {
				continue
			}
			r := span{b.Off + o.T.Off, b.Off + o.T.Off + o.T.Bytes()}
			for other, spans := range valid {
				if other != o.T.Buf {
					valid[other] = cut(spans, r)
				}
			}
			if b.Kind == Activations {
				valid[o.T.Buf] = append(cut(valid[o.T.Buf], r), r)
			} else if r.to > p.Scratch {
				return fmt.Errorf("%s: %s lies in the activations' memory", where(o), b.Name)
			}
		}
	}
	return nil
}

// covers reports whether the spans, which do not overlap, hold all of r.
func covers(spans []span, r span) bool {
	need := r.to - r.from
	for _, s := range spans {
		need -= max(0, min(s.to, r.to)-max(s.from, r.from))
	}
	return need == 0
}

// cut removes r from the spans.
func cut(spans []span, r span) []span {
	kept := spans[:0:0]
	for _, s := range spans {
		if s.to <= r.from || s.from >= r.to {
			kept = append(kept, s)
			continue
		}
		if s.from < r.from {
			kept = append(kept, span{s.from, r.from})
		}
		if s.to > r.to {
			kept = append(kept, span{r.to, s.to})
		}
	}
	return kept
}
