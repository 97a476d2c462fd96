package ptx

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"
)

// matrices are the operands of a matrix product, gathered from the lanes. The
// fragments are those of the PTX manual, "Matrix Fragments for mma.m16n8k16":
// lane 4g+t holds columns 2t and 2t+1 of rows g and g+8.
type matrices struct {
	a [16][16]float32
	b [16][8]float32
	c [16][8]float32
}

// decodeMma decodes mma.sync of bf16 with sums in float32, 16×8×16 and 16×8×8.
func decodeMma(d *decoder, in *inst) error {
	s := d.s
	form := strings.Join(s.mods, ".")
	k := 16
	switch form {
	case "sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32":
	case "sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32":
		k = 8
	default:
		return d.unknown()
	}
	if err := d.count(4); err != nil {
		return err
	}
	sizes := []int{4, k / 4, k / 8, 4}
	for i, o := range s.args {
		list := o.list
		if o.kind != operandVector {
			list = []operand{o}
		}
		if len(list) != sizes[i] {
			return fmt.Errorf("operand %d has %d registers, and not %d", i+1, sizes[i], len(list))
		}
		s.args[i].list = list
	}
	in.vec = make([]int32, 4)
	in.vec2 = make([]int32, k/4+k/8+4)
	for i, o := range s.args[0].list {
		if err := d.dest(&in.vec[i], o, 32); err != nil {
			return err
		}
	}
	for i, o := range slices.Concat(s.args[1].list, s.args[2].list, s.args[3].list) {
		if err := d.source(&in.vec2[i], o, 32); err != nil {
			return err
		}
	}
	in.size = int32(k)
	in.control, in.run = together, multiply
	return nil
}

// multiply computes a matrix product. Products are exact in float32; they are
// added to c in the order of k. A device may add in another order and with other rounding.
func multiply(w *warp, in *inst, m uint32) {
	if m != allLanes {
		w.fail(Divergent, 0, "a matrix product needs 32 lanes, and the warp has %08x", m)
		return
	}
	w.mmas++
	x := &w.matrices
	k := int(in.size)
	// Where lane 4g+t puts and takes its pairs of neighbours is counted in pairs.
	a, c := (*[128]uint64)(unsafe.Pointer(&x.a)), (*[64]uint64)(unsafe.Pointer(&x.c))
	na := k / 4
	for j := range na {
		r := &w.r32[in.vec2[j]]
		at := 64*(j&1) + 4*(j>>1) // eight rows down, four pairs to the right
		for lane, v := range r {
			a[(lane>>2*8+lane&3+at)&127] = uint64(v)<<16&0xffffffff | uint64(v&0xffff0000)<<32
		}
	}
	b := (*[128]uint32)(unsafe.Pointer(&x.b))
	for j := range k / 8 {
		r := &w.r32[in.vec2[na+j]]
		for lane, v := range r {
			at := (lane&3*2+8*j)*8 + lane>>2
			b[at&127] = v << 16
			b[(at+8)&127] = v & 0xffff0000
		}
	}
	from := in.vec2[na+k/8:]
	for j := range 2 {
		r, s := &w.r32[from[2*j]], &w.r32[from[2*j+1]]
		for lane := range r {
			c[(lane>>2*4+lane&3+32*j)&63] = uint64(r[lane]) | uint64(s[lane])<<32
		}
	}
	product(&x.c, &x.a, &x.b, k)
	for j := range 2 {
		r, s := &w.r32[in.vec[2*j]], &w.r32[in.vec[2*j+1]]
		for lane := range r {
			v := c[(lane>>2*4+lane&3+32*j)&63]
			r[lane], s[lane] = canonical(uint32(v)), canonical(uint32(v>>32))
		}
	}
}

// canonical gives what is no number its one form.
func canonical(v uint32) uint32 {
	if v&0x7fffffff > 0x7f800000 {
		return nan32
	}
	return v
}

