package ptx

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// reference is a place in a decoded instruction that names a register: its index
// is filled in when registers have been given slots.
type reference struct {
	field *int32
	reg   *register
	def   bool // it is written; else read
}

// decoder turns the statements of one kernel into instructions.
type decoder struct {
	kernel     *Kernel
	statements []statement
	code       []inst
	refs       [][]reference // of each instruction

	constants [3]map[uint64]*register // pinned, by class and bits
	specials  map[string]*register
	pinned    [3][]*register

	s  *statement // being decoded
	at int
}

// decodeKernel makes a kernel ready to run.
func decodeKernel(b *body, files map[int]string) error {
	n := len(b.statements)
	d := &decoder{
		kernel:     b.kernel,
		statements: b.statements,
		code:       make([]inst, n+1),
		refs:       make([][]reference, n+1),
		specials:   map[string]*register{},
	}
	for i := range d.constants {
		d.constants[i] = map[uint64]*register{}
	}
	k := b.kernel
	k.places = make([]place, n)
	k.files = files
	for i := range b.statements {
		d.s, d.at = &b.statements[i], i
		k.places[i] = d.s.place
		in := &d.code[i]
		if err := d.decode(in); err != nil {
			return fmt.Errorf("line %d: %s: %w", d.s.line, d.s.text, err)
		}
	}
	d.code[n] = inst{control: leave} // what runs off the end returns
	k.code = d.code
	d.assign()
	return nil
}

// decode fills in one instruction.
func (d *decoder) decode(in *inst) error {
	s := d.s
	if s.guard != nil {
		in.guarded = true
		if s.not {
			in.flip = allLanes
		}
		d.refer(&in.guard, s.guard, false)
	}
	if err := decoders[s.op](d, in); err != nil {
		return err
	}
	if in.run == nil && in.control == compute {
		in.run = func(*warp, *inst, uint32) {}
	}
	return nil
}

// decoders decode the instructions, by what stands before the first dot.
var decoders map[string]func(d *decoder, in *inst) error

func init() {
	decoders = map[string]func(d *decoder, in *inst) error{}
	for _, m := range []map[string]func(d *decoder, in *inst) error{
		integerDecoders, floatDecoders, moveDecoders, memoryDecoders, controlDecoders, warpDecoders,
	} {
		maps.Copy(decoders, m)
	}
}

// unknown is the error about a form of an instruction that is not known.
func (d *decoder) unknown() error {
	return fmt.Errorf("unknown form %s.%s", d.s.op, strings.Join(d.s.mods, "."))
}

// typ returns the last modifier, which is the type of most instructions.
func (d *decoder) typ() string {
	if len(d.s.mods) == 0 {
		return ""
	}
	return d.s.mods[len(d.s.mods)-1]
}

// only refuses modifiers that are not among those allowed.
func (d *decoder) only(allowed ...string) error {
	for _, m := range d.s.mods {
		if !slices.Contains(allowed, m) {
			return d.unknown()
		}
	}
	return nil
}

func (d *decoder) has(mod string) bool { return slices.Contains(d.s.mods, mod) }

// count refuses another number of operands.
func (d *decoder) count(n int) error {
	if len(d.s.args) != n {
		return fmt.Errorf("%d operands, and not %d", n, len(d.s.args))
	}
	return nil
}

// refer notes that a field names a register.
func (d *decoder) refer(field *int32, r *register, def bool) {
	d.refs[d.at] = append(d.refs[d.at], reference{field, r, def})
}

// constant returns the pinned register that holds bits in every lane.
func (d *decoder) constant(c class, bits uint64) *register {
	if r := d.constants[c][bits]; r != nil {
		return r
	}
	r := &register{class: c, pinned: true}
	d.constants[c][bits] = r
	d.pin(r)
	switch c {
	case predicate:
		if bits != 0 {
			d.kernel.truths = append(d.kernel.truths, r.slot)
		}
	case narrow:
		var v slot32
		for i := range v {
			v[i] = uint32(bits)
		}
		d.kernel.r32 = append(d.kernel.r32, v)
	case wide:
		var v slot64
		for i := range v {
			v[i] = bits
		}
		d.kernel.r64 = append(d.kernel.r64, v)
	}
	return r
}

func (d *decoder) pin(r *register) {
	r.slot = int32(len(d.pinned[r.class]))
	d.pinned[r.class] = append(d.pinned[r.class], r)
}

