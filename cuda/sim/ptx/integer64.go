package ptx

import "math/bits"

func each64(f func(x, y uint64) uint64) func(d, a, b, c *slot64) {
	return func(d, a, b, _ *slot64) {
		for i := range d {
			d[i] = f(a[i], b[i])
		}
	}
}

// arithmetic64 returns the loop of an operation on 64 bits.
func arithmetic64(op, form string, signed bool) func(d, a, b, c *slot64) {
	switch op {
	case "add":
		return func(d, a, b, _ *slot64) {
			for i := range d {
				d[i] = a[i] + b[i]
			}
		}
	case "sub":
		return func(d, a, b, _ *slot64) {
			for i := range d {
				d[i] = a[i] - b[i]
			}
		}
	case "mul":
		if form == "lo" {
			return func(d, a, b, _ *slot64) {
				for i := range d {
					d[i] = a[i] * b[i]
				}
			}
		}
		return each64(func(x, y uint64) uint64 {
			hi, _ := bits.Mul64(x, y)
			if signed {
				hi -= uint64(int64(x)>>63)&y + uint64(int64(y)>>63)&x
			}
			return hi
		})
	case "mad":
		product := arithmetic64("mul", form, signed)
		return func(d, a, b, c *slot64) {
			var p slot64
			product(&p, a, b, nil)
			for i := range d {
				d[i] = p[i] + c[i]
			}
		}
	case "neg":
		return each64(func(x, _ uint64) uint64 { return -x })
	case "div":
		return each64(func(x, y uint64) uint64 {
			switch {
			case y == 0:
				return ^uint64(0)
			case signed:
				return uint64(int64(x) / int64(y))
			}
			return x / y
		})
	case "rem":
		return each64(func(x, y uint64) uint64 {
			switch {
			case y == 0:
				return x
			case signed:
				return uint64(int64(x) % int64(y))
			}
			return x % y
		})
	case "min":
		if signed {
			return each64(func(x, y uint64) uint64 { return uint64(min(int64(x), int64(y))) })
		}
		return each64(func(x, y uint64) uint64 { return min(x, y) })
	case "max":
		if signed {
			return each64(func(x, y uint64) uint64 { return uint64(max(int64(x), int64(y))) })
		}
		return each64(func(x, y uint64) uint64 { return max(x, y) })
	case "abs":
		if signed {
			return each64(func(x, _ uint64) uint64 { return uint64(max(int64(x), -int64(x))) })
		}
	}
	return nil
}
