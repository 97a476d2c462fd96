//go:build sim && cgo && linux

package sim

import (
	"fmt"
	"unsafe"

	host "github.com/gofsdp/gofsdp/device"
)

// matrix is an operand of a product: columns of rows elements each, which begin ld elements apart.
type matrix struct {
	name           string
	addr           uint64
	typ            host.DType
	rows, cols, ld int
}

// offset is the distance of column j from the first one, in bytes.
func (x *matrix) offset(j int) uint64 {
	return uint64(min(j*x.ld, 1<<56)) * uint64(x.typ.Size())
}

// height is the size of a column, in bytes.
func (x *matrix) height() uint64 { return uint64(x.rows) * uint64(x.typ.Size()) }

// end is the address behind the last column.
func (x *matrix) end() uint64 { return x.addr + x.offset(x.cols-1) + x.height() }

// reach returns the memory from a matrix's first element to its last, which kernels find as all memory:
// out of bounds or freed is an illegal address.
func (v memory) reach(x *matrix) (span, error) {
	if size := uint64(x.typ.Size()); x.addr%size != 0 {
		return span{}, refuse(MisalignedAddress, "%s at %#x, which is no multiple of the %d bytes of an element", x.name, x.addr, size)
	}
	s, err := v.span(x.addr, x.end()-x.addr)
	if err != nil {
		return span{}, refuse(IllegalAddress, "%s, %d × %d elements of %v at %#x with a leading dimension of %d: %v", x.name, x.rows, x.cols, x.typ, x.addr, x.ld, err)
	}
	return s, nil
}

// span returns n bytes of one allocation that a context's kernels reach.
func (v memory) span(addr, n uint64) (span, error) {
	if _, err := v.Find(addr); err != nil {
		return span{}, err
	}
	return v.m.span(addr, n)
}

// column returns the bytes of column j of a matrix that is in s.
func (x *matrix) column(s span, j int) span {
	return span{s.allocation, s.off + x.offset(j), x.height()}
}

// complete refuses a matrix with elements that nobody has written. What is between columns is no matter.
func (x *matrix) complete(s span) error {
	if x.ld == x.rows && s.unwritten() < 0 {
		return nil
	}
	for j := range x.cols {
		if at := x.column(s, j).unwritten(); at >= 0 {
			i := (uint64(at) - s.off - x.offset(j)) / uint64(x.typ.Size())
			return fmt.Errorf("%s[%d,%d], at byte %d of %v, is read and nobody has written it", x.name, i, j, at, s.allocation)
		}
	}
	return nil
}

// apart refuses a result that shares bytes with what the product reads meanwhile.
func apart(c *matrix, reads []*matrix, workspace *span) error {
	for _, x := range reads {
		if c.meets(x) {
			return fmt.Errorf("the result C at %#x and %s at %#x share bytes", c.addr, x.name, x.addr)
		}
	}
	if workspace == nil {
		return nil
	}
	w := &matrix{"the workspace", workspace.Base + workspace.off, host.F32, int(workspace.n / 4), 1, int(workspace.n / 4)}
	for _, x := range append(reads, c) {
		if w.meets(x) {
			return fmt.Errorf("%s at %#x is in the workspace of %d bytes at %#x", x.name, x.addr, workspace.n, w.addr)
		}
	}
	return nil
}

// meets tells whether two matrices have bytes in common; the columns of one may lie between the other's.
func (x *matrix) meets(y *matrix) bool {
	if x.end() <= y.addr || y.end() <= x.addr {
		return false
	}
	for i, j := 0, 0; i < x.cols && j < y.cols; {
		a, b := x.addr+x.offset(i), y.addr+y.offset(j)
		switch {
		case a+x.height() <= b:
			i++
		case b+y.height() <= a:
			j++
		default:
			return true
		}
	}
	return false
}

// load returns the elements in fp32, column after column, in to if there is room.
func (x *matrix) load(to []float32, s span) []float32 {
	to = sized(to, x.rows*x.cols)
	for j := range x.cols {
		column, own := x.column(s, j), to[j*x.rows:][:x.rows]
		if x.typ == host.BF16 {
			for i, b := range elements[uint16](column) {
				own[i] = host.FromBF16(b)
			}
		} else {
			copy(own, elements[float32](column))
		}
	}
	return to
}

// elements returns the elements of a column in place. Addresses have been seen to be aligned, and the
// bytes that stand for device memory are as far from a multiple as its addresses.
func elements[E uint16 | float32](s span) []E {
	var e E
	return unsafe.Slice((*E)(unsafe.Pointer(&s.Bytes[s.off])), s.n/uint64(unsafe.Sizeof(e)))
}

// sized returns n floats, those of old if they are enough.
func sized(old []float32, n int) []float32 {
	if n <= cap(old) {
		return old[:n]
	}
	return make([]float32, n)
}

// transposed returns the matrix of cols columns of rows elements, row after row.
func transposed(x []float32, cols, rows int) []float32 {
	y := make([]float32, len(x))
	for j := range cols {
		for i := range rows {
			y[i*cols+j] = x[j*rows+i]
		}
	}
	return y
}

// tensor is floats of the host's, which stay where they are while somebody holds them.
func tensor(x []float32) host.Tensor {
	return host.Tensor{Type: host.F32, Len: int64(len(x)), Addr: host.Addr(uintptr(unsafe.Pointer(&x[0])))}
}
