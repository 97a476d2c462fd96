package mutate

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// The kinds of mistakes.
const (
	BarrierDropped     Kind = "barrier dropped"
	WarpBarrierDropped Kind = "warp barrier dropped"
	WaitDropped        Kind = "wait dropped"
	WaitChanged        Kind = "wait count changed"
	CommitDropped      Kind = "commit dropped"
	CopyDropped        Kind = "copy dropped"
	StoreDropped       Kind = "store dropped"
	IndexShifted       Kind = "index shifted"
	ImmediateChanged   Kind = "immediate changed"
	ShiftChanged       Kind = "shift count changed"
	OperandsSwapped    Kind = "operands swapped"
	FragmentsSwapped   Kind = "fragments swapped"
	ComparisonMoved    Kind = "comparison moved"
	OperatorChanged    Kind = "operator changed"
	PredicateLost      Kind = "predicate lost"
	PredicateNegated   Kind = "predicate negated"
	RoundingChanged    Kind = "rounding changed"
	ShuffleChanged     Kind = "shuffle changed"
)

// change is one mistake in an instruction.
type change struct {
	kind  Kind
	after string
}

// changes returns all mistakes that are made in an instruction.
func changes(in instruction) []change {
	var cs []change
	add := func(kind Kind, to instruction) { cs = append(cs, change{kind, to.String()}) }
	drop := func(kind Kind) { cs = append(cs, change{kind, ""}) }
	guards(in, add)
	switch {
	case in.is("bar.sync", "barrier.sync"):
		drop(BarrierDropped)
	case in.is("bar.red") && strings.HasSuffix(in.op, ".pred"):
		// Without the barrier a thread knows its own predicate only.
		alone := instruction{in.guard, "mov.pred", []string{in.args[0], in.args[len(in.args)-1]}}
		if p, ok := strings.CutPrefix(alone.args[1], "!"); ok {
			alone.op, alone.args[1] = "not.pred", p
		}
		add(BarrierDropped, alone)
	case in.is("bar.warp.sync"):
		drop(WarpBarrierDropped)
	case in.is("cp.async.wait_group"):
		// To wait for more groups than must be there is slower and never wrong: counts are made larger only.
		drop(WaitDropped)
		if n, ok := immediate(in.args[0]); ok {
			add(WaitChanged, in.with(0, fmt.Sprint(n+1)))
		}
	case in.is("cp.async.wait_all"):
		drop(WaitDropped)
	case in.is("cp.async.commit_group"):
		drop(CommitDropped)
	case in.is("cp.async"):
		drop(CopyDropped)
		shiftAddress(in, 0, add)
		shiftAddress(in, 1, add)
	case in.is("ldmatrix"):
		shiftAddress(in, 1, add)
		swapElements(in, 0, 0, 1, add)
	case in.is("mma"): // the sums that go in are often all zero: those that come out are exchanged
		for arg := range 3 {
			swapElements(in, arg, 0, 1, add)
		}
	case in.is("st", "red"):
		drop(StoreDropped)
		shiftAddress(in, 0, add)
	case in.is("atom"):
		drop(StoreDropped)
		shiftAddress(in, 1, add)
	case in.is("ld"):
		shiftAddress(in, 1, add)
	case in.is("shfl"):
		if n, ok := immediate(in.args[2]); ok {
			to := n / 2
			if n < 2 {
				to = n + 1
			}
			add(ShuffleChanged, in.with(2, fmt.Sprint(to)))
			break
		}
		// Where lane 0 alone needs the result, down is as good as bfly, and bfly as idx.
		to := in
		to.op = strings.NewReplacer(".bfly.", ".up.", ".up.", ".down.", ".down.", ".up.", ".idx.", ".up.").Replace(in.op)
		add(ShuffleChanged, to)
	case in.is("shl", "shr"):
		n, ok := immediate(in.args[2])
		switch {
		case ok && (in.is("shr.s32") && n == 31 || in.is("shr.s64") && n == 63): // a shift by more is one by so many
		case ok:
			add(ShiftChanged, in.with(2, fmt.Sprint(n+1)))
		case strings.HasSuffix(in.op, "64"): // by a register of another width
		default:
			swap(in, 1, 2, add)
		}
	default:
		arithmetic(in, add)
	}
	return cs
}

// guards changes the predicate under which an instruction is executed.
func guards(in instruction, add func(Kind, instruction)) {
	if in.guard == "" {
		return
	}
	lost := in
	lost.guard = ""
	add(PredicateLost, lost)
	negated := in
	if name, ok := strings.CutPrefix(in.guard, "!"); ok {
		negated.guard = name
	} else {
		negated.guard = "!" + in.guard
	}
	add(PredicateNegated, negated)
}

// arithmetic changes what computes lane by lane. Terms of a sum and factors of a product may be exchanged, and
// so may what and, or, xor, min and max combine.
func arithmetic(in instruction, add func(Kind, instruction)) {
	switch {
	case in.is("setp"):
		compare(in, add)
	case in.is("selp"):
		swap(in, 1, 2, add)
	case in.is("sub", "div", "rem"):
		swap(in, 1, 2, add)
	case in.is("fma", "mad"):
		swap(in, 2, 3, add) // a factor with what is added
	case in.is("cvt.rn.bf16x2.f32"):
		swap(in, 1, 2, add)
	}
	// Division and square root may be approximate within the bounds of what computes with them; what is rounded
	// to bf16 must be rounded to nearest even.
	if in.is("cvt.rn.bf16x2.f32", "cvt.rn.bf16.f32") {
		to := in
		to.op = strings.Replace(in.op, ".rn.", ".rz.", 1)
		add(RoundingChanged, to)
	}
	for _, pair := range [][2]string{{"max", "min"}, {"min", "max"}, {"and.pred", "or.pred"}, {"or.pred", "and.pred"}} {
		if in.is(pair[0]) {
			to := in
			to.op = pair[1] + strings.TrimPrefix(in.op, pair[0])
			add(OperatorChanged, to)
		}
	}
	immediates(in, add)
}

