package fsdp

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// layOut gives every buffer its place, what lasts before what does not, and every
// step what it waits for.
func (p *Plan) layOut() {
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
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if !b.Lasts {
			continue
		}
		a := &p.Arenas[b.In]
		b.Off = a.Bytes
		a.Bytes += align(b.Bytes)
		a.Scratch = a.Bytes
	}
	p.place()
	for _, prog := range progs {
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

// Apart returns what the arenas take of the device's memory and of the host's,
// where those are two.
func (p *Plan) Apart() (own, host int64) {
	host = p.Arenas[device.Pinned].Bytes
	return p.Bytes() - host, host
}

// life is a buffer that does not last, and the steps in which it is in use,
// counted over all programs one after the other.
type life struct {
	buf         device.Buf
	first, last int
	bytes, off  int64 // rounded up; from the tail's start
}

// lives returns those of all buffers that do not last, by arena. An activation's
// lies within a program; a gradient's spans those from the micro-batch that writes
// it to the update.
func (p *Plan) lives() (lists [device.Memories][]life) {
	of, at := make([]life, len(p.Buffers)), 0
	for _, prog := range p.Programs() {
		until := p.linger(prog)
		for i, s := range prog.Steps {
			for _, o := range device.Operands(s.Op) {
				l := &of[o.T.Buf-1]
				if l.buf == 0 {
					l.buf, l.first = o.T.Buf, at+i
				}
				l.last = at + until[i]
			}
		}
		at += len(prog.Steps)
	}
	for i, b := range p.Buffers {
		if b.Lasts {
			continue
		}
		if of[i].buf == 0 {
			panic("fsdp: nothing uses " + b.Name)
		}
		of[i].bytes = align(b.Bytes)
		lists[b.In] = append(lists[b.In], of[i])
	}
	return lists
}

// place gives what does not last its place in the tails of the arenas, within 2 %
// of the largest sum of sizes alive at once, which no placement can beat. The
// largest first comes so near where lives are short. Beside gradients, which stay
// while activations go, it helps to begin with what is large for long, and with
// what reached highest the times before.
func (p *Plan) place() {
	bySize := func(a, b life) int { return cmp.Compare(b.bytes, a.bytes) }
	byArea := func(a, b life) int {
		return cmp.Compare(b.bytes*int64(b.last-b.first+1), a.bytes*int64(a.last-a.first+1))
	}
	const tries = 64
	for m, lives := range p.lives() {
		if len(lives) == 0 {
			continue
		}
		var best []life
		least, goal := int64(math.MaxInt64), mostAlive(lives)*102/100
		for _, order := range []func(a, b life) int{bySize, byArea} {
			list := slices.Clone(lives)
			slices.SortStableFunc(list, order)
			for try := 0; try < tries && least > goal; try++ {
				height, highest := stack(list)
				if height < least {
					least, best = height, slices.Clone(list)
				}
				top := list[highest]
				copy(list[1:highest+1], list[:highest])
				list[0] = top
			}
		}
		a := &p.Arenas[m]
		a.Bytes = a.Scratch + least
		for _, l := range best {
			p.Buffers[l.buf-1].Off = a.Scratch + l.off
		}
	}
}

// mostAlive returns the largest sum of sizes at one step.
func mostAlive(lives []life) (most int64) {
	change := map[int]int64{}
	for _, l := range lives {
		change[l.first] += l.bytes
		change[l.last+1] -= l.bytes
	}
	var now int64
	for _, at := range slices.Sorted(maps.Keys(change)) {
		now += change[at]
		most = max(most, now)
	}
	return most
}

// stack gives each life in turn the lowest place where it meets none whose steps
// overlap its own. It returns how high that is, and which reaches there.
func stack(lives []life) (height int64, highest int) {
	placed := make([]life, 0, len(lives)) // sorted by place
	for i := range lives {
		l := &lives[i]
		l.off = 0
		for _, q := range placed {
			if q.last < l.first || l.last < q.first {
				continue
			}
			if l.off+l.bytes <= q.off {
				break
			}
			l.off = max(l.off, q.off+q.bytes)
		}
		if top := l.off + l.bytes; top > height {
			height, highest = top, i
		}
		at, _ := slices.BinarySearchFunc(placed, l.off+1, func(q life, off int64) int { return cmp.Compare(q.off, off) })
		placed = slices.Insert(placed, at, *l)
	}
	return height, highest
}

// linger returns, for each step, until which one what it is the last to use keeps
// its place. What is reduced, or stored, does so until the next unit's turn is
// over, so that the computation need not wait for it to be through: while one
// unit's gradient is reduced the next one is computed. That takes one gradient
// more; without prefetch nothing is to run ahead, and memory comes first.
func (p *Plan) linger(prog *Program) []int {
	until := make([]int, len(prog.Steps))
	at := len(prog.Steps) - 1 // where the next unit's are reduced
	for i := len(prog.Steps) - 1; i >= 0; i-- {
		until[i] = i
		s := prog.Steps[i]
		if p.Prefetch == 0 || s.Stream != Reducing {
			continue
		}
		until[i] = at
		if i == 0 || prog.Steps[i-1].Unit != s.Unit || prog.Steps[i-1].Stream != Reducing {
			at = i
		}
	}
	return until
}
