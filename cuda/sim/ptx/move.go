package ptx

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

var moveDecoders = map[string]func(d *decoder, in *inst) error{
	"mov": decodeMove, "selp": decodeSelect, "slct": decodeSelectSign, "setp": decodeSetp, "set": decodeSet,
	"cvt": decodeConvert, "cvta": decodeCvta, "isspacep": decodeIsSpace, "testp": decodeTestp,
}

func copy32(d, a, _, _ *slot32) { *d = *a }
func copy64(d, a, _, _ *slot64) { *d = *a }

// decodeMove decodes mov, of one value or of parts into a whole and back.
func decodeMove(d *decoder, in *inst) error {
	n, _ := typeBits(d.typ())
	if n == 0 || n == 8 || len(d.s.mods) != 1 {
		return d.unknown()
	}
	if err := d.count(2); err != nil {
		return err
	}
	to, from := d.s.args[0], d.s.args[1]
	switch {
	case to.kind == operandVector:
		return d.decodeUnpack(in, n, to, from)
	case from.kind == operandVector:
		return d.decodePack(in, n, to, from)
	case from.kind == operandSpecial && strings.HasPrefix(from.name, "%clock"):
		in.run = func(w *warp, in *inst, m uint32) {
			for i := range 32 {
				if m>>i&1 == 0 {
					continue
				}
				if n == 64 {
					w.r64[in.d][i] = uint64(w.steps)
				} else {
					w.r32[in.d][i] = uint32(w.steps)
				}
			}
		}
		return d.dest(&in.d, to, n)
	case n == 1:
		in.run = func(w *warp, in *inst, m uint32) { w.p[in.d] = w.p[in.d]&^m | w.p[in.a]&m }
	case n == 64:
		in.run, in.f64 = run64, copy64
	default:
		in.run, in.f32 = run32, copy32
	}
	return d.uniform(in, n)
}

// decodePack decodes mov.b32 d, {a, b}: the first is lowest.
func (d *decoder) decodePack(in *inst, n int, to, from operand) error {
	part := n / len(from.list)
	if part < 16 || part*len(from.list) != n {
		return d.unknown()
	}
	if err := d.dest(&in.d, to, n); err != nil {
		return err
	}
	in.vec = make([]int32, len(from.list))
	for i := range in.vec {
		if err := d.source(&in.vec[i], from.list[i], part); err != nil {
			return err
		}
	}
	cut := uint64(1)<<part - 1
	in.run = func(w *warp, in *inst, m uint32) {
		for i := range 32 {
			if m>>i&1 == 0 {
				continue
			}
			var v uint64
			for j, r := range in.vec {
				v |= uint64(w.r32[r][i]) & cut << (j * part)
			}
			if n == 64 {
				w.r64[in.d][i] = v
			} else {
				w.r32[in.d][i] = uint32(v)
			}
		}
	}
	return nil
}

// decodeUnpack decodes mov.b32 {a, b}, d.
func (d *decoder) decodeUnpack(in *inst, n int, to, from operand) error {
	part := n / len(to.list)
	if part < 16 || part*len(to.list) != n {
		return d.unknown()
	}
	if err := d.source(&in.a, from, n); err != nil {
		return err
	}
	in.vec = make([]int32, len(to.list))
	for i := range in.vec {
		if err := d.dest(&in.vec[i], to.list[i], part); err != nil {
			return err
		}
	}
	cut := uint64(1)<<part - 1
	in.run = func(w *warp, in *inst, m uint32) {
		for i := range 32 {
			if m>>i&1 == 0 {
				continue
			}
			v := uint64(0)
			if n == 64 {
				v = w.r64[in.a][i]
			} else {
				v = uint64(w.r32[in.a][i])
			}
			for j, r := range in.vec {
				w.r32[r][i] = uint32(v >> (j * part) & cut)
			}
		}
	}
	return nil
}

// decodeSelect decodes selp: a where the predicate c holds, else b.
func decodeSelect(d *decoder, in *inst) error {
	n, kind := typeBits(d.typ())
	if n < 16 || kind == 'p' || len(d.s.mods) != 1 {
		return d.unknown()
	}
	if err := d.count(4); err != nil {
		return err
	}
	if err := d.source(&in.e, d.s.args[3], 1); err != nil {
		return err
	}
	d.s.args = d.s.args[:3]
	if n == 64 {
		in.run = func(w *warp, in *inst, m uint32) {
			p, t, a, b := w.p[in.e], &w.r64[in.d], &w.r64[in.a], &w.r64[in.b]
			for i := range t {
				v := b[i]
				if p>>i&1 != 0 {
					v = a[i]
				}
				if m>>i&1 != 0 {
					t[i] = v
				}
			}
		}
		return d.uniform(in, n)
	}
	in.run = func(w *warp, in *inst, m uint32) {
		p, t, a, b := w.p[in.e], &w.r32[in.d], &w.r32[in.a], &w.r32[in.b]
		if m == allLanes {
			for i := range t {
				x, y := a[i], b[i]
				t[i] = y ^ (x^y)&-(p>>i&1)
			}
			return
		}
		for i := range t {
			if m>>i&1 == 0 {
				continue
			}
			t[i] = b[i]
			if p>>i&1 != 0 {
				t[i] = a[i]
			}
		}
	}
	return d.uniform(in, n)
}

