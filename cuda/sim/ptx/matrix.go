package ptx

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unsafe"
)

// fragments are the operands of a matrix product, as the lanes hold them: those
// of the PTX manual, "Matrix Fragments for mma.m16n8k16". Lane 4g+t holds, of c,
// columns 2t (registers 0 and 2) and 2t+1 (1 and 3) of rows g (0 and 1) and g+8;
// of a, columns 2t and 2t+1 of rows g (0) and g+8 (1), and the same eight columns
// on (2 and 3).
type fragments struct {
	a, c, d [4]*slot32
	// b is gathered: of each row the four even columns, and then the odd ones, as a row of c is held.
	b [16][8]float32
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
	x := &w.fragments
	k := int(in.size)
	na := k / 4
	b := (*[128]uint32)(unsafe.Pointer(&x.b))
	for j := range k / 8 {
		r := &w.r32[in.vec2[na+j]]
		for lane, v := range r { // rows 2t and 2t+1 of column g
			at := (lane&3*2+8*j)*8 + lane>>2&1*4 + lane>>3
			b[at&127] = v << 16
			b[(at+8)&127] = v & 0xffff0000
		}
	}
	for j := range 4 {
		x.c[j], x.d[j] = &w.r32[in.vec2[na+k/8+j]], &w.r32[in.vec[j]]
	}
	for j := range na {
		x.a[j] = &w.r32[in.vec2[j]]
	}
	product(x, k)
}

// productGo computes d = a·b + c with k products an element, in the order of k.
// Lanes 4g to 4g+3 are read before they are written, so d may be a or c.
func productGo(x *fragments, k int) {
	for g := 0; g < 32; g += 4 {
		var sums [4][4]float32 // of c's registers, in four lanes
		for j := range sums {
			for i := range 4 {
				sums[j][i] = math.Float32frombits(x.c[j][g+i])
			}
		}
		for l := range k {
			for half := range 2 {
				v := math.Float32frombits(x.a[half+l/8*2][g+l%8/2] << (16 * (1 - l%2)) & 0xffff0000)
				for i := range 4 {
					sums[2*half][i] += v * x.b[l][i]
					sums[2*half+1][i] += v * x.b[l][4+i]
				}
			}
		}
		for j := range sums {
			for i, v := range sums[j] {
				x.d[j][g+i] = canonical(v)
			}
		}
	}
}

// canonical returns the bits of a float; what is no number has one form.
func canonical(f float32) uint32 {
	if f != f {
		return nan32
	}
	return math.Float32bits(f)
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
	return d.decodeAddress(&in.form, &in.a, &in.off, s.args[1])
}

// rows finds the rows of the matrices: lane 8j+i has the address of row i of matrix j.
func (w *warp) rows(in *inst, m uint32) bool {
	if m != allLanes {
		w.fail(Divergent, 0, "a matrix load needs 32 lanes, and the warp has %08x", m)
		return false
	}
	w.compute(&w.aside64, in.form, in.a, in.off)
	return w.resolve(shared, allLanes>>(32-8*len(in.vec)), 16, reads)
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
