package ptx

import (
	"fmt"
	"slices"
	"strings"
)

var memoryDecoders = map[string]func(d *decoder, in *inst) error{
	"ld": decodeAccess, "ldu": decodeAccess, "st": decodeAccess, "atom": decodeAtomic, "red": decodeAtomic,
	"ldmatrix": decodeLdmatrix, "cp": decodeCopy, "prefetch": decodePrefetch, "membar": decodeFence, "fence": decodeFence,
}

var spaces = map[string]space{"global": global, "shared": shared, "local": local, "param": param, "const": constant}

// hint says whether a modifier of a load or store changes no value: caching,
// order towards other threads, which blocks that share nothing but atomics do not see.
func hint(m string) bool {
	return slices.Contains([]string{
		"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "volatile", "weak", "relaxed", "acquire", "release", "acq_rel",
		"cta", "gpu", "sys", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
		"L2::64B", "L2::128B", "L2::256B",
	}, m)
}

// decodeAccess decodes ld and st.
func decodeAccess(d *decoder, in *inst) error {
	s := d.s
	vector := 1
	n, kind := typeBits(d.typ())
	if n < 8 || d.typ() == "f16" {
		return d.unknown()
	}
	for _, m := range s.mods[:len(s.mods)-1] {
		sp, ok := spaces[m]
		switch {
		case ok && in.space == generic:
			in.space = sp
		case m == "v2" || m == "v4":
			vector = int(m[1] - '0')
		case !hint(m):
			return d.unknown()
		}
	}
	if vector*n > 128 {
		return d.unknown()
	}
	if err := d.count(2); err != nil {
		return err
	}
	write := s.op == "st"
	value, address := s.args[0], s.args[1]
	if write {
		value, address = address, value
	}
	if write && (in.space == constant || in.space == param) {
		return fmt.Errorf("%s memory cannot be written", s.mods[0])
	}
	elements := []operand{value}
	if vector > 1 {
		if value.kind != operandVector || len(value.list) != vector {
			return fmt.Errorf("%s is no vector of %d", value.name, vector)
		}
		elements = value.list
	}
	in.size = int32(n / 8)
	in.vec = make([]int32, len(elements))
	in.signed = kind == 's'
	width := n // of the registers, which may be wider than memory
	for _, e := range elements {
		if e.kind == operandRegister && kind != 'f' {
			width = max(width, e.reg.bits)
		}
	}
	for i, e := range elements {
		var err error
		if write {
			err = d.source(&in.vec[i], e, width)
		} else {
			err = d.dest(&in.vec[i], e, width)
		}
		if err != nil {
			return err
		}
	}
	in.wide = width == 64
	in.cut = ^uint32(0) >> max(0, 32-width)
	in.run = load
	if write {
		in.run = store
	}
	return d.decodeAddress(&in.form, &in.a, &in.off, address)
}

func decodePrefetch(d *decoder, in *inst) error {
	if len(d.s.mods) < 1 || len(d.s.args) != 1 {
		return d.unknown()
	}
	var form int32
	return d.decodeAddress(&form, &in.a, &in.off, d.s.args[0])
}

// decodeFence accepts fences: here memory is seen in one order.
func decodeFence(d *decoder, _ *inst) error {
	if err := d.only("cta", "gl", "gpu", "sys", "sc", "acq_rel"); err != nil {
		return err
	}
	return d.count(0)
}

// decodeCopy decodes the forms of cp.async.
func decodeCopy(d *decoder, in *inst) error {
	s := d.s
	form := strings.Join(s.mods, ".")
	switch form {
	case "async.commit_group":
		in.run = commitGroup
		return d.count(0)
	case "async.wait_all":
		in.run = waitAll
		return d.count(0)
	case "async.wait_group":
		if err := d.count(1); err != nil {
			return err
		}
		if s.args[0].kind != operandImmediate || s.args[0].bits > 1<<20 {
			return fmt.Errorf("the number of groups is a constant")
		}
		in.run, in.off = waitGroup, s.args[0].bits
		return nil
	}
	if len(s.mods) < 4 || s.mods[0] != "async" || s.mods[1] != "ca" && s.mods[1] != "cg" || s.mods[2] != "shared" || s.mods[3] != "global" {
		return d.unknown()
	}
	for _, m := range s.mods[4:] {
		if !strings.HasPrefix(m, "L2::") {
			return d.unknown()
		}
	}
	if len(s.args) != 3 && len(s.args) != 4 {
		return d.count(3)
	}
	size := s.args[2]
	if size.kind != operandImmediate || size.bits != 4 && size.bits != 8 && size.bits != 16 || s.mods[1] == "cg" && size.bits != 16 {
		return fmt.Errorf("cp.async.%s of %s bytes: ca copies 4, 8 or 16, cg 16", s.mods[1], size.name)
	}
	in.size = int32(size.bits)
	source := operand{kind: operandImmediate, bits: size.bits}
	if len(s.args) == 4 {
		source = s.args[3]
	}
	if err := d.source(&in.c, source, 32); err != nil {
		return err
	}
	if err := d.decodeAddress(&in.form, &in.a, &in.off, s.args[0]); err != nil {
		return err
	}
	if err := d.decodeAddress(&in.form2, &in.b, &in.off2, s.args[1]); err != nil {
		return err
	}
	in.run = copyAsync
	return nil
}