// compare changes comparisons. What equals may be exchanged.
func compare(in instruction, add func(Kind, instruction)) {
	parts := strings.Split(in.op, ".")
	next := map[string]string{
		"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "lo": "ls", "ls": "lo", "hi": "hs", "hs": "hi",
		"ltu": "leu", "leu": "ltu", "gtu": "geu", "geu": "gtu", "eq": "ne", "ne": "eq", "equ": "neu", "neu": "equ",
	}[parts[1]]
	if next == "" {
		return
	}
	to := in
	to.op = strings.Join(append([]string{parts[0], next}, parts[2:]...), ".")
	add(ComparisonMoved, to)
	if !strings.HasPrefix(parts[1], "eq") && !strings.HasPrefix(parts[1], "ne") {
		swap(in, 1, 2, add)
	}
}

// immediates changes constants: of a sum by an element, of what else by the least that there is.
func immediates(in instruction, add func(Kind, instruction)) {
	for i := 1; i < len(in.args); i++ {
		a := in.args[i]
		if f, ok := strings.CutPrefix(a, "0f"); ok && len(f) == 8 {
			if bits, err := strconv.ParseUint(f, 16, 32); err == nil {
				add(ImmediateChanged, in.with(i, fmt.Sprintf("0f%08X", otherFloat(bits))))
			}
			continue
		}
		if f, ok := strings.CutPrefix(a, "0d"); ok && len(f) == 16 {
			if bits, err := strconv.ParseUint(f, 16, 64); err == nil {
				to := bits ^ 1<<48
				if bits<<1 == 0 {
					to = bits | 0x3ff<<52
				}
				add(ImmediateChanged, in.with(i, fmt.Sprintf("0d%016X", to)))
			}
			continue
		}
		n, ok := immediate(a)
		switch {
		case !ok:
		case in.is("and.b64") && n == -1<<32: // whether a division fits 32 bits, which is quicker and the same
		case in.is("add", "sub") || in.is("mad") && i == 3:
			step := int64(1)
			for n != 0 && step < 16 && n%(2*step) == 0 {
				step *= 2
			}
			add(IndexShifted, in.with(i, fmt.Sprint(n+step)))
		case in.is("and", "or") && n&(n-1) != 0:
			add(ImmediateChanged, in.with(i, fmt.Sprint(otherMask(n, in.typ() == "b64"))))
		case in.is("mul") && n > 1 && n&(n-1) == 0: // elements of half the size; what is not a power of two would be misaligned
			add(ImmediateChanged, in.with(i, fmt.Sprint(n/2)))
		case in.is("mov") && n > 0 && n&(n-1) == 0: // a sum over distances of 17, 8, 4 ... has the same terms as over 16, 8, 4 ...
			add(ImmediateChanged, in.with(i, fmt.Sprint(2*n)))
		default:
			add(ImmediateChanged, in.with(i, fmt.Sprint(n+1)))
		}
	}
}

// otherFloat changes a number by a sixteenth, zero to one, and an infinity to zero.
func otherFloat(bits uint64) uint64 {
	switch {
	case bits&0x7fffffff == 0:
		return bits | 0x3f800000
	case bits&0x7f800000 == 0x7f800000:
		return 0
	}
	return bits ^ 0x00080000
}

// otherMask drops the highest bit of a mask; of one that rounds an index down, which has all bits that an index
// may have, the lowest.
func otherMask(n int64, wide bool) int64 {
	low := n & -n
	if n < 0 && n > -1<<16 || n >= 1<<24 && low < 1<<16 && (n+low)&n == 0 {
		return n & (n - 1)
	}
	mask := uint64(n)
	if !wide {
		mask = uint64(uint32(n))
	}
	return int64(mask &^ (1 << (bits.Len64(mask) - 1)))
}

// immediate reads an integer.
func immediate(a string) (int64, bool) {
	n, err := strconv.ParseInt(a, 0, 64)
	return n, err == nil
}

// shiftAddress moves an address by as much as is accessed there, so that it stays aligned.
func shiftAddress(in instruction, i int, add func(Kind, instruction)) {
	inner := strings.TrimSuffix(strings.TrimPrefix(in.args[i], "["), "]")
	base, off, _ := strings.Cut(inner, "+")
	n, _ := immediate(off)
	add(IndexShifted, in.with(i, fmt.Sprintf("[%s+%d]", base, n+int64(in.access()))))
}

func swap(in instruction, i, j int, add func(Kind, instruction)) {
	if to, ok := in.swapped(i, j); ok {
		add(OperandsSwapped, to)
	}
}

// swapElements exchanges two elements of a vector.
func swapElements(in instruction, arg, i, j int, add func(Kind, instruction)) {
	list := strings.Split(strings.Trim(in.args[arg], "{}"), ",")
	for k := range list {
		list[k] = strings.TrimSpace(list[k])
	}
	if list[i] != list[j] {
		list[i], list[j] = list[j], list[i]
		add(FragmentsSwapped, in.with(arg, "{"+strings.Join(list, ", ")+"}"))
	}
}
