package ptx

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

var controlDecoders = map[string]func(d *decoder, in *inst) error{
	"bra": decodeBranch, "brx": decodeIndexed, ".branchtargets": func(*decoder, *inst) error { return nil }, "ret": decodeLeave, "exit": decodeLeave, "trap": decodeTrap,
	"bar": decodeBarrier, "barrier": decodeBarrier, "nanosleep": decodeNothing,
}

func decodeBranch(d *decoder, in *inst) error {
	if err := d.only("uni"); err != nil {
		return err
	}
	if err := d.count(1); err != nil {
		return err
	}
	to := d.s.args[0]
	at, ok := d.s.scope.label(to.name)
	if to.kind != operandSymbol || !ok {
		return fmt.Errorf("no label %s", to.name)
	}
	in.control, in.target = jump, int32(at)
	return nil
}

// decodeIndexed decodes brx.idx, a branch to one of a list of labels.
func decodeIndexed(d *decoder, in *inst) error {
	if err := d.only("idx", "uni"); err != nil {
		return err
	}
	if err := d.count(2); err != nil {
		return err
	}
	list := d.s.args[1]
	at, ok := d.s.scope.label(list.name)
	if list.kind != operandSymbol || !ok || at >= len(d.statements) || d.statements[at].op != ".branchtargets" {
		return fmt.Errorf("no list of targets %s", list.name)
	}
	for _, to := range d.statements[at].args {
		target, ok := d.s.scope.label(to.name)
		if !ok {
			return fmt.Errorf("no label %s", to.name)
		}
		in.vec = append(in.vec, int32(target))
	}
	in.control, in.target = jump, -1
	return d.source(&in.a, d.s.args[0], 32)
}

func decodeLeave(d *decoder, in *inst) error {
	if err := d.only("uni"); err != nil {
		return err
	}
	in.control = leave
	return d.count(0)
}

func decodeTrap(d *decoder, in *inst) error {
	in.run = func(w *warp, _ *inst, m uint32) {
		w.fail(Undefined, bits.TrailingZeros32(m), "lanes %08x stop the kernel", m)
	}
	return d.count(0)
}

func decodeNothing(d *decoder, in *inst) error {
	return d.only("u32")
}

// What a bar.red combines.
const (
	reduceNothing int32 = iota
	reduceCount
	reduceAnd
	reduceOr
)

// decodeBarrier decodes the barriers of a block, and bar.warp.sync.
func decodeBarrier(d *decoder, in *inst) error {
	s := d.s
	mods := slices.DeleteFunc(slices.Clone(s.mods), func(m string) bool { return m == "aligned" || m == "cta" })
	form := strings.Join(mods, ".")
	args := s.args
	switch form {
	case "warp.sync":
		if err := d.count(1); err != nil {
			return err
		}
		in.control = members
		in.run = func(w *warp, _ *inst, m uint32) {
			if w.block.races != nil {
				w.block.races.together(w.index, m)
			}
		}
		return d.source(&in.e, args[0], 32)
	case "sync", "arrive":
		in.kind = reduceNothing
	case "red.popc.u32", "red.and.pred", "red.or.pred":
		if len(args) < 3 {
			return d.count(3)
		}
		in.kind = map[string]int32{"popc": reduceCount, "and": reduceAnd, "or": reduceOr}[mods[1]]
		width := 1
		if in.kind == reduceCount {
			width = 32
		}
		if err := d.dest(&in.d, args[0], width); err != nil {
			return err
		}
		p := args[len(args)-1]
		if p.not {
			p.not, in.not = false, allLanes
		}
		if err := d.source(&in.e, p, 1); err != nil {
			return err
		}
		args = args[1 : len(args)-1]
	default:
		return d.unknown()
	}
	if len(args) != 1 && len(args) != 2 || form == "arrive" && len(args) != 2 {
		return fmt.Errorf("a barrier has a number, and may have a count of threads")
	}
	if err := d.source(&in.a, args[0], 32); err != nil {
		return err
	}
	count := operand{kind: operandImmediate}
	if len(args) == 2 {
		count = args[1]
	}
	if err := d.source(&in.b, count, 32); err != nil {
		return err
	}
	in.size = int32(bit(form != "arrive"))
	in.control, in.run = barrier, arriveAtBarrier
	return nil
}

func arriveAtBarrier(w *warp, in *inst, m uint32) {
	lane := bits.TrailingZeros32(m)
	id, count := &w.r32[in.a], &w.r32[in.b]
	for i := range id {
		if m>>i&1 != 0 && (id[i] != id[lane] || count[i] != count[lane]) {
			w.fail(Divergent, i, "lanes %d and %d of a warp name different barriers", lane, i)
			return
		}
	}
	if in.kind != reduceNothing && id[lane] < uint32(len(w.block.meetings)) {
		t := &w.block.meetings[id[lane]]
		if t.arrived == 0 {
			t.all = true
		}
		p := w.p[in.e] ^ in.not
		t.count += uint32(bits.OnesCount32(p & m))
		t.all = t.all && p&m == m
		t.any = t.any || p&m != 0
	}
	w.reducing = nil
	if in.kind != reduceNothing {
		w.reducing = in
	}
	w.block.arrive(w, id[lane], count[lane], in.size != 0)
}

// finishReduction gives a warp what the barrier has combined.
func (w *warp) finishReduction(t *meeting) {
	in := w.reducing
	if in == nil {
		return
	}
	w.reducing = nil
	switch in.kind {
	case reduceCount:
		for i := range w.r32[in.d] {
			w.r32[in.d][i] = t.count
		}
	case reduceAnd:
		w.p[in.d] = -bit(t.all)
	case reduceOr:
		w.p[in.d] = -bit(t.any)
	}
}
