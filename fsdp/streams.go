package fsdp

import (
	"fmt"
	"slices"
	"sort"

	"github.com/gofsdp/gofsdp/device"
)

// Stream names the queue that a step runs in.
type Stream uint8

// The streams of a rank: gathers and reductions run beside the computation, and
// what is offloaded is fetched and stored with them.
const (
	Computing Stream = iota
	Gathering
	Reducing
	streams
)

func (s Stream) String() string { return [...]string{"compute", "gather", "reduce"}[s] }

// flatten puts the segments in the order in which they are launched: each
// segment's gathers so many segments ahead of their use, everything else in
// place. Run one after the other, the steps do the same in this order as in the
// one before; order keeps it so on several streams.
func (b *builder) flatten() {
	ahead := 0
	for k, seg := range b.segments {
		for ; ahead < len(b.segments) && ahead <= k+b.plan.Prefetch; ahead++ {
			for _, s := range b.segments[ahead].gathers {
				s.Stream = Gathering
				b.prog.Steps = append(b.prog.Steps, s)
			}
		}
		for _, s := range seg.rest {
			if _, fill := s.Op.(*device.Fill); s.Cut == "reduce" && !fill || s.Cut == "store" {
				s.Stream = Reducing
			}
			b.prog.Steps = append(b.prog.Steps, s)
		}
	}
}

// segment is what a unit's turn emits.
type segment struct{ gathers, rest []Step }

// order gives each step of prog the steps of other streams that it has to wait
// for: those that touched the same memory before, where one of the two writes.
// Waiting for a stream's step is waiting for all before it, so of each stream
// the last is enough, and none that is known to be done already.
func (p *Plan) order(prog *Program) {
	t, c := touched{plan: p}, newClocks(len(prog.Steps))
	for i := range prog.Steps {
		s := &prog.Steps[i]
		s.Waits = nil
		for from, j := range t.conflicts(*s) {
			if j > 0 && !c.knows(s.Stream, Stream(from), j) {
				s.Waits = append(s.Waits, j-1)
				c.wait(s.Stream, j-1)
			}
		}
		c.done(i, s.Stream)
		t.touch(i, *s)
	}
}

// verifyWaits makes sure that the steps' waits order all that touches the same
// memory.
func (p *Plan) verifyWaits(prog *Program) error {
	t, c := touched{plan: p}, newClocks(len(prog.Steps))
	for i, s := range prog.Steps {
		for _, w := range s.Waits {
			if w < 0 || w >= i {
				return fmt.Errorf("fsdp: program %s, step %d waits for step %d", prog.Name, i, w)
			}
			c.wait(s.Stream, w)
		}
		for from, j := range t.conflicts(s) {
			if j > 0 && !c.knows(s.Stream, Stream(from), j) {
				return fmt.Errorf("fsdp: program %s, step %d (%s, %s) does not wait for step %d of stream %v, which uses the same memory", prog.Name, i, p.Units[s.Unit].Name, s.Cut, j-1, Stream(from))
			}
		}
		c.done(i, s.Stream)
		t.touch(i, s)
	}
	return nil
}

// clock counts, for each stream, the steps known to be done: 1 + the index of
// the last of them.
type clock [streams]int

// clocks follows what each stream knows.
type clocks struct {
	now  [streams]clock
	then []clock // by step: what its stream knew when it was done
}

func newClocks(steps int) *clocks { return &clocks{then: make([]clock, steps)} }

// knows reports whether on holds that step j−1 of from is done.
func (c *clocks) knows(on, from Stream, j int) bool { return on == from || c.now[on][from] >= j }

// wait lets a stream learn all that step j's stream knew when it was done.
func (c *clocks) wait(on Stream, j int) {
	for s, n := range c.then[j] {
		c.now[on][s] = max(c.now[on][s], n)
	}
}

func (c *clocks) done(i int, on Stream) {
	c.now[on][on] = i + 1
	c.then[i] = c.now[on]
}

// touched remembers which step of each stream was the last to read and to write
// each byte of the arena.
type touched struct {
	plan   *Plan
	pieces []touchedPiece // in the order of addresses, side by side or apart
}

type touchedPiece struct {
	span
	read, written clock // 1 + index, 0: never
}

// conflicts returns for each stream 1 + the index of its last step that step s
// must come after.
func (t *touched) conflicts(s Step) (last clock) {
	for _, o := range device.Operands(s.Op) {
		r := t.plan.span(*o.T)
		for i := t.first(r.from); i < len(t.pieces) && t.pieces[i].from < r.to; i++ {
			for st := range last {
				last[st] = max(last[st], t.pieces[i].written[st])
				if o.Access&device.Write != 0 {
					last[st] = max(last[st], t.pieces[i].read[st])
				}
			}
		}
	}
	return last
}

// touch notes what step i, which is s, reads and writes.
func (t *touched) touch(i int, s Step) {
	for _, o := range device.Operands(s.Op) {
		r := t.plan.span(*o.T)
		if r.from == r.to {
			continue
		}
		t.cut(r.from)
		t.cut(r.to)
		at := t.first(r.from)
		for next := r.from; next < r.to; at++ {
			end := r.to
			if at < len(t.pieces) {
				end = min(end, t.pieces[at].from)
			}
			if end > next { // untouched so far
				t.pieces = slices.Insert(t.pieces, at, touchedPiece{span: span{next, end}})
			}
			piece := &t.pieces[at]
			if o.Access&device.Read != 0 {
				piece.read[s.Stream] = i + 1
			}
			if o.Access&device.Write != 0 {
				piece.written[s.Stream] = i + 1
			}
			next = piece.to
		}
	}
}

// first returns the index of the first piece that ends behind x.
func (t *touched) first(x int64) int {
	return sort.Search(len(t.pieces), func(i int) bool { return t.pieces[i].to > x })
}

// cut splits the piece that x lies in.
func (t *touched) cut(x int64) {
	i := t.first(x)
	if i == len(t.pieces) || t.pieces[i].from >= x {
		return
	}
	left, right := t.pieces[i], t.pieces[i]
	left.to, right.from = x, x
	t.pieces = slices.Replace(t.pieces, i, i+1, left, right)
}
