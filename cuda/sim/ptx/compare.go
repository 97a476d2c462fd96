package ptx

import (
	"math"
	"slices"
)

// decodeSetp decodes setp: p|q = a ? b, combined with a third predicate.
func decodeSetp(d *decoder, in *inst) error {
	s := d.s
	mods := slices.DeleteFunc(slices.Clone(s.mods), func(m string) bool { return m == "ftz" })
	if len(mods) < 2 || len(mods) > 3 {
		return d.unknown()
	}
	n, kind := typeBits(d.typ())
	if n < 16 || kind == 'f' && n == 16 {
		return d.unknown()
	}
	args := 3
	if len(mods) == 3 {
		args = 4
		i := slices.Index([]string{"", "and", "or", "xor"}, mods[1])
		if i < 1 {
			return d.unknown()
		}
		in.kind = int32(i)
	}
	if err := d.count(args); err != nil {
		return err
	}
	to := []operand{s.args[0]}
	if s.args[0].kind == operandPair {
		to = s.args[0].list
	}
	in.vec = make([]int32, len(to))
	for i, o := range to {
		if err := d.dest(&in.vec[i], o, 1); err != nil {
			return err
		}
	}
	for i, f := range []*int32{&in.a, &in.b} {
		if err := d.source(f, s.args[1+i], n); err != nil {
			return err
		}
	}
	if args == 4 {
		o := s.args[3]
		if o.not {
			o.not = false
			in.not = allLanes
		}
		if err := d.source(&in.e, o, 1); err != nil {
			return err
		}
	}
	if n == 64 {
		in.run, in.test64 = runTest64, compare64(mods[0], kind)
		if in.test64 == nil {
			return d.unknown()
		}
		return nil
	}
	in.run, in.test32 = runTest32, compare32(mods[0], n, kind)
	if in.test32 == nil {
		return d.unknown()
	}
	if d.has("ftz") {
		f := in.test32
		in.test32 = func(a, b *slot32) uint32 {
			x, y := *a, *b
			for i := range x {
				if x[i]&0x7f800000 == 0 {
					x[i] = 0
				}
				if y[i]&0x7f800000 == 0 {
					y[i] = 0
				}
			}
			return f(&x, &y)
		}
	}
	return nil
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// test makes a loop of a comparison of values that f makes of the bits.
func eq32(a, b *slot32) (t uint32) {
	for i := range a {
		t |= bit(a[i] == b[i]) << i
	}
	return t
}

func ltU32(a, b *slot32) (t uint32) {
	for i := range a {
		t |= bit(a[i] < b[i]) << i
	}
	return t
}

func ltS32(a, b *slot32) (t uint32) {
	for i := range a {
		t |= bit(int32(a[i]) < int32(b[i])) << i
	}
	return t
}

func ltF32(a, b *slot32) (t uint32) {
	for i := range a {
		t |= bit(math.Float32frombits(a[i]) < math.Float32frombits(b[i])) << i
	}
	return t
}

func leF32(a, b *slot32) (t uint32) {
	for i := range a {
		t |= bit(math.Float32frombits(a[i]) <= math.Float32frombits(b[i])) << i
	}
	return t
}

func eqF32(a, b *slot32) (t uint32) {
	for i := range a {
		t |= bit(math.Float32frombits(a[i]) == math.Float32frombits(b[i])) << i
	}
	return t
}

func numF32(a, b *slot32) (t uint32) {
	for i := range a {
		t |= bit(a[i]&0x7fffffff <= 0x7f800000 && b[i]&0x7fffffff <= 0x7f800000) << i
	}
	return t
}

// compare32 returns the lanes where a comparison holds; nil if there is none of that name.
func compare32(op string, n int, kind byte) func(a, b *slot32) uint32 {
	if kind == 'f' {
		return compareFloat(op, ltF32, leF32, eqF32, numF32)
	}
	less := ltU32
	switch op {
	case "lo", "ls", "hi", "hs": // unsigned by name
		if kind == 's' {
			return nil
		}
		op = map[string]string{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}[op]
	default:
		if kind == 's' {
			less = ltS32
			if n == 16 {
				less = func(a, b *slot32) (t uint32) {
					for i := range a {
						t |= bit(int16(a[i]) < int16(b[i])) << i
					}
					return t
				}
			}
		}
	}
	if kind == 'b' && op != "eq" && op != "ne" {
		return nil
	}
	return compareInteger(op, less, eq32)
}

// compareInteger makes all comparisons of two.
func compareInteger[V any](op string, less, equal func(a, b *V) uint32) func(a, b *V) uint32 {
	switch op {
	case "eq":
		return equal
	case "ne":
		return func(a, b *V) uint32 { return ^equal(a, b) }
	case "lt":
		return less
	case "ge":
		return func(a, b *V) uint32 { return ^less(a, b) }
	case "gt":
		return func(a, b *V) uint32 { return less(b, a) }
	case "le":
		return func(a, b *V) uint32 { return ^less(b, a) }
	}
	return nil
}

// compareFloat makes all comparisons of four. A comparison with what is no number is
// false, and true in the form that ends in u.
func compareFloat[V any](op string, less, lessEqual, equal, numbers func(a, b *V) uint32) func(a, b *V) uint32 {
	switch op {
	case "eq":
		return equal
	case "ne":
		return func(a, b *V) uint32 { return ^equal(a, b) & numbers(a, b) }
	case "lt":
		return less
	case "le":
		return lessEqual
	case "gt":
		return func(a, b *V) uint32 { return less(b, a) }
	case "ge":
		return func(a, b *V) uint32 { return lessEqual(b, a) }
	case "equ":
		return func(a, b *V) uint32 { return equal(a, b) | ^numbers(a, b) }
	case "neu":
		return func(a, b *V) uint32 { return ^equal(a, b) }
	case "ltu":
		return func(a, b *V) uint32 { return ^lessEqual(b, a) }
	case "leu":
		return func(a, b *V) uint32 { return ^less(b, a) }
	case "gtu":
		return func(a, b *V) uint32 { return ^lessEqual(a, b) }
	case "geu":
		return func(a, b *V) uint32 { return ^less(a, b) }
	case "num":
		return numbers
	case "nan":
		return func(a, b *V) uint32 { return ^numbers(a, b) }
	}
	return nil
}

func lanes64(f func(x, y uint64) bool) func(a, b *slot64) uint32 {
	return func(a, b *slot64) (t uint32) {
		for i := range a {
			t |= bit(f(a[i], b[i])) << i
		}
		return t
	}
}

func ltS64(a, b *slot64) (t uint32) {
	for i := range a {
		t |= bit(int64(a[i]) < int64(b[i])) << i
	}
	return t
}

// compare64 is compare32 for 64 bits.
func compare64(op string, kind byte) func(a, b *slot64) uint32 {
	f := math.Float64frombits
	equal := lanes64(func(x, y uint64) bool { return x == y })
	less := lanes64(func(x, y uint64) bool { return x < y })
	switch kind {
	case 'f':
		return compareFloat(op,
			lanes64(func(x, y uint64) bool { return f(x) < f(y) }),
			lanes64(func(x, y uint64) bool { return f(x) <= f(y) }),
			lanes64(func(x, y uint64) bool { return f(x) == f(y) }),
			lanes64(func(x, y uint64) bool { return f(x) == f(x) && f(y) == f(y) }))
	case 'b':
		if op != "eq" && op != "ne" {
			return nil
		}
	case 's':
		return compareInteger(op, ltS64, equal)
	}
	if u := map[string]string{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}[op]; u != "" {
		op = u
	}
	return compareInteger(op, less, equal)
}
