package ptx

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// group is a set of lanes at the same instruction.
type group struct {
	pc     int32
	lanes  uint32
	parked bool // waits for lanes that execute its instruction with it
}

// warp is 32 lanes of a block.
//
// Lanes that part at a branch become groups. The group at the least instruction
// runs, until it reaches one where another waits; there they are one again. So
// code that the compiler lays out with the join after both sides joins as early
// as it can. A group that comes to an instruction which more lanes must execute
// together parks there, and the others run on until they come, too.
type warp struct {
	r32             []slot32
	r64             []slot64
	p               []uint32
	aside32         slot32
	aside64         slot64
	block           *block
	index           int
	exists          uint32 // lanes that are threads of the block
	done            uint32 // lanes that have returned
	groups          []group
	meeting         int // the barrier that the whole warp waits at; -1: none
	pc              int32
	steps           int64
	laneSteps, mmas int64
	read, written   int64 // bytes of global memory
	fault           *Fault
	async           asyncQueue
	local           []byte
	reducing        *inst // the bar.red that the warp waits at
	address         [32]*byte
	fragments       fragments
	recent          [4]*Region // most recently used first
}

const noMeeting = -1

// start makes the warp ready for a block.
func (w *warp) start() {
	w.groups = append(w.groups[:0], group{lanes: w.exists})
	w.done = 0
	w.meeting = noMeeting
	w.fault, w.reducing = nil, nil
	w.steps, w.laneSteps, w.mmas, w.read, w.written = 0, 0, 0, 0, 0
	w.async.reset()
}

func (w *warp) ended() bool { return w.done == w.exists }

// run executes the warp until it ends, waits at a barrier, fails, or has
// executed about as many instructions as given.
func (w *warp) run(slice int64) {
	end := int64(math.MaxInt64)
	if slice > 0 {
		end = w.steps + slice
	}
	limit := w.block.limit
	for {
		g := w.pick()
		if g < 0 {
			return
		}
		w.lanes(g, min(end, limit))
		if w.fault != nil || w.meeting != noMeeting || w.ended() {
			return
		}
		if w.steps >= limit {
			w.pc = w.groups[0].pc
			w.fail(Endless, bits.TrailingZeros32(w.groups[0].lanes), "the warp has executed %d instructions and has not ended", w.steps)
			return
		}
		if w.steps >= end {
			return
		}
	}
}

// pick returns the group that runs next, -1 if none can: then it is a fault.
func (w *warp) pick() int {
	best := -1
	for i := range w.groups {
		if !w.groups[i].parked && (best < 0 || w.groups[i].pc < w.groups[best].pc) {
			best = i
		}
	}
	if best >= 0 {
		return best
	}
	slices.SortFunc(w.groups, func(a, b group) int { return int(a.pc - b.pc) })
	g := w.groups[0]
	w.pc = g.pc
	what := fmt.Sprintf("lanes %08x wait for the others of the warp", g.lanes)
	for _, o := range w.groups[1:] {
		s := &w.block.kernel.places[o.pc]
		what += fmt.Sprintf("; lanes %08x are at line %d: %s", o.lanes, s.line, s.text)
	}
	if w.done != 0 {
		what += fmt.Sprintf("; lanes %08x have returned", w.done)
	}
	w.fail(Divergent, bits.TrailingZeros32(g.lanes), "%s", what)
	return -1
}

// lanes runs group g until it parts, joins, parks or ends.
func (w *warp) lanes(g int, end int64) {
	code := w.block.kernel.code
	pc, m := w.groups[g].pc, w.groups[g].lanes
	join := int32(math.MaxInt32) // where another group is
	for i := range w.groups {
		if o := &w.groups[i]; i != g {
			if o.pc == pc {
				m |= o.lanes
			} else if o.pc > pc {
				join = min(join, o.pc)
			}
		}
	}
	if m != w.groups[g].lanes {
		w.groups = slices.DeleteFunc(w.groups, func(o group) bool { return o.pc == pc })
		w.groups = append(w.groups, group{pc: pc, lanes: m})
		g = len(w.groups) - 1
	}
	count := bits.OnesCount32(m)
	covered := w.block.launch.Covered
	for {
		in := &code[pc]
		if covered != nil {
			covered[w.block.kernel.places[pc].line-1] = true
		}
		active := m
		if in.guarded {
			active &= w.p[in.guard] ^ in.flip
		}
		w.steps++
		w.laneSteps += int64(count)
		switch in.control {
		case compute:
			if active != 0 {
				w.pc = pc
				in.run(w, in, active)
				if w.fault != nil {
					return
				}
			}
			pc++
		case jump:
			switch {
			case active == 0:
				pc++
			case active == m && in.target >= 0:
				pc = in.target
			default:
				w.part(g, pc, in, active)
				return
			}
			if len(w.groups) == 1 && w.steps < end {
				continue
			}
			w.groups[g].pc = pc
			return
		case leave:
			w.done |= active
			if rest := m &^ active; rest != 0 {
				w.groups[g] = group{pc: pc + 1, lanes: rest}
			} else {
				w.groups = slices.Delete(w.groups, g, g+1)
			}
			return
		default:
			if active == 0 {
				pc++
				break
			}
			w.pc = pc
			if rest := m &^ active; rest != 0 {
				w.groups[g].lanes = rest
				w.groups[g].pc = pc + 1
				w.groups = append(w.groups, group{pc: pc, lanes: active})
				g, m = len(w.groups)-1, active
				w.converge(g, in)
				return
			}
			w.groups[g].pc = pc
			if !w.converge(g, in) {
				return
			}
			pc++
		}
		if pc >= join || w.steps >= end {
			w.groups[g].pc = pc
			return
		}
	}
}