// decodeSelectSign decodes slct: a where c is not negative, else b.
func decodeSelectSign(d *decoder, in *inst) error {
	mods := slices.DeleteFunc(slices.Clone(d.s.mods), func(m string) bool { return m == "ftz" })
	if len(mods) != 2 || mods[1] != "s32" && mods[1] != "f32" {
		return d.unknown()
	}
	n, _ := typeBits(mods[0])
	if n < 32 {
		return d.unknown()
	}
	if err := d.count(4); err != nil {
		return err
	}
	if err := d.source(&in.e, d.s.args[3], 32); err != nil {
		return err
	}
	d.s.args = d.s.args[:3]
	float, ftz := mods[1] == "f32", d.has("ftz")
	first := func(c uint32) bool {
		if !float {
			return int32(c) >= 0
		}
		if ftz && c&0x7f800000 == 0 {
			c = 0
		}
		return math.Float32frombits(c) >= 0
	}
	in.run = func(w *warp, in *inst, m uint32) {
		for i := range 32 {
			if m>>i&1 == 0 {
				continue
			}
			from := in.b
			if first(w.r32[in.e][i]) {
				from = in.a
			}
			if n == 64 {
				w.r64[in.d][i] = w.r64[from][i]
			} else {
				w.r32[in.d][i] = w.r32[from][i]
			}
		}
	}
	return d.uniform(in, n)
}

// decodeCvta decodes the change between generic addresses and those of a space.
func decodeCvta(d *decoder, in *inst) error {
	mods := d.s.mods
	to := len(mods) > 0 && mods[0] == "to"
	if to {
		mods = mods[1:]
	}
	if len(mods) != 2 || mods[1] != "u64" {
		return d.unknown()
	}
	if err := d.count(2); err != nil {
		return err
	}
	window := map[string]uint64{"global": 0, "const": 0, "shared": sharedWindow, "local": localWindow, "param": paramWindow}
	base, ok := window[mods[0]]
	if !ok {
		return d.unknown()
	}
	in.run = run64
	switch {
	case base == 0:
		in.f64 = copy64
	case to:
		in.f64 = each64(func(x, _ uint64) uint64 { return x - base })
	default:
		in.f64 = each64(func(x, _ uint64) uint64 { return x + base })
	}
	return d.uniform(in, 64)
}

func decodeIsSpace(d *decoder, in *inst) error {
	if len(d.s.mods) != 1 {
		return d.unknown()
	}
	var in4 func(a uint64) bool
	switch d.s.mods[0] {
	case "shared":
		in4 = func(a uint64) bool { return a&windowMask == sharedWindow }
	case "local":
		in4 = func(a uint64) bool { return a&windowMask == localWindow }
	case "global":
		in4 = func(a uint64) bool { return a&windowMask == 0 || a&windowMask == dataWindow }
	default:
		return d.unknown()
	}
	if err := d.count(2); err != nil {
		return err
	}
	if err := d.source(&in.a, d.s.args[1], 64); err != nil {
		return err
	}
	in.vec = make([]int32, 1)
	in.run = runTest64
	in.test64 = func(a, _ *slot64) uint32 {
		var t uint32
		for i, v := range a {
			if in4(v) {
				t |= 1 << i
			}
		}
		return t
	}
	return d.dest(&in.vec[0], d.s.args[0], 1)
}

// decodeTestp decodes tests of what kind of float a number is.
func decodeTestp(d *decoder, in *inst) error {
	if len(d.s.mods) != 2 || d.s.mods[1] != "f32" {
		return d.unknown()
	}
	f := map[string]func(u uint32) bool{
		"finite":     func(u uint32) bool { return u&0x7f800000 != 0x7f800000 },
		"infinite":   func(u uint32) bool { return u&0x7fffffff == 0x7f800000 },
		"number":     func(u uint32) bool { return u&0x7fffffff <= 0x7f800000 },
		"notanumber": func(u uint32) bool { return u&0x7fffffff > 0x7f800000 },
		"normal":     func(u uint32) bool { return u&0x7f800000 != 0 && u&0x7f800000 != 0x7f800000 },
		"subnormal":  func(u uint32) bool { return u&0x7f800000 == 0 && u&0x7fffff != 0 },
	}[d.s.mods[0]]
	if f == nil {
		return d.unknown()
	}
	if err := d.count(2); err != nil {
		return err
	}
	if err := d.source(&in.a, d.s.args[1], 32); err != nil {
		return err
	}
	in.vec = make([]int32, 1)
	in.run = runTest32
	in.test32 = func(a, _ *slot32) uint32 {
		var t uint32
		for i, v := range a {
			if f(v) {
				t |= 1 << i
			}
		}
		return t
	}
	return d.dest(&in.vec[0], d.s.args[0], 1)
}

// decodeSet decodes set, which writes all ones or 1.0 where a comparison holds.
func decodeSet(d *decoder, in *inst) error {
	mods := d.s.mods
	if len(mods) != 3 {
		return d.unknown()
	}
	var yes uint32
	switch mods[1] {
	case "u32", "s32":
		yes = allLanes
	case "f32":
		yes = 0x3f800000
	default:
		return fmt.Errorf("unknown form set.%s", strings.Join(mods, "."))
	}
	n, kind := typeBits(mods[2])
	if n != 32 {
		return d.unknown()
	}
	test := compare32(mods[0], n, kind)
	if test == nil {
		return d.unknown()
	}
	if err := d.count(3); err != nil {
		return err
	}
	in.run = run32
	in.f32 = func(d, a, b, _ *slot32) {
		t := test(a, b)
		for i := range d {
			d[i] = yes & -(t >> i & 1)
		}
	}
	return d.uniform(in, 32)
}
