package mutate

import (
	"regexp"
	"slices"
	"strings"
)

// flow is what the registers of a kernel may hold, whichever way it goes: each has what any instruction writes to
// it. Rules here leave out changes that no input can show.
type flow struct {
	writes, reads map[string][]instruction
}

var register = regexp.MustCompile(`%[a-z]+\d+`)

func flowOf(code []instruction) *flow {
	f := &flow{map[string][]instruction{}, map[string][]instruction{}}
	for _, in := range code {
		for _, r := range in.written() {
			f.writes[r] = append(f.writes[r], in)
		}
		for _, r := range in.read() {
			f.reads[r] = append(f.reads[r], in)
		}
	}
	return f
}

// written returns the registers that an instruction writes.
func (in instruction) written() []string {
	if len(in.args) == 0 || in.is("st", "red", "bra", "cp", "bar", "trap", "ret") {
		return nil
	}
	return register.FindAllString(in.args[0], -1)
}

// read returns the registers that an instruction reads, its guard among them, each once.
func (in instruction) read() []string {
	args := in.args
	if in.written() != nil {
		args = args[1:]
	}
	all := register.FindAllString(in.guard+" "+strings.Join(args, " "), -1)
	slices.Sort(all)
	return slices.Compact(all)
}

// same says whether the change of an instruction cannot be seen.
func (f *flow) same(in instruction, c change) bool {
	switch c.kind {
	case RoundingChanged: // of what bf16 has
		exact := true
		for _, a := range in.args[1:] {
			exact = exact && f.every(a, map[string]bool{}, isBF16)
		}
		return exact
	case ImmediateChanged:
		to, _ := parse(c.after)
		return f.signOfSquare(in, to) || f.nothingCopied(in, to) || f.zeroOrNot(in, to) || behindTheEnd(in, to)
	case ShiftChanged:
		return f.roundsNegative(in)
	}
	return false
}

// every says whether is holds of all that a may be, where is either decides or names what a has its value from.
func (f *flow) every(a string, seen map[string]bool, is func(in instruction) (from []string, ok bool)) bool {
	if seen[a] {
		return true
	}
	seen[a] = true
	writes := f.writes[a]
	if len(writes) == 0 {
		if register.MatchString(a) {
			return false
		}
		writes = []instruction{{op: "mov.b32", args: []string{"", a}}}
	}
	for _, in := range writes {
		from, ok := is(in)
		if !ok {
			return false
		}
		for _, a := range from {
			if !f.every(a, seen, is) {
				return false
			}
		}
	}
	return true
}

// isBF16 says whether an instruction writes an fp32 number whose lower 16 bits are zero, if those that it names do.
func isBF16(in instruction) (from []string, ok bool) {
	switch {
	case in.is("shl.b32") && in.args[2] == "16", in.is("and.b32") && in.args[2] == "-65536":
		return nil, true
	case in.is("mov.f32", "mov.b32", "mov.u32") && !strings.HasPrefix(in.args[1], "{"):
		if register.MatchString(in.args[1]) {
			return in.args[1:], true
		}
		return nil, strings.HasPrefix(in.args[1], "0f") && strings.HasSuffix(in.args[1], "0000")
	case in.is("neg.f32", "abs.f32"):
		return in.args[1:], true
	case in.is("selp.f32", "selp.b32", "max.f32", "min.f32"):
		return in.args[1:3], true
	}
	return nil, false
}

// signOfSquare: the sign of a number that is only multiplied with itself.
func (f *flow) signOfSquare(in, to instruction) bool {
	return in.is("and.b32") && in.args[2] == "-65536" && to.args[2] == "2147418112" && f.onlySquared(in.args[0])
}

func (f *flow) onlySquared(r string) bool {
	for _, in := range f.reads[r] {
		switch {
		case in.is("mov.b32", "mov.f32", "cvt.f64.f32") && len(f.writes[in.args[0]]) == 1 && f.onlySquared(in.args[0]):
		case in.is("mul.f32", "mul.f64", "fma.rn.f32", "fma.rn.f64") && in.args[1] == r && in.args[2] == r && (len(in.args) == 3 || in.args[3] != r):
		default:
			return false
		}
	}
	return len(f.writes[r]) == 1
}

