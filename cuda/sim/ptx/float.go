package ptx

import (
	"fmt"
	"math"
	"slices"
)

// Floating point as PTX has it: subnormals are kept unless .ftz says otherwise,
// a result that is no number has one form, and approximations are computed in
// double precision and rounded once, so they are better than a device's.

const (
	nan32 = 0x7fffffff
	nan64 = 0x7ff8000000000000
)

var floatDecoders = map[string]func(d *decoder, in *inst) error{
	"fma": decodeFloat, "rcp": decodeFloat, "sqrt": decodeFloat, "rsqrt": decodeFloat,
	"ex2": decodeFloat, "lg2": decodeFloat, "sin": decodeFloat, "cos": decodeFloat, "tanh": decodeFloat,
	"copysign": decodeFloat,
}

// floatBits returns an immediate as a float of a width.
func floatBits(o operand, bits int) (uint64, error) {
	switch {
	case bits == 64 && o.wide:
		return o.bits, nil
	case bits == 64:
		return math.Float64bits(float64(math.Float32frombits(uint32(o.bits)))), nil
	case bits == 32 && o.wide:
		return uint64(math.Float32bits(float32(math.Float64frombits(o.bits)))), nil
	case bits == 32:
		return o.bits, nil
	}
	return 0, fmt.Errorf("%s is a float of more than %d bits", o.name, bits)
}

// floatOperands counts the operands of each instruction.
var floatOperands = map[string]int{
	"add": 3, "sub": 3, "mul": 3, "div": 3, "min": 3, "max": 3, "fma": 4, "mad": 4, "copysign": 3,
	"abs": 2, "neg": 2, "rcp": 2, "sqrt": 2, "rsqrt": 2, "ex2": 2, "lg2": 2, "sin": 2, "cos": 2, "tanh": 2,
}

func decodeFloat(d *decoder, in *inst) error {
	t := d.typ()
	op := d.s.op
	n := floatOperands[op]
	if n == 0 || t != "f32" && t != "f64" && t != "bf16x2" && t != "bf16" {
		return d.unknown()
	}
	if err := d.only("rn", "rz", "rm", "rp", "ftz", "sat", "approx", "full", "NaN", t); err != nil {
		return err
	}
	if err := d.count(n); err != nil {
		return err
	}
	rounding := "rn"
	for _, m := range []string{"rz", "rm", "rp"} {
		if d.has(m) {
			rounding = m
		}
	}
	exact := slices.Contains([]string{"add", "sub", "mul", "fma", "mad"}, op)
	if rounding != "rn" && (!exact || t != "f32") {
		return d.unknown()
	}
	approx := slices.Contains([]string{"rsqrt", "ex2", "lg2", "sin", "cos", "tanh"}, op)
	if approx && !d.has("approx") || slices.Contains([]string{"rcp", "sqrt", "div"}, op) && !d.has("approx") && !d.has("full") && !d.has("rn") {
		return d.unknown()
	}
	switch t {
	case "f64":
		f := float64Op(op)
		if f == nil || d.has("ftz") || d.has("sat") || d.has("NaN") || d.has("full") {
			return d.unknown()
		}
		in.run = run64
		in.f64 = func(d, a, b, c *slot64) {
			for i := range d {
				v := f(math.Float64frombits(a[i]), math.Float64frombits(b[i]), math.Float64frombits(c[i]))
				d[i] = math.Float64bits(v)
				if v != v && op != "abs" && op != "neg" {
					d[i] = nan64
				}
			}
		}
		return d.uniform(in, 64)
	case "bf16", "bf16x2":
		return d.decodeHalf(in, op, t)
	}
	in.run = run32
	in.f32 = float32Loop(op, rounding, d.has("NaN"))
	if in.f32 == nil {
		return d.unknown()
	}
	if d.has("ftz") {
		in.f32 = flushed(in.f32, n-1)
	}
	if d.has("sat") {
		f := in.f32
		in.f32 = func(d, a, b, c *slot32) {
			f(d, a, b, c)
			for i, v := range d {
				if f := math.Float32frombits(v); !(f > 0) {
					d[i] = 0
				} else if f > 1 {
					d[i] = 0x3f800000
				}
			}
		}
	}
	return d.uniform(in, 32)
}

