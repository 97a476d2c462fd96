package ptx

import (
	"cmp"
	"slices"
)

// interval is the stretch of instructions over which a register holds a value
// that is still to be read.
type interval struct {
	reg        *register
	from, upto int
	refs       []*int32
}

// assign gives registers slots. PTX uses each register once; few hold a value at
// any one place, and the fewer slots, the more of them stay in the processor's
// cache. Liveness is by basic block, slots by a scan over the intervals.
func (d *decoder) assign() {
	ids := map[*register]int{}
	var all []interval
	for at, refs := range d.refs {
		for _, r := range refs {
			if r.reg.pinned {
				*r.field = r.reg.slot
				continue
			}
			id, ok := ids[r.reg]
			if !ok {
				id = len(all)
				ids[r.reg] = id
				all = append(all, interval{reg: r.reg, from: at, upto: at})
			}
			iv := &all[id]
			iv.from, iv.upto = min(iv.from, at), max(iv.upto, at)
			iv.refs = append(iv.refs, r.field)
		}
	}
	d.extend(all, ids)
	for c := range d.kernel.regs {
		d.kernel.regs[c] = len(d.pinned[c])
	}
	slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	var free [3][]int32
	var active []*interval
	for i := range all {
		iv := &all[i]
		active = slices.DeleteFunc(active, func(a *interval) bool {
			// A register read last where another is written first does not share
			// its slot: an instruction may write before it has read all.
			if a.upto >= iv.from {
				return false
			}
			free[a.reg.class] = append(free[a.reg.class], a.reg.slot)
			return true
		})
		c := iv.reg.class
		if m := len(free[c]); m > 0 {
			iv.reg.slot = free[c][m-1]
			free[c] = free[c][:m-1]
		} else {
			iv.reg.slot = int32(d.kernel.regs[c])
			d.kernel.regs[c]++
		}
		active = append(active, iv)
		for _, f := range iv.refs {
			*f = iv.reg.slot
		}
	}
}

// basicBlock is a stretch of instructions without jumps in or out.
type basicBlock struct {
	from, to int // instructions
	next     []int
	use, def []uint64 // registers that are read before they are written, and that are written for all lanes
	in, out  []uint64 // registers that are live where it begins and ends
}

// extend stretches intervals over the blocks at whose ends registers are live.
func (d *decoder) extend(all []interval, ids map[*register]int) {
	n := len(d.code)
	starts := map[int]bool{0: true, n: true}
	for at := range d.code {
		in := &d.code[at]
		if in.control == jump {
			if in.target >= 0 {
				starts[int(in.target)] = true
			}
			for _, t := range in.vec {
				starts[int(t)] = true
			}
		}
		if in.control == jump || in.control == leave {
			starts[at+1] = true
		}
	}
	var order []int
	for at := range starts {
		order = append(order, at)
	}
	slices.Sort(order)
	words := (len(all) + 63) / 64
	blocks := make([]basicBlock, len(order)-1)
	for i := range blocks {
		b := &blocks[i]
		b.from, b.to = order[i], order[i+1]
		bits := make([]uint64, 4*words)
		b.use, b.def, b.in, b.out = bits[:words], bits[words:2*words], bits[2*words:3*words], bits[3*words:]
		for at := b.from; at < b.to; at++ {
			for _, r := range d.refs[at] {
				if id, ok := ids[r.reg]; ok && !r.def && b.def[id/64]>>(id%64)&1 == 0 {
					b.use[id/64] |= 1 << (id % 64)
				}
			}
			for _, r := range d.refs[at] {
				if id, ok := ids[r.reg]; ok && r.def {
					if !d.code[at].guarded {
						b.def[id/64] |= 1 << (id % 64)
					} else if b.def[id/64]>>(id%64)&1 == 0 {
						b.use[id/64] |= 1 << (id % 64) // lanes that do not write keep what was there
					}
				}
			}
		}
		last := &d.code[b.to-1]
		if last.control == jump {
			targets := last.vec
			if len(targets) == 0 {
				targets = []int32{last.target}
			}
			for _, t := range targets {
				j, _ := slices.BinarySearch(order, int(t))
				b.next = append(b.next, j)
			}
		}
		if !(last.control == jump || last.control == leave) || last.guarded {
			b.next = append(b.next, i+1)
		}
	}
	for changed := true; changed; {
		changed = false
		for i := len(blocks) - 1; i >= 0; i-- {
			b := &blocks[i]
			for _, j := range b.next {
				if j < len(blocks) {
					for k, v := range blocks[j].in {
						b.out[k] |= v
					}
				}
			}
			for k := range b.in {
				v := b.use[k] | b.out[k]&^b.def[k]
				if v != b.in[k] {
					b.in[k] = v
					changed = true
				}
			}
		}
	}
	for i := range blocks {
		b := &blocks[i]
		for id := range all {
			if b.in[id/64]>>(id%64)&1 != 0 {
				all[id].from = min(all[id].from, b.from)
				all[id].upto = max(all[id].upto, b.from)
			}
			if b.out[id/64]>>(id%64)&1 != 0 {
				all[id].from = min(all[id].from, b.to-1)
				all[id].upto = max(all[id].upto, b.to-1)
			}
		}
	}
}
