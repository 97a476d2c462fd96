package ptx

// The integer instructions, by opcode.
var integerDecoders = map[string]func(d *decoder, in *inst) error{
	"add": decodeArithmetic, "sub": decodeArithmetic, "mul": decodeArithmetic, "mad": decodeArithmetic,
	"div": decodeArithmetic, "rem": decodeArithmetic, "min": decodeArithmetic, "max": decodeArithmetic,
	"abs": decodeArithmetic, "neg": decodeArithmetic,
	"and": decodeLogic, "or": decodeLogic, "xor": decodeLogic, "not": decodeLogic, "cnot": decodeLogic,
	"shl": decodeShift, "shr": decodeShift, "shf": decodeFunnel,
	"lop3": decodeLop3, "prmt": decodePermute, "bfe": decodeExtract, "bfi": decodeInsert,
	"popc": decodeCount, "clz": decodeCount, "brev": decodeCount, "bfind": decodeCount,
	"sad": decodeArithmetic, "mul24": decodeMul24, "mad24": decodeMul24,
}

// decodeArithmetic decodes what integers and floats have in common.
func decodeArithmetic(d *decoder, in *inst) error {
	t := d.typ()
	n, kind := typeBits(t)
	if kind == 'f' || n == 0 {
		return decodeFloat(d, in)
	}
	if n < 16 || kind == 'b' {
		return d.unknown()
	}
	s := d.s
	args := map[string]int{"abs": 2, "neg": 2, "mad": 4, "sad": 4}[s.op]
	if args == 0 {
		args = 3
	}
	if err := d.count(args); err != nil {
		return err
	}
	signed := kind == 's'
	form := ""
	if s.op == "mul" || s.op == "mad" {
		if len(s.mods) != 2 {
			return d.unknown()
		}
		form = s.mods[0]
		if form == "wide" {
			return d.decodeWide(in, n, signed)
		}
		if form != "lo" && form != "hi" {
			return d.unknown()
		}
	} else if len(s.mods) != 1 {
		return d.unknown()
	}
	if err := d.uniform(in, n); err != nil {
		return err
	}
	if n == 64 {
		f := arithmetic64(s.op, form, signed)
		if f == nil {
			return d.unknown()
		}
		in.run, in.f64 = run64, f
		return nil
	}
	f := arithmetic32(s.op, form, signed)
	if f == nil {
		return d.unknown()
	}
	in.run, in.f32 = run32, f
	if n == 16 {
		if form == "hi" {
			return d.unknown()
		}
		in.f32 = in16(f, signed)
	}
	return nil
}

// in16 makes an operation on 32 bits one on 16: its operands are extended, its result is cut.
func in16(f func(d, a, b, c *slot32), signed bool) func(d, a, b, c *slot32) {
	return func(d, a, b, c *slot32) {
		if signed {
			var x, y, z slot32
			for i := range x {
				x[i] = uint32(int32(int16(a[i])))
				y[i] = uint32(int32(int16(b[i])))
				z[i] = uint32(int32(int16(c[i])))
			}
			f(d, &x, &y, &z)
		} else {
			f(d, a, b, c)
		}
		for i := range d {
			d[i] &= 0xffff
		}
	}
}

// decodeWide decodes products of twice the width.
func (d *decoder) decodeWide(in *inst, n int, signed bool) error {
	if n == 64 {
		return d.unknown()
	}
	s := d.s
	if err := d.dest(&in.d, s.args[0], 2*n); err != nil {
		return err
	}
	if err := d.source(&in.a, s.args[1], n); err != nil {
		return err
	}
	if err := d.source(&in.b, s.args[2], n); err != nil {
		return err
	}
	if s.op == "mad" {
		if err := d.source(&in.c, s.args[3], 2*n); err != nil {
			return err
		}
	}
	mad := s.op == "mad"
	if n == 16 {
		in.run = run32
		in.f32 = func(d, a, b, c *slot32) {
			for i := range d {
				p := a[i] * b[i]
				if signed {
					p = uint32(int32(int16(a[i])) * int32(int16(b[i])))
				}
				if mad {
					p += c[i]
				}
				d[i] = p
			}
		}
		return nil
	}
	in.run = runTo64
	switch {
	case signed && mad:
		in.to64 = func(d *slot64, a, b *slot32, c *slot64) {
			for i := range d {
				d[i] = uint64(int64(int32(a[i]))*int64(int32(b[i]))) + c[i]
			}
		}
	case signed:
		in.to64 = func(d *slot64, a, b *slot32, _ *slot64) {
			for i := range d {
				d[i] = uint64(int64(int32(a[i])) * int64(int32(b[i])))
			}
		}
	case mad:
		in.to64 = func(d *slot64, a, b *slot32, c *slot64) {
			for i := range d {
				d[i] = uint64(a[i])*uint64(b[i]) + c[i]
			}
		}
	default:
		in.to64 = func(d *slot64, a, b *slot32, _ *slot64) {
			for i := range d {
				d[i] = uint64(a[i]) * uint64(b[i])
			}
		}
	}
	return nil
}