// flushed makes subnormal operands and results zeros of their sign.
func flushed(f func(d, a, b, c *slot32), operands int) func(d, a, b, c *slot32) {
	flush := func(d, a *slot32) {
		for i, v := range a {
			if v&0x7f800000 == 0 {
				v &= 1 << 31
			}
			d[i] = v
		}
	}
	if operands == 1 {
		return func(d, a, _, _ *slot32) {
			flush(d, a)
			f(d, d, d, d)
			flush(d, d)
		}
	}
	return func(d, a, b, c *slot32) {
		var x, y, z slot32
		flush(&x, a)
		flush(&y, b)
		flush(&z, c)
		f(d, &x, &y, &z)
		flush(d, d)
	}
}

// float32Loop returns the loop of an operation; nil if there is none.
func float32Loop(op, rounding string, nan bool) func(d, a, b, c *slot32) {
	if rounding != "rn" {
		return directed(op, rounding)
	}
	switch op {
	case "add":
		return func(d, a, b, _ *slot32) {
			for i := range d {
				v := math.Float32frombits(a[i]) + math.Float32frombits(b[i])
				if v != v {
					d[i] = nan32
					continue
				}
				d[i] = math.Float32bits(v)
			}
		}
	case "sub":
		return func(d, a, b, _ *slot32) {
			for i := range d {
				v := math.Float32frombits(a[i]) - math.Float32frombits(b[i])
				if v != v {
					d[i] = nan32
					continue
				}
				d[i] = math.Float32bits(v)
			}
		}
	case "mul":
		return func(d, a, b, _ *slot32) {
			for i := range d {
				v := math.Float32frombits(a[i]) * math.Float32frombits(b[i])
				if v != v {
					d[i] = nan32
					continue
				}
				d[i] = math.Float32bits(v)
			}
		}
	case "fma", "mad":
		return func(d, a, b, c *slot32) {
			for i := range d {
				p := float64(math.Float32frombits(a[i])) * float64(math.Float32frombits(b[i]))
				z := float64(math.Float32frombits(c[i]))
				s := p + z
				u := math.Float64bits(s)
				// Rounded twice, a sum may be wrong where the first rounding
				// leaves a tie, and where the result has fewer bits.
				if u&0x1fffffff == 0x10000000 || u>>52&0x7ff < 1023-125 {
					s = toOdd(p, z)
				}
				v := float32(s)
				if v != v {
					d[i] = nan32
					continue
				}
				d[i] = math.Float32bits(v)
			}
		}
	case "max", "min":
		return extremum32(op == "max", nan)
	case "neg":
		return func(d, a, _, _ *slot32) {
			for i := range d {
				d[i] = a[i] ^ 1<<31
			}
		}
	case "abs":
		return func(d, a, _, _ *slot32) {
			for i := range d {
				d[i] = a[i] &^ (1 << 31)
			}
		}
	case "copysign":
		return func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = a[i]&(1<<31) | b[i]&^(1<<31)
			}
		}
	case "ex2":
		return func(d, a, _, _ *slot32) {
			for i := range d {
				d[i] = exp2(a[i])
			}
		}
	case "div":
		return binary32(func(x, y float32) float32 { return x / y })
	}
	f := float64Op(op)
	if f == nil {
		f = unary[op]
	}
	if f == nil {
		return nil
	}
	return func(d, a, _, _ *slot32) {
		for i := range d {
			v := float32(f(float64(math.Float32frombits(a[i])), 0, 0))
			if v != v {
				d[i] = nan32
				continue
			}
			d[i] = math.Float32bits(v)
		}
	}
}

func binary32(f func(x, y float32) float32) func(d, a, b, c *slot32) {
	return func(d, a, b, _ *slot32) {
		for i := range d {
			v := f(math.Float32frombits(a[i]), math.Float32frombits(b[i]))
			if v != v {
				d[i] = nan32
				continue
			}
			d[i] = math.Float32bits(v)
		}
	}
}

