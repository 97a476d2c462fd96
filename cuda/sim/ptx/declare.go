package ptx

import (
	"encoding/binary"
	"strconv"
	"strings"
)

// variable is a declaration in a state space.
type variable struct {
	name        string
	elem        int // bytes of an element
	size, align int // bytes
}

// The largest objects that are accepted; above them a text is a mistake.
const (
	maxStatic    = 1 << 20
	maxRegisters = 1 << 20 // of all kernels of a module
)

// declaration reads what follows a state space, which is the current token:
// .align 8 .b8 name[48], or .u64 name.
func (p *parser) declaration() (v variable, err error) {
	if err = p.advance(); err != nil {
		return v, err
	}
	if p.is(".align") {
		if err = p.advance(); err != nil {
			return v, err
		}
		if v.align, err = p.integer(); err != nil {
			return v, err
		}
		if v.align == 0 || v.align > 4096 || v.align&(v.align-1) != 0 {
			return v, p.errorf("alignment %d is no power of two up to 4096", v.align)
		}
	}
	vector := 1
	if p.is(".v2") || p.is(".v4") {
		vector = int(p.tok.text[2] - '0')
		if err = p.advance(); err != nil {
			return v, err
		}
	}
	elem, ok := trimType(p.tok.text)
	if !ok || elem == 0 {
		return v, p.errorf("%q where a type should be", p.tok.text)
	}
	if err = p.advance(); err != nil {
		return v, err
	}
	for p.is(".ptr") || p.is(".global") || p.is(".shared") || p.is(".align") { // what a parameter points to
		align := p.is(".align")
		if err = p.advance(); err != nil {
			return v, err
		}
		if align {
			if _, err = p.integer(); err != nil {
				return v, err
			}
		}
	}
	if v.name, err = p.word(); err != nil {
		return v, err
	}
	v.elem = elem
	v.size = elem * vector
	v.align = max(v.align, v.size)
	for p.is("[") {
		if err = p.advance(); err != nil {
			return v, err
		}
		n := 0
		if !p.is("]") {
			if n, err = p.integer(); err != nil {
				return v, err
			}
		}
		if n > maxStatic || v.size*n > maxStatic {
			return v, p.errorf("%s is larger than a MB", v.name)
		}
		v.size *= n
		if err = p.expect("]"); err != nil {
			return v, err
		}
	}
	return v, nil
}

// variable reads a variable of global, constant, shared or local memory, and
// gives it an address. Those of a kernel are in b.
func (p *parser) variable(b *body, extern bool) error {
	spaceName := p.tok.text
	v, err := p.declaration()
	if err != nil {
		return err
	}
	if p.scope.symbols[v.name] != nil {
		return p.errorf("%s is there twice", v.name)
	}
	s := &symbol{name: v.name}
	switch {
	case extern:
		p.dynamic = append(p.dynamic, v)
		s.space = shared
	case spaceName == ".shared":
		s.space = shared
		size := &p.sharedSize
		if b != nil {
			size = &b.kernel.Shared
		}
		at := roundUp(*size, v.align)
		s.addr = uint64(sharedStart + at)
		*size = at + v.size
		if *size > maxStatic {
			return p.errorf("more than a MB of shared memory")
		}
	case spaceName == ".local":
		s.space = local
		at := roundUp(b.kernel.Local, v.align)
		s.addr = uint64(at)
		b.kernel.Local = at + v.size
		if b.kernel.Local > maxStatic {
			return p.errorf("more than a MB of local memory")
		}
	default:
		s.space = constant
		into := &p.module.constants
		if spaceName == ".global" {
			s.space, into = global, &p.module.data
		}
		r := &Region{Bytes: make([]byte, v.size), Name: v.name}
		if p.is("=") {
			if err := p.initial(v, r.Bytes); err != nil {
				return err
			}
		}
		s.addr = p.dataNext
		r.Base = s.addr
		p.dataNext += uint64(roundUp(v.size, 256)) + 256
		*into = append(*into, r)
	}
	p.scope.symbols[v.name] = s
	return p.expect(";")
}

// initial reads the values of a variable.
func (p *parser) initial(v variable, into []byte) error {
	if err := p.advance(); err != nil {
		return err
	}
	braces, err := p.accept("{")
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		if braces && p.is("}") {
			return p.advance()
		}
		negative, err := p.accept("-")
		if err != nil {
			return err
		}
		if p.tok.kind != tokenInteger && p.tok.kind != tokenFloat {
			return p.errorf("%q where a value of %s should be", p.tok.text, v.name)
		}
		if (n+1)*v.elem > len(into) {
			return p.errorf("%s has more values than room", v.name)
		}
		bits := p.tok.bits
		if negative {
			bits = -bits
		}
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], bits)
		copy(into[n*v.elem:(n+1)*v.elem], b[:])
		if err := p.advance(); err != nil {
			return err
		}
		if !braces {
			return nil
		}
		if !p.is("}") {
			if err := p.expect(","); err != nil {
				return err
			}
		}
	}
}

// registers reads .reg .b32 %r<10>; or .reg .pred p, q;
func (p *parser) registers() error {
	if err := p.advance(); err != nil {
		return err
	}
	size, ok := trimType(p.tok.text)
	if !ok {
		return p.errorf("registers of type %q are not supported", p.tok.text)
	}
	c := narrow
	switch size {
	case 0:
		c = predicate
	case 8:
		c = wide
	}
	if err := p.advance(); err != nil {
		return err
	}
	declare := func(name string) error {
		if p.scope.regs[name] != nil {
			return p.errorf("register %s is there twice", name)
		}
		p.scope.regs[name] = &register{name: name, class: c, bits: max(1, 8*size)}
		return nil
	}
	for {
		name, err := p.word()
		if err != nil {
			return err
		}
		if p.is("<") {
			if err := p.advance(); err != nil {
				return err
			}
			n, err := p.integer()
			if err != nil {
				return err
			}
			if p.registerCount += n; p.registerCount > maxRegisters {
				return p.errorf("more than %d registers", maxRegisters)
			}
			for i := range n {
				if err := declare(name + strconv.Itoa(i)); err != nil {
					return err
				}
			}
			if err := p.expect(">"); err != nil {
				return err
			}
		} else if err := declare(name); err != nil {
			return err
		}
		if !p.is(",") {
			return p.expect(";")
		}
		if err := p.advance(); err != nil {
			return err
		}
	}
}

// isSpecial says whether a name is that of a special register.
func isSpecial(name string) bool {
	base, _, _ := strings.Cut(name, ".")
	switch base {
	case "%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%nwarpid", "%clock", "%clock64",
		"%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "WARP_SZ":
		return true
	}
	return false
}
