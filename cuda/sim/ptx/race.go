package ptx

import (
	"fmt"
	"math"
	"math/bits"
)

// touch says how an instruction accesses memory.
type touch uint8

const (
	reads   touch = iota
	writes        // stores
	changes       // atomic operations, which may meet each other
	copies        // cp.async, which writes at any time until its lane has waited for it
	touches
)

// String completes "which lane 3 has".
func (t touch) String() string {
	return [...]string{"read", "written", "changed", "begun to write asynchronously"}[t]
}

// meets says, for each touch, which others of the same bytes it must have an order with.
var meets = [touches][touches]bool{
	reads:   {writes: true, changes: true, copies: true},
	writes:  {reads: true, writes: true, changes: true, copies: true},
	changes: {reads: true, writes: true, copies: true},
	copies:  {reads: true, writes: true, changes: true, copies: true},
}

// races finds accesses of two threads to the same bytes, not both of them reads, that no barrier puts in order,
// whatever order they had in this run. What is before what is the manual's "causality order", as far as
// barriers make it: a barrier of a block orders all that its threads have done and will do, bar.warp.sync
// orders what the lanes of its mask do. Shuffles, votes and matrix instructions order registers and no memory.
// Blocks of a launch have no order. Each word of four bytes has a list of those accesses that a later one may
// need an order with, as in Flanagan and Freund, "FastTrack" (PLDI 2009).
type races struct {
	kernel  *Kernel
	block   uint32 // which of those that have run, from 1
	clocks  []clocks
	records []record // of the block; 0 ends a list
	free    int32    // a list of records that are no longer needed
	shared  []cell
	global  map[*Region][]cell
}

// clocks are the times that a warp knows of, its own among them. What a warp did in an epoch that another knows
// of is done, for that one. Within a warp, ticks are the same between lanes.
type clocks struct {
	epochs [32]uint32     // of warps: an own one ends at a barrier of the block
	ticks  [32][32]uint32 // of lanes, as each lane knows them: an own one ends at a barrier of the warp
}

// never is when a copy ends that nobody has waited for.
const never = math.MaxUint32

// record is an access of lanes of one warp.
type record struct {
	next        int32
	pc          int32
	lanes       uint32
	epoch, tick uint32
	warp        uint8
	bytes       uint8 // of the word, a bit each
	how         touch
}

// cell is what is known of a word.
type cell struct {
	block        uint32 // whose records and now are
	list         int32
	now          [touches]uint8 // bytes that this block has accessed
	before       [touches]uint8 // bytes that others have, which have ended
	pc, beforePC [touches]int32 // the last to do so
}

func newRaces(b *block) *races {
	return &races{
		kernel: b.kernel, clocks: make([]clocks, len(b.warps)), records: make([]record, 1),
		shared: make([]cell, (len(b.memoryOf)+3)/4), global: map[*Region][]cell{},
	}
}

// begin begins another block.
func (r *races) begin() {
	r.block++
	r.records, r.free = r.records[:1], 0
	for i := range r.clocks {
		c := &r.clocks[i]
		*c = clocks{}
		c.epochs[i] = 1
		for lane := range c.ticks {
			c.ticks[lane][lane] = 1
		}
	}
}

// arrive gives a barrier the times that a warp knows. What the warp does from now on is not before those that leave.
func (r *races) arrive(w int, m *meeting) {
	c := &r.clocks[w]
	for i, e := range c.epochs {
		m.epochs[i] = max(m.epochs[i], e)
	}
	c.epochs[w]++
}

// leave gives a warp that has waited at a barrier the times that were brought there.
func (r *races) leave(w *warp, m *meeting) {
	c := &r.clocks[w.index]
	for i, e := range m.epochs {
		c.epochs[i] = max(c.epochs[i], e)
	}
	r.together(w.index, w.exists)
}

// together is a barrier of lanes of a warp.
func (r *races) together(w int, lanes uint32) {
	c := &r.clocks[w]
	var all [32]uint32
	for m := lanes; m != 0; m &= m - 1 {
		for i, t := range &c.ticks[bits.TrailingZeros32(m)] {
			all[i] = max(all[i], t)
		}
	}
	for m := lanes; m != 0; m &= m - 1 {
		lane := bits.TrailingZeros32(m)
		c.ticks[lane] = all
		c.ticks[lane][lane]++
	}
}

// isBefore says whether an access is before all that a lane does now.
func (r *races) isBefore(a *record, w int, lane int) bool {
	if int(a.warp) != w {
		return r.clocks[w].epochs[a.warp] >= a.epoch
	}
	if a.tick == never {
		return false
	}
	known := &r.clocks[w].ticks[lane]
	for m := a.lanes &^ (1 << lane); m != 0; m &= m - 1 {
		if known[bits.TrailingZeros32(m)] < a.tick {
			return false
		}
	}
	return true
}

