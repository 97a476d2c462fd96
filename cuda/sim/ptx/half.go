package ptx

import "math"

// The 16-bit format bf16 is the upper half of a float32.

// toBF16 rounds to the nearest, ties to even.
func toBF16(f float32) uint32 {
	if f != f {
		return 0x7fff
	}
	u := math.Float32bits(f)
	return (u + 0x7fff + u>>16&1) >> 16
}

func fromBF16(v uint32) float32 { return math.Float32frombits(v << 16) }

// decodeHalf decodes arithmetic on bf16 and on pairs of it.
func (d *decoder) decodeHalf(in *inst, op, t string) error {
	var f func(x, y, z float32) float32
	switch op {
	case "fma":
		f = func(x, y, z float32) float32 {
			// The product is exact in float32's range and bits; to round the sum once, it is rounded to odd.
			return oddTo32(toOdd(float64(x)*float64(y), float64(z)))
		}
	case "min", "max":
		loop := extremum32(op == "max", d.has("NaN"))
		f = func(x, y, _ float32) float32 {
			var r, a, b slot32
			a[0], b[0] = math.Float32bits(x), math.Float32bits(y)
			loop(&r, &a, &b, nil)
			return math.Float32frombits(r[0])
		}
	case "neg", "abs":
		sign := uint32(0x8000)
		if t == "bf16x2" {
			sign = 0x80008000
		}
		in.run = run32
		in.f32 = func(d, a, _, _ *slot32) {
			for i := range d {
				if op == "neg" {
					d[i] = a[i] ^ sign
				} else {
					d[i] = a[i] &^ sign
				}
			}
		}
	default:
		return d.unknown() // sm_80 has no others
	}
	if f != nil {
		in.run = run32
		in.f32 = func(d, a, b, c *slot32) {
			for i := range d {
				v := toBF16(f(fromBF16(a[i]&0xffff), fromBF16(b[i]&0xffff), fromBF16(c[i]&0xffff)))
				if t == "bf16x2" {
					v |= toBF16(f(fromBF16(a[i]>>16), fromBF16(b[i]>>16), fromBF16(c[i]>>16))) << 16
				}
				d[i] = v
			}
		}
	}
	if t == "bf16" {
		return d.uniform(in, 16)
	}
	return d.uniform(in, 32)
}

// oddTo32 rounds a float64 to odd in float32, so that rounding to bf16 is right.
func oddTo32(s float64) float32 {
	v := float32(s)
	if v != v || math.IsInf(s, 0) || float64(v) == s {
		return v
	}
	v = round32(s, "rz")
	return math.Float32frombits(math.Float32bits(v) | 1)
}
