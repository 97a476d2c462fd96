package ptx

// A slot holds a register's values in the 32 lanes of a warp. Narrow types have
// zeros above their bits.
type (
	slot32 = [32]uint32
	slot64 = [32]uint64
)

const allLanes = ^uint32(0)

// control says what an instruction does besides computing.
type control uint8

const (
	compute  control = iota // run it where the mask is set, go on
	jump                    // bra
	leave                   // ret, exit
	together                // all lanes of the warp execute it as one: mma, ldmatrix
	members                 // the lanes of a mask execute it as one: shfl, vote
	barrier                 // the threads of a block meet: bar
)

// inst is a decoded instruction. Its operands are indices into the register
// files of a warp: constants and special registers are kept there, too.
type inst struct {
	control control
	guarded bool
	guard   int32
	flip    uint32 // xor-ed to the guard: all ones where it is negated
	target  int32  // of a jump; -1: one of vec, by register a

	run     func(w *warp, in *inst, m uint32) // executes it for the lanes of m
	d       int32                             // destination
	a, b, c int32                             // sources
	e       int32                             // a fourth source; the members of what they execute as one
	vec     []int32                           // registers of a vector, predicates that a test sets, targets of a jump
	vec2    []int32                           // sources of a matrix product

	// Of instructions on memory.
	space  space
	wide   bool   // the registers have 64 bits
	signed bool   // loads extend the sign
	cut    uint32 // the bits that a sign extends into
	size   int32  // bytes of an element
	form   int32  // of the address
	form2  int32  // of a second address
	off    uint64 // added to the address, or a constant of the instruction
	off2   uint64 // added to the second address

	kind int32  // which of the variants that run knows
	not  uint32 // xor-ed to a predicate among the sources: all ones where it is negated

	// What run32 and the others apply to the operands: one of these is set.
	f32     func(d, a, b, c *slot32)
	f64     func(d, a, b, c *slot64)
	to64    func(d *slot64, a, b *slot32, c *slot64)
	to32    func(d *slot32, a *slot64, b *slot32)
	shift64 func(d, a *slot64, b *slot32)
	test32  func(a, b *slot32) uint32
	test64  func(a, b *slot64) uint32
}

// The shapes of instructions that compute lane by lane. Each computes all lanes;
// where only some are active, it does so aside, and only theirs are stored.

func merge32(d, s *slot32, m uint32) {
	for i := range d {
		if m>>i&1 != 0 {
			d[i] = s[i]
		}
	}
}

func merge64(d, s *slot64, m uint32) {
	for i := range d {
		if m>>i&1 != 0 {
			d[i] = s[i]
		}
	}
}

func run32(w *warp, in *inst, m uint32) {
	d := &w.r32[in.d]
	if m == allLanes {
		in.f32(d, &w.r32[in.a], &w.r32[in.b], &w.r32[in.c])
		return
	}
	in.f32(&w.aside32, &w.r32[in.a], &w.r32[in.b], &w.r32[in.c])
	merge32(d, &w.aside32, m)
}

func run64(w *warp, in *inst, m uint32) {
	d := &w.r64[in.d]
	if m == allLanes {
		in.f64(d, &w.r64[in.a], &w.r64[in.b], &w.r64[in.c])
		return
	}
	in.f64(&w.aside64, &w.r64[in.a], &w.r64[in.b], &w.r64[in.c])
	merge64(d, &w.aside64, m)
}

func runTo64(w *warp, in *inst, m uint32) {
	d := &w.r64[in.d]
	if m == allLanes {
		in.to64(d, &w.r32[in.a], &w.r32[in.b], &w.r64[in.c])
		return
	}
	in.to64(&w.aside64, &w.r32[in.a], &w.r32[in.b], &w.r64[in.c])
	merge64(d, &w.aside64, m)
}

func runTo32(w *warp, in *inst, m uint32) {
	d := &w.r32[in.d]
	if m == allLanes {
		in.to32(d, &w.r64[in.a], &w.r32[in.b])
		return
	}
	in.to32(&w.aside32, &w.r64[in.a], &w.r32[in.b])
	merge32(d, &w.aside32, m)
}

func runShift64(w *warp, in *inst, m uint32) {
	d := &w.r64[in.d]
	if m == allLanes {
		in.shift64(d, &w.r64[in.a], &w.r32[in.b])
		return
	}
	in.shift64(&w.aside64, &w.r64[in.a], &w.r32[in.b])
	merge64(d, &w.aside64, m)
}

// runTest32 is setp. Kind is the combination with another predicate, e; the
// predicate vec[0] is the first destination, vec[1] the second, of the opposite.
func runTest32(w *warp, in *inst, m uint32) {
	w.setPredicates(in, in.test32(&w.r32[in.a], &w.r32[in.b]), m)
}

func runTest64(w *warp, in *inst, m uint32) {
	w.setPredicates(in, in.test64(&w.r64[in.a], &w.r64[in.b]), m)
}

// The combinations of setp.
const (
	plain int32 = iota
	and
	or
	xor
)

func (w *warp) setPredicates(in *inst, t, m uint32) {
	u := ^t
	if in.kind != plain {
		q := w.p[in.e] ^ in.not
		switch in.kind {
		case and:
			t, u = t&q, u&q
		case or:
			t, u = t|q, u|q
		case xor:
			t, u = t^q, u^q
		}
	}
	d := &w.p[in.vec[0]]
	*d = *d&^m | t&m
	if len(in.vec) > 1 {
		d = &w.p[in.vec[1]]
		*d = *d&^m | u&m
	}
}
