package device

import (
	"fmt"
	"math"
	"unsafe"
)

// DType is the type of a tensor's elements.
type DType uint8

// The element types. F64 is for references, norms and tests only.
const (
	None DType = iota
	F32
	BF16
	I32
	F64
)

// Size returns the bytes of one element.
func (t DType) Size() int64 {
	switch t {
	case F32, I32:
		return 4
	case BF16:
		return 2
	case F64:
		return 8
	}
	return 0
}

func (t DType) String() string {
	return [...]string{"none", "f32", "bf16", "i32", "f64"}[t]
}

// Float reports whether elements are real numbers.
func (t DType) Float() bool { return t == F32 || t == BF16 || t == F64 }

// Buf names a buffer before it has an address: a plan lays buffers out and
// binds their tensors to memory once. Zero is no buffer.
type Buf int32

// Tensor is Len elements of one type, side by side. It owns nothing. The zero
// Tensor is an operand that is left out.
type Tensor struct {
	Buf  Buf   // the buffer's name in a plan
	Off  int64 // bytes from the buffer's start
	Type DType
	Len  int64
	Addr Addr // where the first element is; 0 until bound
}

// Absent reports whether the operand is left out.
func (t Tensor) Absent() bool { return t.Type == None }

// Bytes returns the size in bytes.
func (t Tensor) Bytes() int64 { return t.Len * t.Type.Size() }

// Slice returns the n elements from element i on. It panics outside of t.
func (t Tensor) Slice(i, n int64) Tensor {
	if i < 0 || n < 0 || i+n > t.Len {
		panic(fmt.Sprintf("device: slice [%d:%d] of a tensor of %d elements", i, i+n, t.Len))
	}
	t.Off += i * t.Type.Size()
	if t.Addr != 0 {
		t.Addr += Addr(i * t.Type.Size())
	}
	t.Len = n
	return t
}

// In returns a tensor of n elements at byte off of b.
func (b Buffer) In(typ DType, off, n int64) Tensor {
	if off < 0 || n < 0 || off+n*typ.Size() > b.Size {
		panic(fmt.Sprintf("device: %d elements of %s at byte %d of a buffer of %d bytes", n, typ, off, b.Size))
	}
	return Tensor{Off: off, Type: typ, Len: n, Addr: b.Addr + Addr(off)}
}

// Pointer returns the address as a pointer for memory that the host can see.
// The memory is never the Go heap's, so the conversion hides nothing from the
// garbage collector.
func (t Tensor) Pointer() unsafe.Pointer {
	a := t.Addr
	return *(*unsafe.Pointer)(unsafe.Pointer(&a))
}

func addrOf(b []byte) Addr { return Addr(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func view[E any](t Tensor, want DType) []E {
	if t.Type != want || t.Addr == 0 {
		panic(fmt.Sprintf("device: a tensor of %s (address %#x) read as %s", t.Type, t.Addr, want))
	}
	return unsafe.Slice((*E)(t.Pointer()), t.Len)
}

// F32 returns the elements in place; the host must see the memory.
func (t Tensor) F32() []float32 { return view[float32](t, F32) }

// I32 returns the elements in place; the host must see the memory.
func (t Tensor) I32() []int32 { return view[int32](t, I32) }

// F64 returns the elements in place; the host must see the memory.
func (t Tensor) F64() []float64 { return view[float64](t, F64) }

// BF16 returns the elements' bits in place; the host must see the memory.
func (t Tensor) BF16() []uint16 { return view[uint16](t, BF16) }

// ToBF16 rounds to nearest even, as IEEE 754 rounds; a NaN stays a NaN.
func ToBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBF16 is exact.
func FromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }
