package ptx

import (
	"errors"
	"fmt"
	"math/bits"
)

var errNoAddress = errors.New("an address in brackets is wanted")

// decodeLogic decodes and, or, xor, not of bits and of predicates.
func decodeLogic(d *decoder, in *inst) error {
	n, kind := typeBits(d.typ())
	if len(d.s.mods) != 1 || n == 0 || n == 8 || kind != 'b' && kind != 'p' {
		return d.unknown()
	}
	args := 3
	if d.s.op == "not" || d.s.op == "cnot" {
		args = 2
	}
	if err := d.count(args); err != nil {
		return err
	}
	if kind == 'p' {
		return d.decodePredicateLogic(in)
	}
	if err := d.uniform(in, n); err != nil {
		return err
	}
	if n == 64 {
		in.run = run64
		in.f64 = map[string]func(d, a, b, c *slot64){
			"and": func(d, a, b, _ *slot64) {
				for i := range d {
					d[i] = a[i] & b[i]
				}
			},
			"or": func(d, a, b, _ *slot64) {
				for i := range d {
					d[i] = a[i] | b[i]
				}
			},
			"xor": func(d, a, b, _ *slot64) {
				for i := range d {
					d[i] = a[i] ^ b[i]
				}
			},
			"not": each64(func(x, _ uint64) uint64 { return ^x }),
			"cnot": each64(func(x, _ uint64) uint64 {
				if x == 0 {
					return 1
				}
				return 0
			}),
		}[d.s.op]
		return nil
	}
	cut := uint32(1<<n - 1)
	in.run = run32
	in.f32 = map[string]func(d, a, b, c *slot32){
		"and": func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = a[i] & b[i]
			}
		},
		"or": func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = a[i] | b[i]
			}
		},
		"xor": func(d, a, b, _ *slot32) {
			for i := range d {
				d[i] = a[i] ^ b[i]
			}
		},
		"not": func(d, a, _, _ *slot32) {
			for i := range d {
				d[i] = ^a[i] & cut
			}
		},
		"cnot": each32(func(x, _ uint32) uint32 {
			if x == 0 {
				return 1
			}
			return 0
		}),
	}[d.s.op]
	return nil
}

func (d *decoder) decodePredicateLogic(in *inst) error {
	if d.s.op == "cnot" {
		return d.unknown()
	}
	if err := d.uniform(in, 1); err != nil {
		return err
	}
	in.run = map[string]func(w *warp, in *inst, m uint32){
		"and": func(w *warp, in *inst, m uint32) { w.p[in.d] = w.p[in.d]&^m | w.p[in.a]&w.p[in.b]&m },
		"or":  func(w *warp, in *inst, m uint32) { w.p[in.d] = w.p[in.d]&^m | (w.p[in.a]|w.p[in.b])&m },
		"xor": func(w *warp, in *inst, m uint32) { w.p[in.d] = w.p[in.d]&^m | (w.p[in.a]^w.p[in.b])&m },
		"not": func(w *warp, in *inst, m uint32) { w.p[in.d] = w.p[in.d]&^m | ^w.p[in.a]&m },
	}[d.s.op]
	return nil
}

// decodeLop3 decodes any function of three bits: the table holds its value for each of the eight.
func decodeLop3(d *decoder, in *inst) error {
	if len(d.s.mods) != 1 || d.s.mods[0] != "b32" {
		return d.unknown()
	}
	if err := d.count(5); err != nil {
		return err
	}
	if d.s.args[4].kind != operandImmediate || d.s.args[4].bits > 255 {
		return fmt.Errorf("the table is a number from 0 to 255")
	}
	table := d.s.args[4].bits
	d.s.args = d.s.args[:4]
	var on [8]uint32
	for i := range on {
		on[i] = -uint32(table >> i & 1)
	}
	in.run = run32
	in.f32 = func(d, a, b, c *slot32) {
		for i := range d {
			x, y, z := a[i], b[i], c[i]
			d[i] = on[0]&^x&^y&^z | on[1]&^x&^y&z | on[2]&^x&y&^z | on[3]&^x&y&z |
				on[4]&x&^y&^z | on[5]&x&^y&z | on[6]&x&y&^z | on[7]&x&y&z
		}
	}
	return d.uniform(in, 32)
}

// decodePermute decodes prmt, which picks four of the eight bytes of b:a.
func decodePermute(d *decoder, in *inst) error {
	if len(d.s.mods) != 1 || d.s.mods[0] != "b32" {
		return d.unknown()
	}
	if err := d.count(4); err != nil {
		return err
	}
	in.run = run32
	in.f32 = func(d, a, b, c *slot32) {
		for i := range d {
			both := uint64(b[i])<<32 | uint64(a[i])
			var v uint32
			for j := range 4 {
				sel := c[i] >> (4 * j)
				x := uint32(both>>(8*(sel&7))) & 0xff
				if sel&8 != 0 { // its sign, eight times
					x = uint32(int32(int8(x))>>7) & 0xff
				}
				v |= x << (8 * j)
			}
			d[i] = v
		}
	}
	return d.uniform(in, 32)
}

// decodeExtract decodes bfe: c bits of a from position b.
func decodeExtract(d *decoder, in *inst) error {
	n, kind := typeBits(d.typ())
	if len(d.s.mods) != 1 || n < 32 || kind != 'u' && kind != 's' {
		return d.unknown()
	}
	if err := d.count(4); err != nil {
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
	if err := d.source(&in.c, d.s.args[3], 32); err != nil {
		return err
	}
	extract := func(x uint64, b, c uint32) uint64 {
		pos, length := b&0xff, c&0xff
		var sign uint64
		if kind == 's' && length > 0 {
			sign = -(x >> min(pos+length-1, uint32(n-1)) & 1)
		}
		x >>= pos
		if pos >= uint32(n) {
			x = 0
		}
		if pos < uint32(n) {
			length = min(length, uint32(n)-pos)
		} else {
			length = 0
		}
		keep := uint64(1)<<length - 1
		return x&keep | sign&^keep
	}
	in.run = func(w *warp, in *inst, m uint32) {
		for i := range 32 {
			if m>>i&1 == 0 {
				continue
			}
			if n == 64 {
				w.r64[in.d][i] = extract(w.r64[in.a][i], w.r32[in.b][i], w.r32[in.c][i])
			} else {
				w.r32[in.d][i] = uint32(extract(uint64(w.r32[in.a][i]), w.r32[in.b][i], w.r32[in.c][i]))
			}
		}
	}
	return nil
}

// decodeInsert decodes bfi: d bits of a, put into b from position c on.
func decodeInsert(d *decoder, in *inst) error {
	n, kind := typeBits(d.typ())
	if len(d.s.mods) != 1 || n < 32 || kind != 'b' {
		return d.unknown()
	}
	if err := d.count(5); err != nil {
		return err
	}
	if err := d.dest(&in.d, d.s.args[0], n); err != nil {
		return err
	}
	for i, f := range []*int32{&in.a, &in.b} {
		if err := d.source(f, d.s.args[1+i], n); err != nil {
			return err
		}
	}
	for i, f := range []*int32{&in.c, &in.e} {
		if err := d.source(f, d.s.args[3+i], 32); err != nil {
			return err
		}
	}
	insert := func(x, into uint64, c, e uint32) uint64 {
		mask := (uint64(1)<<(e&0xff) - 1) << (c & 0xff)
		return into&^mask | x<<(c&0xff)&mask
	}
	in.run = func(w *warp, in *inst, m uint32) {
		for i := range 32 {
			if m>>i&1 == 0 {
				continue
			}
			if n == 64 {
				w.r64[in.d][i] = insert(w.r64[in.a][i], w.r64[in.b][i], w.r32[in.c][i], w.r32[in.e][i])
			} else {
				w.r32[in.d][i] = uint32(insert(uint64(w.r32[in.a][i]), uint64(w.r32[in.b][i]), w.r32[in.c][i], w.r32[in.e][i]))
			}
		}
	}
	return nil
}

// decodeCount decodes popc, clz, bfind and brev.
func decodeCount(d *decoder, in *inst) error {
	n, kind := typeBits(d.typ())
	find := d.s.op == "bfind"
	shift := find && d.has("shiftamt") // how far to shift it to the top, and not where it is
	if n < 32 || len(d.s.mods) != 1+int(bit(shift)) || find != (kind == 'u' || kind == 's') {
		return d.unknown()
	}
	if err := d.count(2); err != nil {
		return err
	}
	if d.s.op == "brev" {
		if n == 64 {
			in.run, in.f64 = run64, each64(func(x, _ uint64) uint64 { return bits.Reverse64(x) })
		} else {
			in.run, in.f32 = run32, each32(func(x, _ uint32) uint32 { return bits.Reverse32(x) })
		}
		return d.uniform(in, n)
	}
	if err := d.dest(&in.d, d.s.args[0], 32); err != nil {
		return err
	}
	if err := d.source(&in.a, d.s.args[1], n); err != nil {
		return err
	}
	var f func(x uint64) uint32
	switch d.s.op {
	case "popc":
		f = func(x uint64) uint32 { return uint32(bits.OnesCount64(x)) }
	case "clz":
		f = func(x uint64) uint32 { return uint32(bits.LeadingZeros64(x) - 64 + n) }
	case "bfind": // the highest bit that is not the sign; none: all ones
		f = func(x uint64) uint32 {
			if kind == 's' {
				if n == 32 && int32(x) < 0 {
					x = uint64(^uint32(x))
				} else if n == 64 && int64(x) < 0 {
					x = ^x
				}
			}
			if shift && x != 0 {
				return uint32(n - bits.Len64(x))
			}
			return uint32(bits.Len64(x) - 1)
		}
	}
	if n == 64 {
		in.run = runTo32
		in.to32 = func(d *slot32, a *slot64, _ *slot32) {
			for i := range d {
				d[i] = f(a[i])
			}
		}
		return nil
	}
	in.run = run32
	in.f32 = func(d, a, _, _ *slot32) {
		for i := range d {
			d[i] = f(uint64(a[i]))
		}
	}
	return nil
}