// part splits a group at a branch. Active lanes jump.
func (w *warp) part(g int, pc int32, in *inst, active uint32) {
	m := w.groups[g].lanes
	w.groups = slices.Delete(w.groups, g, g+1)
	if rest := m &^ active; rest != 0 {
		w.groups = append(w.groups, group{pc: pc + 1, lanes: rest})
	}
	if in.target >= 0 {
		w.groups = append(w.groups, group{pc: in.target, lanes: active})
		return
	}
	w.pc = pc
	index := &w.r32[in.a]
	for active != 0 {
		i := bits.TrailingZeros32(active)
		if index[i] >= uint32(len(in.vec)) {
			w.fail(Undefined, i, "index %d of %d branch targets", index[i], len(in.vec))
			return
		}
		var same uint32
		for j := i; j < 32; j++ {
			if active>>j&1 != 0 && index[j] == index[i] {
				same |= 1 << j
			}
		}
		w.groups = append(w.groups, group{pc: in.vec[index[i]], lanes: same})
		active &^= same
	}
}

// converge executes an instruction that lanes execute together, if those that
// must are all here, and reports whether the group goes on with the next one.
func (w *warp) converge(g int, in *inst) bool {
	m := w.groups[g].lanes
	switch in.control {
	case together:
		if m != w.exists {
			w.groups[g].parked = true
			return false
		}
		in.run(w, in, m)
		w.groups[g].pc++
		return w.fault == nil
	case barrier:
		if m != w.exists {
			w.groups[g].parked = true
			return false
		}
		in.run(w, in, m)
		w.groups[g].pc++
		return w.fault == nil && w.meeting == noMeeting
	}
	// Lanes may name different members: each set is on its own.
	mask := &w.r32[in.e]
	var went uint32
	for left := m; left != 0; {
		i := bits.TrailingZeros32(left)
		var same uint32
		for j := i; j < 32; j++ {
			if left>>j&1 != 0 && mask[j] == mask[i] {
				same |= 1 << j
			}
		}
		left &^= same
		if outside := same &^ mask[i]; outside != 0 {
			w.fail(Divergent, bits.TrailingZeros32(outside), "lanes %08x execute it and are not in its mask %08x", outside, mask[i])
			return false
		}
		if mask[i]&w.exists == same {
			in.run(w, in, same)
			if w.fault != nil {
				return false
			}
			went |= same
		}
	}
	if went == m {
		w.groups[g].pc++
		return true
	}
	pc := w.groups[g].pc
	w.groups[g] = group{pc: pc, lanes: m &^ went, parked: true}
	if went != 0 {
		w.groups = append(w.groups, group{pc: pc + 1, lanes: went})
	}
	return false
}

// fail notes a fault of the instruction at w.pc. The first one counts.
func (w *warp) fail(kind Kind, lane int, format string, args ...any) {
	if w.fault != nil {
		return
	}
	w.fault = w.block.kernel.fault(w.pc, kind, fmt.Sprintf(format, args...))
	w.fault.Block, w.fault.Warp, w.fault.Lane = w.block.at, w.index, lane
}

// fault describes a fault at an instruction.
func (k *Kernel) fault(pc int32, kind Kind, what string) *Fault {
	f := &Fault{Kernel: k.Name, Module: k.module.Name, Kind: kind, What: what}
	if int(pc) < len(k.places) {
		s := &k.places[pc]
		f.Line, f.Text = s.line, s.text
		if name := k.files[s.loc.file]; name != "" {
			f.Source = fmt.Sprintf("%s:%d", name, s.loc.line)
		}
	}
	return f
}