// nothingCopied: where copies have zeros instead of a source, its address; and one byte of it in place of none, which is
// the lower half of a bf16 number and as good as zero.
func (f *flow) nothingCopied(in, to instruction) bool {
	if !in.is("selp.b32") {
		return false
	}
	if in.args[1] == to.args[1] && in.args[2] == "0" && to.args[2] == "1" {
		if n, ok := immediate(in.args[1]); ok && n > 1 {
			return f.onlyCopies(in.args[0], func(c instruction) bool { return len(c.args) > 3 && c.args[3] == in.args[0] })
		}
	}
	// What the predicate does not choose is changed: copies that read from there have a size that it chooses likewise.
	changed := 1
	if in.args[1] == to.args[1] {
		changed = 2
	}
	return f.onlyCopies(in.args[0], func(c instruction) bool {
		if len(c.args) < 4 || register.FindString(c.args[1]) == "" {
			return false
		}
		sizes := f.writes[c.args[3]]
		return len(sizes) == 1 && sizes[0].is("selp.b32") && sizes[0].args[3] == in.args[3] && sizes[0].args[changed] == "0" &&
			len(f.writes[in.args[3]]) == 1
	})
}

// onlyCopies says whether all that follows from a register are sources of copies of which is holds.
func (f *flow) onlyCopies(r string, is func(instruction) bool) bool {
	if len(f.writes[r]) != 1 || len(f.reads[r]) == 0 {
		return false
	}
	for _, in := range f.reads[r] {
		switch {
		case in.is("cp.async") && !strings.Contains(in.args[0], r+"]") && !strings.Contains(in.args[0], r+"+") && is(in):
		case in.guard == "" && in.is("add", "mul", "mad", "shl", "cvt", "cvta", "mov", "or", "sub") && f.onlyCopies(in.args[0], is):
		default:
			return false
		}
	}
	return true
}

// zeroOrNot: a number that is only asked whether it is zero.
func (f *flow) zeroOrNot(in, to instruction) bool {
	if !in.is("selp.b32", "selp.u32", "selp.s32") || len(f.writes[in.args[0]]) != 1 {
		return false
	}
	for i := 1; i <= 2; i++ {
		n, ok := immediate(in.args[i])
		m, fine := immediate(to.args[i])
		if in.args[i] != to.args[i] && !(ok && fine && n != 0 && m != 0) {
			return false
		}
	}
	for _, r := range f.reads[in.args[0]] {
		if !r.is("setp.eq", "setp.ne") || r.args[2] != "0" {
			return false
		}
	}
	return true
}

// behindTheEnd: how many bits are put into a register, where they reach its end.
func behindTheEnd(in, to instruction) bool {
	if !in.is("bfi.b32") || in.args[4] == to.args[4] {
		return false
	}
	at, ok := immediate(in.args[3])
	n, fine := immediate(in.args[4])
	return ok && fine && at+n >= 32
}

// roundsNegative: what a division by a power of two adds to a negative number, to round towards zero. Indices and
// counts are not negative.
func (f *flow) roundsNegative(in instruction) bool {
	if !in.is("shr.u32", "shr.u64") {
		return false
	}
	index := in.args[1] // by two, whose rounding is the sign itself
	if !(in.is("shr.u32") && in.args[2] == "31" || in.is("shr.u64") && in.args[2] == "63") {
		signs := f.writes[index]
		if len(signs) != 1 || !(signs[0].is("shr.s32") && signs[0].args[2] == "31" || signs[0].is("shr.s64") && signs[0].args[2] == "63") {
			return false
		}
		index = signs[0].args[1]
	}
	for _, sum := range f.reads[in.args[0]] {
		if !sum.is("add") || !slices.Contains(sum.args[1:], index) {
			return false
		}
	}
	return len(f.writes[in.args[0]]) == 1
}