// sharedAccess notes what the lanes of m access in shared memory, and reports whether all of it has an order.
func (r *races) sharedAccess(w *warp, m uint32, size uint64, how touch) bool {
	for ; m != 0; m &= m - 1 {
		lane := bits.TrailingZeros32(m)
		off := w.aside64[lane] - sharedStart
		if !r.access(w, lane, r.shared, false, off, size, how, "shared memory") {
			return false
		}
	}
	return true
}

// globalAccess is sharedAccess' sister.
func (r *races) globalAccess(w *warp, m uint32, size uint64, how touch) bool {
	for ; m != 0; m &= m - 1 {
		lane := bits.TrailingZeros32(m)
		v := w.aside64[lane]
		region := w.region(lane, v, size, how != reads)
		if region == nil {
			return false
		}
		cells := r.global[region]
		if cells == nil {
			cells = make([]cell, (len(region.Bytes)+3)/4)
			r.global[region] = cells
		}
		if !r.access(w, lane, cells, true, v-region.Base, size, how, region.Name) {
			return false
		}
	}
	return true
}

// access notes one lane's access.
func (r *races) access(w *warp, lane int, cells []cell, shows bool, off, size uint64, how touch, place string) bool {
	for end := off + size; off < end; {
		n := min(4-off%4, end-off)
		b := uint8(1<<n-1) << (off % 4)
		c := &cells[off/4]
		if c.block != r.block {
			for t := range c.now {
				if shows && c.now[t] != 0 {
					c.before[t] |= c.now[t]
					c.beforePC[t] = c.pc[t]
				}
			}
			c.block, c.list, c.now = r.block, 0, [touches]uint8{}
		}
		for t := range touches {
			if c.before[t]&b != 0 && meets[how][t] {
				r.report(w, lane, how, off, n, place, fmt.Sprintf("another block has %v", t), c.beforePC[t], "blocks have no order")
				return false
			}
		}
		if a := r.word(c, w, lane, b, how); a != nil {
			who, between := "the lane itself", "nothing has waited for that"
			switch {
			case int(a.warp) != w.index:
				who = fmt.Sprintf("warp %d lane %d", a.warp, bits.TrailingZeros32(a.lanes))
				between = "no barrier is between them"
			case a.lanes != 1<<lane:
				who = fmt.Sprintf("lane %d", bits.TrailingZeros32(a.lanes&^(1<<lane)))
				between = "no barrier is between them"
			}
			r.report(w, lane, how, off, n, place, fmt.Sprintf("%s has %v", who, a.how), a.pc, between)
			return false
		}
		c.now[how] |= b
		c.pc[how] = w.pc
		off += n
	}
	return true
}

func (r *races) report(w *warp, lane int, how touch, off, n uint64, place, who string, pc int32, why string) {
	at := r.kernel.fault(pc, Race, "")
	source := at.Source
	if source != "" {
		source = " (" + source + ")"
	}
	doing := [...]string{"reads", "writes", "changes", "copies"}[how]
	w.fail(Race, lane, "lane %d %s %d bytes of %s at offset %d, which %s in line %d%s, %s: %s",
		lane, doing, n, place, off, who, at.Line, source, at.Text, why)
}

// word adds an access to the list of a word, and returns one of it that has no order with it.
func (r *races) word(c *cell, w *warp, lane int, b uint8, how touch) *record {
	t := &r.clocks[w.index]
	now := record{
		pc: w.pc, lanes: 1 << lane, epoch: t.epochs[w.index], tick: t.ticks[lane][lane], warp: uint8(w.index), bytes: b, how: how,
	}
	if how == copies {
		now.epoch, now.tick = never, never
	}
	var same *record
	for link := &c.list; *link != 0; {
		at := *link
		a := &r.records[at]
		if a.bytes&b == 0 {
			link = &a.next
			continue
		}
		before := r.isBefore(a, w.index, lane)
		switch {
		case !before && meets[how][a.how]:
			return a
		case a.warp == now.warp && a.how == how && a.epoch == now.epoch && a.tick == now.tick && a.bytes == b:
			same = a
		case before && a.bytes&^b == 0 && (how == writes || how == copies || how == a.how):
			// Whatever needs an order with a needs one with this access, too.
			*link = a.next
			a.next, r.free = r.free, at
			continue
		}
		link = &a.next
	}
	if same != nil {
		same.lanes |= now.lanes
		return nil
	}
	now.next = c.list
	at := r.free
	if at != 0 {
		r.free = r.records[at].next
		r.records[at] = now
	} else {
		at = int32(len(r.records))
		r.records = append(r.records, now)
	}
	c.list = at
	return nil
}

// landed turns a lane's asynchronous copy, which it has now waited for, into what it has written now.
func (r *races) landed(w *warp, copied *asyncCopy) {
	t := &r.clocks[w.index]
	for word := copied.at / 4; word < (copied.at+uint32(copied.size))/4; word++ {
		for at := r.shared[word].list; at != 0; at = r.records[at].next {
			if a := &r.records[at]; a.how == copies && int(a.warp) == w.index && a.lanes == 1<<copied.lane {
				a.how, a.epoch, a.tick = writes, t.epochs[w.index], t.ticks[copied.lane][copied.lane]
			}
		}
	}
}
