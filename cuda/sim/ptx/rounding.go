package ptx

import "math"

// Rounding once what a double cannot hold, and in the directions that a processor
// would have to be told.

// toOdd returns p + z, where what does not fit sets the last bit. Rounding that
// once more is as rounding the exact sum once (Boldo and Melquiond, 2008).
func toOdd(p, z float64) float64 {
	s := p + z
	if math.IsInf(s, 0) || s != s {
		return s
	}
	t := s - p
	rest := (p - (s - t)) + (z - t)
	if rest == 0 {
		return s
	}
	u := math.Float64bits(s)
	if u&1 == 0 {
		if (rest > 0) == (s > 0) {
			u++
		} else {
			u--
		}
	}
	return math.Float64frombits(u)
}

// directed returns the loops that round toward zero, down or up.
func directed(op, rounding string) func(d, a, b, c *slot32) {
	return func(d, a, b, c *slot32) {
		for i := range d {
			x, y, z := float64(math.Float32frombits(a[i])), float64(math.Float32frombits(b[i])), float64(math.Float32frombits(c[i]))
			var s float64
			switch op {
			case "add":
				s = toOdd(x, y)
			case "sub":
				s = toOdd(x, -y)
			case "mul":
				s = x * y // exact
			default:
				s = toOdd(x*y, z)
			}
			v := round32(s, rounding)
			d[i] = math.Float32bits(v)
			if v != v {
				d[i] = nan32
			}
		}
	}
}

// round32 rounds in a direction.
func round32(s float64, rounding string) float32 {
	v := float32(s)
	if math.IsInf(s, 0) {
		return v
	}
	switch {
	case float64(v) > s && (rounding == "rm" || rounding == "rz" && s > 0):
		v = math.Nextafter32(v, float32(math.Inf(-1)))
	case float64(v) < s && (rounding == "rp" || rounding == "rz" && s < 0):
		v = math.Nextafter32(v, float32(math.Inf(1)))
	}
	return v
}