// arithmetic32 returns the loop of an operation on 32 bits.
func arithmetic32(op, form string, signed bool) func(d, a, b, c *slot32) {
	switch op {
	case "add":
		return func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = a[i] + b[i]
			}
		}
	case "sub":
		return func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = a[i] - b[i]
			}
		}
	case "mul":
		switch {
		case form == "lo":
			return func(d, a, b, _ *slot32) {
				for i := range d {
					d[i] = a[i] * b[i]
				}
			}
		case signed:
			return func(d, a, b, _ *slot32) {
				for i := range d {
					d[i] = uint32(uint64(int64(int32(a[i]))*int64(int32(b[i]))) >> 32)
				}
			}
		}
		return func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = uint32(uint64(a[i]) * uint64(b[i]) >> 32)
			}
		}
	case "mad":
		product := arithmetic32("mul", form, signed)
		if form == "lo" {
			return func(d, a, b, c *slot32) {
				for i := range d {
					d[i] = a[i]*b[i] + c[i]
				}
			}
		}
		return func(d, a, b, c *slot32) {
			var p slot32
			product(&p, a, b, nil)
			for i := range d {
				d[i] = p[i] + c[i]
			}
		}
	case "neg":
		return func(d, a, _, _ *slot32) {
			for i := range d {
				d[i] = -a[i]
			}
		}
	}
	if signed {
		return signed32(op)
	}
	switch op {
	case "div": // what PTX leaves undefined by zero is all ones, as devices give
		return each32(func(x, y uint32) uint32 {
			if y == 0 {
				return allLanes
			}
			return x / y
		})
	case "rem":
		return each32(func(x, y uint32) uint32 {
			if y == 0 {
				return x
			}
			return x % y
		})
	case "min":
		return func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = min(a[i], b[i])
			}
		}
	case "max":
		return func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = max(a[i], b[i])
			}
		}
	case "sad":
		return func(d, a, b, c *slot32) {
			for i := range d {
				d[i] = c[i] + max(a[i], b[i]) - min(a[i], b[i])
			}
		}
	}
	return nil
}

func signed32(op string) func(d, a, b, c *slot32) {
	switch op {
	case "div":
		return each32(func(x, y uint32) uint32 {
			if y == 0 {
				return allLanes
			}
			return uint32(int32(x) / int32(y))
		})
	case "rem":
		return each32(func(x, y uint32) uint32 {
			if y == 0 {
				return x
			}
			return uint32(int32(x) % int32(y))
		})
	case "min":
		return func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = uint32(min(int32(a[i]), int32(b[i])))
			}
		}
	case "max":
		return func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = uint32(max(int32(a[i]), int32(b[i])))
			}
		}
	case "abs":
		return func(d, a, _, _ *slot32) {
			for i := range d {
				d[i] = uint32(max(int32(a[i]), -int32(a[i])))
			}
		}
	case "sad":
		return func(d, a, b, c *slot32) {
			for i := range d {
				d[i] = c[i] + uint32(max(int32(a[i]), int32(b[i]))-min(int32(a[i]), int32(b[i])))
			}
		}
	}
	return nil
}

func each32(f func(x, y uint32) uint32) func(d, a, b, c *slot32) {
	return func(d, a, b, _ *slot32) {
		for i := range d {
			d[i] = f(a[i], b[i])
		}
	}
}

// decodeMul24 decodes products of 24-bit numbers, of which only the low form is known.
func decodeMul24(d *decoder, in *inst) error {
	n, kind := typeBits(d.typ())
	if n != 32 || len(d.s.mods) != 2 || d.s.mods[0] != "lo" {
		return d.unknown()
	}
	args := 3
	if d.s.op == "mad24" {
		args = 4
	}
	if err := d.count(args); err != nil {
		return err
	}
	in.run = run32
	signed := kind == 's'
	in.f32 = func(d, a, b, c *slot32) {
		for i := range d {
			p := (a[i] & 0xffffff) * (b[i] & 0xffffff)
			if signed {
				p = uint32(int32(a[i]<<8) >> 8 * (int32(b[i]<<8) >> 8))
			}
			if args == 4 {
				p += c[i]
			}
			d[i] = p
		}
	}
	return d.uniform(in, 32)
}
