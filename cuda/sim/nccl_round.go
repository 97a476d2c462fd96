//go:build sim && cgo && linux

package sim

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"unsafe"
)

// task is a collective, as all ranks must have it alike.
type task struct {
	Call  string
	Count uint64
	Type  int
	Root  int // -1: none
}

func (t task) String() string {
	return fmt.Sprintf("%s of %d of type %d, root %d", t.Call, t.Count, t.Type, t.Root)
}

// mostElements is how many a collective may have of what one rank sends to another.
const mostElements = 1 << 48

// check refuses what no rank can have come to do.
func (t task) check(ranks int) error {
	known := t.adds() || t.Call == "ncclAllGather" || t.Call == "ncclBroadcast"
	rooted := t.Call == "ncclReduce" || t.Call == "ncclBroadcast"
	if !known || sizeOf(t.Type) == 0 || t.Count > mostElements || rooted && t.Root < 0 || t.Root >= ranks {
		return fmt.Errorf("no collective of %d ranks: %v", ranks, t)
	}
	return nil
}

// adds tells whether what ranks send is summed.
func (t task) adds() bool {
	return t.Call == "ncclAllReduce" || t.Call == "ncclReduce" || t.Call == "ncclReduceScatter"
}

// step is a part of a collective: n bytes, which a rank or all send from a place in what they have to send, and
// a rank or all receive at a place in what they are to receive.
type step struct {
	from, to       int // ranks, or everyone
	sendAt, recvAt uint64
	n              uint64
}

const everyone = -1

func (s step) sends(rank int) bool    { return s.from == everyone || s.from == rank }
func (s step) receives(rank int) bool { return s.to == everyone || s.to == rank }

// steps returns the parts of a collective in their order, which ranks and hub have alike.
func (t task) steps(ranks int) iter.Seq[step] {
	size := t.Count * sizeOf(t.Type)
	whole := []step{{from: everyone, to: everyone}}
	switch t.Call {
	case "ncclAllGather":
		whole = nil
		for r := range ranks {
			whole = append(whole, step{from: r, to: everyone, recvAt: uint64(r) * size})
		}
	case "ncclReduceScatter":
		whole = nil
		for r := range ranks {
			whole = append(whole, step{from: everyone, to: r, sendAt: uint64(r) * size})
		}
	case "ncclReduce":
		whole[0].to = t.Root
	case "ncclBroadcast":
		whole[0].from = t.Root
	}
	return func(yield func(step) bool) {
		for _, s := range whole {
			for done := uint64(0); done < size; done += s.n {
				s.n = min(mostData, size-done)
				if !yield(step{s.from, s.to, s.sendAt + done, s.recvAt + done, s.n}) {
					return
				}
			}
		}
	}
}

// Numbers of ncclDataType_t that the simulator takes.
const (
	ncclInt32    = 2
	ncclFloat32  = 7
	ncclFloat64  = 8
	ncclBFloat16 = 9
)

// sizeOf is the size of an element, 0 of a type that is not taken.
func sizeOf(typ int) uint64 {
	switch typ {
	case ncclInt32, ncclFloat32:
		return 4
	case ncclFloat64:
		return 8
	case ncclBFloat16:
		return 2
	}
	return 0
}

// add adds a rank's numbers to a sum, which is fp32 for bf16. The first ones are the sum.
func add(typ int, sum, b []byte, first bool) []byte {
	if typ == ncclBFloat16 {
		return addBFloat16(sum, b, first)
	}
	if first {
		return append(sum, b...)
	}
	switch typ {
	case ncclInt32:
		addTo[int32](sum, b)
	case ncclFloat32:
		addTo[float32](sum, b)
	case ncclFloat64:
		addTo[float64](sum, b)
	}
	return sum
}

func addTo[T int32 | float32 | float64](sum, b []byte) {
	to := seen[T](sum)
	for i, x := range seen[T](b) {
		to[i] += x
	}
}

func addBFloat16(sum, b []byte, first bool) []byte {
	if first {
		sum = slices.Grow(sum, 2*len(b))[:2*len(b)]
	}
	to := seen[float32](sum)
	for i, half := range seen[uint16](b) {
		x := math.Float32frombits(uint32(half) << 16)
		if !first {
			x += to[i]
		}
		to[i] = x
	}
	return sum
}

// seen is bytes as what they are, on a host whose bytes have the order of the device's.
func seen[T any](b []byte) []T {
	var element T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(element)))
}

// finish makes a sum what ranks receive.
func (t task) finish(sum []byte) []byte {
	if t.Type == ncclBFloat16 {
		return rounded(sum)
	}
	return sum
}

// rounded rounds fp32 to bf16, to nearest even.
func rounded(wide []byte) []byte {
	out := make([]byte, len(wide)/2)
	halves := seen[uint16](out)
	for i, b := range seen[uint32](wide) {
		halves[i] = uint16((b + 0x7fff + b>>16&1) >> 16)
		if f := math.Float32frombits(b); f != f {
			halves[i] = uint16(b>>16) | 0x40
		}
	}
	return out
}
