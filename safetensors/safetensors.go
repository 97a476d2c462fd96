// Package safetensors reads and writes the safetensors file format: named
// tensors of raw little-endian numbers behind a JSON header.
//
// A file is, from its first byte (source:
// https://huggingface.co/docs/safetensors, "Format"):
//
//	8 bytes   n, the header's length, unsigned, little-endian
//	n bytes   a JSON object: name -> {"dtype", "shape", "data_offsets": [begin, end]},
//	          and "__metadata__" -> strings; may end in blanks
//	the rest  the tensors' bytes, without gaps; offsets count from its start
//
// Reading maps the file and copies nothing. A file from elsewhere is not
// trusted: every claim of its header is checked before it is used. Writing is
// streamed: all offsets are known before the first byte, parts may come in any
// order and from several goroutines, and a file appears under its name only
// when it is complete.
//
// The package knows the format alone. It must not know models, devices, ranks
// or how a tensor is used; it imports nothing of ours.
package safetensors

import (
	"fmt"
	"math/bits"
)

// DType is the type of a tensor's elements.
type DType uint8

// The element types that this package reads and writes, with the format's
// names. Bool takes one byte an element.
const (
	F64 DType = iota + 1
	F32
	F16
	BF16
	I64
	I32
	I16
	I8
	U8
	Bool
)

// dtypes holds each type's name in the format and its size in bytes.
var dtypes = [...]struct {
	name string
	size int64
}{
	F64: {"F64", 8}, F32: {"F32", 4}, F16: {"F16", 2}, BF16: {"BF16", 2},
	I64: {"I64", 8}, I32: {"I32", 4}, I16: {"I16", 2}, I8: {"I8", 1},
	U8: {"U8", 1}, Bool: {"BOOL", 1},
}

// String returns the format's name of the type, such as "BF16".
func (d DType) String() string {
	if !d.valid() {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Size returns the bytes of one element. It panics for a value that is none of
// the constants.
func (d DType) Size() int64 {
	if !d.valid() {
		panic(fmt.Sprintf("safetensors: no such DType: %d", uint8(d)))
	}
	return dtypes[d].size
}

func (d DType) valid() bool { return d >= F64 && d <= Bool }

// ParseDType returns the type with the format's name s.
func ParseDType(s string) (DType, error) {
	for d := F64; d <= Bool; d++ {
		if dtypes[d].name == s {
			return d, nil
		}
	}
	return 0, fmt.Errorf("unknown dtype %q (known: F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL)", s)
}

// Entry describes a tensor: what the header says about it besides its place.
type Entry struct {
	Name  string
	DType DType
	Shape []int64 // row-major extents; no extents means a scalar
}

// Size returns the tensor's bytes, or an error where an extent is negative or
// the product does not fit 63 bits.
func (e Entry) Size() (int64, error) {
	size := uint64(e.DType.Size())
	for _, n := range e.Shape {
		if n < 0 {
			return 0, fmt.Errorf("shape %v has the negative extent %d", e.Shape, n)
		}
		high, low := bits.Mul64(size, uint64(n))
		if high != 0 || low > 1<<63-1 {
			return 0, fmt.Errorf("shape %v of %s is more than 2^63-1 bytes", e.Shape, e.DType)
		}
		size = low
	}
	return int64(size), nil
}

// Tensor is a tensor of an open file.
type Tensor struct {
	Entry
	// Data is the tensor's bytes in the mapped file: read-only, and valid until
	// the file is closed. Files written by this package start their data at a
	// multiple of 64; in files of others the address may be unaligned.
	Data []byte
	// File is the path of the file that holds the tensor, Offset the place of
	// its first byte there: for messages.
	File   string
	Offset int64
}