// extremum32 is max or min: of a number and no number it is the number, unless nan says otherwise.
// Negative zero is less than zero.
func extremum32(largest, nan bool) func(d, a, b, c *slot32) {
	rest := func(u, v uint32) uint32 { // of equals, and of what is no number
		x, y := math.Float32frombits(u), math.Float32frombits(v)
		switch {
		case x == y && largest: // zeros may differ in sign
			return u & v
		case x == y:
			return u | v
		case nan || x != x && y != y:
			return nan32
		case x != x:
			return v
		}
		return u
	}
	if largest {
		return func(d, a, b, _ *slot32) {
			for i := range d {
				u, v := a[i], b[i]
				x, y := math.Float32frombits(u), math.Float32frombits(v)
				switch {
				case x > y:
					d[i] = u
				case x < y:
					d[i] = v
				default:
					d[i] = rest(u, v)
				}
			}
		}
	}
	return func(d, a, b, _ *slot32) {
		for i := range d {
			u, v := a[i], b[i]
			x, y := math.Float32frombits(u), math.Float32frombits(v)
			switch {
			case x < y:
				d[i] = u
			case x > y:
				d[i] = v
			default:
				d[i] = rest(u, v)
			}
		}
	}
}

// float64Op returns an operation on doubles; nil if there is none.
func float64Op(op string) func(x, y, z float64) float64 {
	switch op {
	case "add":
		return func(x, y, _ float64) float64 { return x + y }
	case "sub":
		return func(x, y, _ float64) float64 { return x - y }
	case "mul":
		return func(x, y, _ float64) float64 { return x * y }
	case "div":
		return func(x, y, _ float64) float64 { return x / y }
	case "fma", "mad":
		return math.FMA
	case "neg":
		return func(x, _, _ float64) float64 { return -x }
	case "abs":
		return func(x, _, _ float64) float64 { return math.Abs(x) }
	case "copysign":
		return func(x, y, _ float64) float64 { return math.Copysign(y, x) }
	case "rcp":
		return func(x, _, _ float64) float64 { return 1 / x }
	case "sqrt":
		return func(x, _, _ float64) float64 { return math.Sqrt(x) }
	case "rsqrt":
		return func(x, _, _ float64) float64 { return 1 / math.Sqrt(x) }
	case "max":
		return func(x, y, _ float64) float64 {
			if x != x {
				return y
			}
			if y != y {
				return x
			}
			return max(x, y)
		}
	case "min":
		return func(x, y, _ float64) float64 {
			if x != x {
				return y
			}
			if y != y {
				return x
			}
			return min(x, y)
		}
	}
	return nil
}

// unary are the approximations.
var unary = map[string]func(x, _, _ float64) float64{
	"lg2":  func(x, _, _ float64) float64 { return math.Log2(x) },
	"sin":  func(x, _, _ float64) float64 { return math.Sin(x) },
	"cos":  func(x, _, _ float64) float64 { return math.Cos(x) },
	"tanh": func(x, _, _ float64) float64 { return math.Tanh(x) },
}

// exp2 returns 2ˣ of a float32, to a relative error below 2⁻³⁴ before it is rounded.
func exp2(bits uint32) uint32 {
	x := float64(math.Float32frombits(bits))
	switch {
	case x != x:
		return nan32
	case x >= 128:
		return 0x7f800000
	case x < -151:
		return 0
	}
	// 2ˣ = 2ⁿ · 2ᶠ with f in [-½, ½]; the second factor is its Taylor series.
	const magic = 3 << 51 // adding it leaves the nearest integer in the low bits
	t := x + magic
	n := int64(math.Float64bits(t)) << 13 >> 13
	y := (x - (t - magic)) * math.Ln2
	p := 1 + y*(1+y*(1.0/2+y*(1.0/6+y*(1.0/24+y*(1.0/120+y*(1.0/720+y*(1.0/5040+y*(1.0/40320))))))))
	return math.Float32bits(float32(math.Float64frombits(uint64(int64(math.Float64bits(p)) + n<<52))))
}
