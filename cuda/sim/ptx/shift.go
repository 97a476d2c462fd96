package ptx

// decodeShift decodes shl and shr. Shifts by the width or more give what bits
// shifted out leave: zeros, or the sign.
func decodeShift(d *decoder, in *inst) error {
	n, kind := typeBits(d.typ())
	if len(d.s.mods) != 1 || n < 16 || kind == 'f' {
		return d.unknown()
	}
	if err := d.count(3); err != nil {
		return err
	}
	if err := d.dest(&in.d, d.s.args[0], n); err != nil {
		return err
	}
	if err := d.source(&in.a, d.s.args[1], n); err != nil {
		return err
	}
	if err := d.source(&in.b, d.s.args[2], 32); err != nil {
		return err
	}
	left, signed := d.s.op == "shl", kind == 's'
	if n == 64 {
		in.run = runShift64
		switch {
		case left:
			in.shift64 = func(d, a *slot64, b *slot32) {
				for i := range d {
					d[i] = a[i] << b[i]
				}
			}
		case signed:
			in.shift64 = func(d, a *slot64, b *slot32) {
				for i := range d {
					d[i] = uint64(int64(a[i]) >> b[i])
				}
			}
		default:
			in.shift64 = func(d, a *slot64, b *slot32) {
				for i := range d {
					d[i] = a[i] >> b[i]
				}
			}
		}
		return nil
	}
	in.run = run32
	cut := uint32(1<<n - 1)
	switch {
	case left:
		in.f32 = func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = a[i] << b[i] & cut
			}
		}
	case signed && n == 16:
		in.f32 = func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = uint32(int32(int16(a[i]))>>b[i]) & cut
			}
		}
	case signed:
		in.f32 = func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = uint32(int32(a[i]) >> b[i])
			}
		}
	default:
		in.f32 = func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = a[i] >> b[i]
			}
		}
	}
	return nil
}

// decodeFunnel decodes shf, a shift of the pair b:a.
func decodeFunnel(d *decoder, in *inst) error {
	if len(d.s.mods) != 3 || d.s.mods[2] != "b32" {
		return d.unknown()
	}
	if err := d.count(4); err != nil {
		return err
	}
	var most uint32
	switch d.s.mods[1] {
	case "wrap":
		most = 31
	case "clamp":
		most = 32
	default:
		return d.unknown()
	}
	amount := func(c uint32) uint32 {
		if most == 31 {
			return c & 31
		}
		return min(c, 32)
	}
	switch d.s.mods[0] {
	case "l":
		in.f32 = func(d, a, b, c *slot32) {
			for i := range d {
				d[i] = uint32((uint64(b[i])<<32 | uint64(a[i])) << amount(c[i]) >> 32)
			}
		}
	case "r":
		in.f32 = func(d, a, b, c *slot32) {
			for i := range d {
				d[i] = uint32((uint64(b[i])<<32 | uint64(a[i])) >> amount(c[i]))
			}
		}
	default:
		return d.unknown()
	}
	in.run = run32
	return d.uniform(in, 32)
}
