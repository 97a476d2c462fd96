package ptx

import (
	"math"
	"slices"
)

// decodeConvert decodes cvt. What has no loop of its own goes through a value of
// 64 bits: its source is widened, and its result cut.
func decodeConvert(d *decoder, in *inst) error {
	mods := d.s.mods
	if len(mods) < 2 {
		return d.unknown()
	}
	to, from := mods[len(mods)-2], mods[len(mods)-1]
	how := mods[:len(mods)-2]
	for _, m := range how {
		if !slices.Contains([]string{"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "ftz", "sat", "relu"}, m) {
			return d.unknown()
		}
	}
	if to == "bf16x2" || to == "bf16" || from == "bf16" {
		return d.convertHalf(in, to, from, how)
	}
	if d.has("relu") {
		return d.unknown()
	}
	n, kind := typeBits(to)
	n2, kind2 := typeBits(from)
	if n < 8 || n2 < 8 || kind == 'b' || kind2 == 'b' || n == 16 && kind == 'f' || n2 == 16 && kind2 == 'f' {
		return d.unknown()
	}
	if err := d.count(2); err != nil {
		return err
	}
	// A register may be wider than the type: the rest is ignored, or extended into.
	dest, source := d.s.args[0], d.s.args[1]
	wide, wide2 := n, n2
	if dest.kind == operandRegister && kind != 'f' {
		wide = max(n, dest.reg.bits)
	}
	if source.kind == operandRegister && kind2 != 'f' {
		wide2 = max(n2, source.reg.bits)
	}
	if err := d.dest(&in.d, dest, wide); err != nil {
		return err
	}
	if err := d.source(&in.a, source, wide2); err != nil {
		return err
	}
	if d.convertFast(in, n, n2, kind, kind2, wide, wide2) {
		return nil
	}
	f := conversion(n, n2, kind, kind2, how)
	if f == nil {
		return d.unknown()
	}
	cut := ^uint64(0) >> (64 - wide)
	in.run = func(w *warp, in *inst, m uint32) {
		for i := range 32 {
			if m>>i&1 == 0 {
				continue
			}
			var v uint64
			if wide2 == 64 {
				v = w.r64[in.a][i]
			} else {
				v = uint64(w.r32[in.a][i])
			}
			v = f(v) & cut
			if wide == 64 {
				w.r64[in.d][i] = v
			} else {
				w.r32[in.d][i] = uint32(v)
			}
		}
	}
	return nil
}

// convertFast gives loops of their own to the conversions that addresses are made with.
func (d *decoder) convertFast(in *inst, n, n2 int, kind, kind2 byte, wide, wide2 int) bool {
	if kind == 'f' || kind2 == 'f' || d.has("sat") || n < 32 || n2 < 32 || wide != n || wide2 != n2 {
		return false
	}
	switch {
	case n == 64 && n2 == 32 && kind2 == 's':
		in.run, in.to64 = runTo64, func(d *slot64, a, _ *slot32, _ *slot64) {
			for i := range d {
				d[i] = uint64(int64(int32(a[i])))
			}
		}
	case n == 64 && n2 == 32:
		in.run, in.to64 = runTo64, func(d *slot64, a, _ *slot32, _ *slot64) {
			for i := range d {
				d[i] = uint64(a[i])
			}
		}
	case n == 32 && n2 == 64:
		in.run, in.to32 = runTo32, func(d *slot32, a *slot64, _ *slot32) {
			for i := range d {
				d[i] = uint32(a[i])
			}
		}
	case n == 32:
		in.run, in.f32 = run32, copy32
	default:
		in.run, in.f64 = run64, copy64
	}
	return true
}

// conversion returns the function that converts one value.
func conversion(n, n2 int, kind, kind2 byte, how []string) func(v uint64) uint64 {
	sat := slices.Contains(how, "sat")
	ftz := slices.Contains(how, "ftz")
	rounding := ""
	for _, m := range how {
		if m != "sat" && m != "ftz" {
			rounding = m
		}
	}
	integral := map[string]func(float64) float64{"rni": math.RoundToEven, "rzi": math.Trunc, "rmi": math.Floor, "rpi": math.Ceil}[rounding]
	float := func(v uint64) float64 {
		if n2 == 64 {
			return math.Float64frombits(v)
		}
		if ftz && v&0x7f800000 == 0 {
			v &= 1 << 31
		}
		return float64(math.Float32frombits(uint32(v)))
	}
	extend := func(v uint64) uint64 {
		v <<= 64 - n2
		if kind2 == 's' {
			return uint64(int64(v) >> (64 - n2))
		}
		return v >> (64 - n2)
	}
	switch {
	case kind == 'f' && kind2 == 'f':
		return func(v uint64) uint64 {
			f := float(v)
			if integral != nil {
				f = integral(f)
			}
			if sat {
				if !(f > 0) {
					f = 0
				}
				f = min(f, 1)
			}
			if n == 64 {
				if f != f {
					return nan64
				}
				return math.Float64bits(f)
			}
			return uint64(finish32(round32(f, rounding), ftz))
		}
	case kind == 'f':
		return func(v uint64) uint64 {
			v = extend(v)
			if n == 64 {
				if rounding != "rn" && rounding != "" {
					return math.Float64bits(wholeDown(v, kind2 == 's', rounding))
				}
				if kind2 == 's' {
					return math.Float64bits(float64(int64(v)))
				}
				return math.Float64bits(float64(v))
			}
			var f float32
			switch {
			case rounding != "rn" && rounding != "":
				f = round32(oddWhole(v, kind2 == 's'), rounding)
			case kind2 == 's':
				f = float32(int64(v))
			default:
				f = float32(v)
			}
			if sat {
				f = min(max(f, 0), 1)
			}
			return uint64(math.Float32bits(f))
		}
	case kind2 == 'f':
		if integral == nil {
			return nil
		}
		return func(v uint64) uint64 { return toInteger(integral(float(v)), n, kind == 's') }
	}
	if rounding != "" {
		return nil
	}
	return func(v uint64) uint64 {
		v = extend(v)
		if sat {
			return saturate(v, n, kind == 's', kind2 == 's')
		}
		if kind == 's' { // into a wider register the sign goes on
			return uint64(int64(v<<(64-n)) >> (64 - n))
		}
		return v << (64 - n) >> (64 - n)
	}
}

func finish32(f float32, ftz bool) uint32 {
	u := math.Float32bits(f)
	if f != f {
		return nan32
	}
	if ftz && u&0x7f800000 == 0 {
		u &= 1 << 31
	}
	return u
}

// oddWhole returns an integer as a double that is rounded to odd.
func oddWhole(v uint64, signed bool) float64 {
	hi, lo := float64(v>>32)*(1<<32), float64(v&0xffffffff)
	if signed {
		hi = float64(int64(v)>>32) * (1 << 32)
	}
	return toOdd(hi, lo)
}

// wholeDown converts an integer to a double in a direction.
func wholeDown(v uint64, signed bool, rounding string) float64 {
	hi, lo := float64(v>>32)*(1<<32), float64(v&0xffffffff)
	if signed {
		hi = float64(int64(v)>>32) * (1 << 32)
	}
	s := hi + lo
	rest := lo - (s - hi) // exact: hi is the larger, or s is exact
	switch {
	case rest < 0 && (rounding == "rm" || rounding == "rz" && s > 0):
		return math.Nextafter(s, math.Inf(-1))
	case rest > 0 && (rounding == "rp" || rounding == "rz" && s < 0):
		return math.Nextafter(s, math.Inf(1))
	}
	return s
}

// toInteger converts a whole float and clamps it to the type. What is no number
// becomes zero, in 64 bits the top bit, as devices give.
func toInteger(f float64, n int, signed bool) uint64 {
	if f != f {
		if n == 64 {
			return 1 << 63
		}
		return 0
	}
	if signed {
		limit := math.Ldexp(1, n-1)
		switch {
		case f >= limit:
			return 1<<(n-1) - 1
		case f < -limit:
			return -(uint64(1) << (n - 1))
		}
		return uint64(int64(f))
	}
	switch {
	case f <= 0:
		return 0
	case f >= math.Ldexp(1, n):
		return ^uint64(0) >> (64 - n)
	}
	return uint64(f)
}

// saturate clamps an integer to a type.
func saturate(v uint64, n int, signed, sourceSigned bool) uint64 {
	if signed {
		most := uint64(1)<<(n-1) - 1
		if sourceSigned {
			return uint64(min(max(int64(v), -int64(most)-1), int64(most)))
		}
		return min(v, most)
	}
	if sourceSigned && int64(v) < 0 {
		return 0
	}
	return min(v, ^uint64(0)>>(64-n))
}

// convertHalf decodes conversions from and to bf16.
func (d *decoder) convertHalf(in *inst, to, from string, how []string) error {
	relu := slices.Contains(how, "relu")
	for _, m := range how {
		if m != "rn" && m != "rz" && m != "relu" {
			return d.unknown()
		}
	}
	cut := slices.Contains(how, "rz")
	round := func(u uint32) uint32 {
		f := math.Float32frombits(u)
		if relu && f < 0 {
			f = 0
		}
		if cut && f == f {
			return math.Float32bits(f) >> 16
		}
		return toBF16(f)
	}
	in.run = run32
	switch {
	case to == "bf16x2" && from == "f32" && (cut || slices.Contains(how, "rn")):
		if err := d.count(3); err != nil {
			return err
		}
		in.f32 = func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = round(a[i])<<16 | round(b[i])
			}
		}
		return d.uniform(in, 32)
	case to == "bf16" && from == "f32" && (cut || slices.Contains(how, "rn")):
		if err := d.count(2); err != nil {
			return err
		}
		in.f32 = func(d, a, _, _ *slot32) {
			for i := range d {
				d[i] = round(a[i])
			}
		}
		if err := d.dest(&in.d, d.s.args[0], 16); err != nil {
			return err
		}
		return d.source(&in.a, d.s.args[1], 32)
	}
	return d.unknown() // sm_80 has no others
}