// productGo adds a·b to c, k products an element, in the order of k.
func productGo(c *[16][8]float32, a *[16][16]float32, b *[16][8]float32, k int) {
	for i := range c {
		row, a := &c[i], &a[i]
		c0, c1, c2, c3, c4, c5, c6, c7 := row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7]
		for l := range k {
			v, b := a[l&15], &b[l&15]
			c0 += v * b[0]
			c1 += v * b[1]
			c2 += v * b[2]
			c3 += v * b[3]
			c4 += v * b[4]
			c5 += v * b[5]
			c6 += v * b[6]
			c7 += v * b[7]
		}
		*row = [8]float32{c0, c1, c2, c3, c4, c5, c6, c7}
	}
}

// decodeLdmatrix decodes loads of one, two or four 8×8 matrices of 16 bits.
func decodeLdmatrix(d *decoder, in *inst) error {
	s := d.s
	mods := slices.DeleteFunc(slices.Clone(s.mods), func(m string) bool { return m == "trans" })
	form := strings.Replace(strings.Join(mods, "."), "shared::cta", "shared", 1)
	n := map[string]int{"sync.aligned.m8n8.x1.shared.b16": 1, "sync.aligned.m8n8.x2.shared.b16": 2, "sync.aligned.m8n8.x4.shared.b16": 4}[form]
	if n == 0 {
		return d.unknown()
	}
	if err := d.count(2); err != nil {
		return err
	}
	list := s.args[0].list
	if s.args[0].kind != operandVector {
		list = []operand{s.args[0]}
	}
	if len(list) != n {
		return fmt.Errorf("%d registers, and not %d", n, len(list))
	}
	in.vec = make([]int32, n)
	for i, o := range list {
		if err := d.dest(&in.vec[i], o, 32); err != nil {
			return err
		}
	}
	in.control, in.run = together, loadMatrix
	if d.has("trans") {
		in.run = loadTransposed
	}
	return d.decodeAddress(&in.kind, &in.a, &in.off, s.args[1])
}

// rows finds the rows of the matrices: lane 8j+i has the address of row i of matrix j.
func (w *warp) rows(in *inst, m uint32) bool {
	if m != allLanes {
		w.fail(Divergent, 0, "a matrix load needs 32 lanes, and the warp has %08x", m)
		return false
	}
	w.compute(&w.aside64, in.kind, in.a, in.off)
	return w.resolve(shared, allLanes>>(32-8*len(in.vec)), 16, false)
}

func loadMatrix(w *warp, in *inst, m uint32) {
	if !w.rows(in, m) {
		return
	}
	for j, v := range in.vec {
		r := &w.r32[v]
		for lane := range r {
			r[lane] = *(*uint32)(unsafe.Add(unsafe.Pointer(w.address[(8*j+lane/4)&31]), lane%4*4))
		}
	}
}

func loadTransposed(w *warp, in *inst, m uint32) {
	if !w.rows(in, m) {
		return
	}
	for j, v := range in.vec {
		r := &w.r32[v]
		for lane := range r {
			row, col := 8*j+lane%4*2, lane/4*2
			r[lane] = uint32(*(*uint16)(unsafe.Add(unsafe.Pointer(w.address[row&31]), col))) |
				uint32(*(*uint16)(unsafe.Add(unsafe.Pointer(w.address[(row+1)&31]), col)))<<16
		}
	}
}

// decodeMovmatrix decodes the transposition of an 8×8 matrix that lanes hold.
func decodeMovmatrix(d *decoder, in *inst) error {
	if strings.Join(d.s.mods, ".") != "sync.aligned.m8n8.trans.b16" {
		return d.unknown()
	}
	if err := d.count(2); err != nil {
		return err
	}
	in.control = together
	in.run = func(w *warp, in *inst, m uint32) {
		if m != allLanes {
			w.fail(Divergent, 0, "a matrix needs 32 lanes, and the warp has %08x", m)
			return
		}
		a := w.r32[in.a]
		at := func(row, col int) uint32 { return a[row*4+col/2] >> (col % 2 * 16) & 0xffff }
		for lane := range 32 {
			row, col := lane/4, lane%4*2
			w.r32[in.d][lane] = at(col, row) | at(col+1, row)<<16
		}
	}
	return d.uniform(in, 32)
}