// special returns the pinned register that stands for a special one. A block
// fills it in before it runs.
func (d *decoder) special(name string) (*register, error) {
	if r := d.specials[name]; r != nil {
		return r, nil
	}
	var which specialRegister
	base, dim, _ := strings.Cut(name, ".")
	i := slices.Index([]string{"x", "y", "z"}, dim)
	switch {
	case base == "%tid" && i >= 0:
		which = tidX + specialRegister(i)
	case base == "%ntid" && i >= 0:
		which = ntidX + specialRegister(i)
	case base == "%ctaid" && i >= 0:
		which = ctaidX + specialRegister(i)
	case base == "%nctaid" && i >= 0:
		which = nctaidX + specialRegister(i)
	default:
		var ok bool
		if which, ok = plainSpecials[name]; !ok {
			return nil, fmt.Errorf("unknown register %s", name)
		}
	}
	r := &register{name: name, class: narrow, bits: 32, pinned: true}
	d.specials[name] = r
	d.pin(r)
	d.kernel.r32 = append(d.kernel.r32, slot32{})
	d.kernel.specials = append(d.kernel.specials, special{which, r.slot})
	return r, nil
}

// source makes a field name the register that holds an operand. Bits is the
// width of the instruction's type, from which the class follows.
func (d *decoder) source(field *int32, o operand, bits int) error {
	c := classOf(bits)
	switch o.kind {
	case operandRegister:
		if o.reg.class != c {
			return fmt.Errorf("register %s has %d bits where %d are wanted", o.name, o.reg.bits, bits)
		}
		if o.not {
			return fmt.Errorf("!%s is not allowed here", o.name)
		}
		d.refer(field, o.reg, false)
	case operandImmediate:
		v := o.bits
		if bits < 64 {
			v &= 1<<bits - 1
		}
		d.refer(field, d.constant(c, v), false)
	case operandFloat:
		v, err := floatBits(o, bits)
		if err != nil {
			return err
		}
		d.refer(field, d.constant(c, v), false)
	case operandSpecial:
		if o.name == "WARP_SZ" {
			d.refer(field, d.constant(c, 32), false)
			return nil
		}
		if c != narrow {
			return fmt.Errorf("%s has 32 bits", o.name)
		}
		r, err := d.special(o.name)
		if err != nil {
			return err
		}
		d.refer(field, r, false)
	case operandSymbol:
		if o.sym == nil {
			return fmt.Errorf("%s is not declared", o.name)
		}
		d.refer(field, d.constant(c, o.sym.addr), false)
	default:
		return fmt.Errorf("%s is no single value", o.name)
	}
	return nil
}

// dest makes a field name the register that an instruction writes.
func (d *decoder) dest(field *int32, o operand, bits int) error {
	switch o.kind {
	case operandRegister:
		if o.reg.class != classOf(bits) {
			return fmt.Errorf("register %s has %d bits where %d are written", o.name, o.reg.bits, bits)
		}
		d.refer(field, o.reg, true)
	case operandSink:
		d.refer(field, &register{class: classOf(bits), bits: bits}, true)
	default:
		return fmt.Errorf("%s cannot be written", o.name)
	}
	return nil
}

// sources and dest of instructions d, a, b, c of one width, as many as there are operands.
func (d *decoder) uniform(in *inst, bits int) error {
	if err := d.dest(&in.d, d.s.args[0], bits); err != nil {
		return err
	}
	for i, field := range []*int32{&in.a, &in.b, &in.c}[:len(d.s.args)-1] {
		if err := d.source(field, d.s.args[i+1], bits); err != nil {
			return err
		}
	}
	return nil
}

func classOf(bits int) class {
	switch {
	case bits == 1:
		return predicate
	case bits <= 32:
		return narrow
	}
	return wide
}

// typeBits returns the width of a type, and its letter: b, u, s or f. Width 1 is .pred, 0 unknown.
func typeBits(t string) (int, byte) {
	if t == "pred" {
		return 1, 'p'
	}
	switch t {
	case "b8", "u8", "s8":
		return 8, t[0]
	case "b16", "u16", "s16", "f16":
		return 16, t[0]
	case "b32", "u32", "s32", "f32":
		return 32, t[0]
	case "b64", "u64", "s64", "f64":
		return 64, t[0]
	}
	return 0, 0
}
