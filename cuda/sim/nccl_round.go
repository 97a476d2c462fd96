//go:build sim && cgo && linux

package sim

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
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
	return map[int]uint64{ncclInt32: 4, ncclFloat32: 4, ncclFloat64: 8, ncclBFloat16: 2}[typ]
}

// add adds a rank's numbers to a sum, which is fp32 for bf16. The first ones are the sum.
func add(typ int, sum, b []byte, first bool) []byte {
	le := binary.LittleEndian
	if typ == ncclBFloat16 {
		wide := make([]byte, 2*len(b))
		for i := 0; i < len(b); i += 2 {
			le.PutUint16(wide[2*i+2:], le.Uint16(b[i:]))
		}
		return add(ncclFloat32, sum, wide, first)
	}
	if first {
		return append(sum, b...)
	}
	for i := 0; i < len(b); i += int(sizeOf(typ)) {
		switch typ {
		case ncclInt32:
			le.PutUint32(sum[i:], le.Uint32(sum[i:])+le.Uint32(b[i:]))
		case ncclFloat32:
			le.PutUint32(sum[i:], math.Float32bits(math.Float32frombits(le.Uint32(sum[i:]))+math.Float32frombits(le.Uint32(b[i:]))))
		case ncclFloat64:
			le.PutUint64(sum[i:], math.Float64bits(math.Float64frombits(le.Uint64(sum[i:]))+math.Float64frombits(le.Uint64(b[i:]))))
		}
	}
	return sum
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
	le := binary.LittleEndian
	out := make([]byte, len(wide)/2)
	for i := 0; i < len(wide); i += 4 {
		b := le.Uint32(wide[i:])
		half := uint16((b + 0x7fff + b>>16&1) >> 16)
		if f := math.Float32frombits(b); f != f {
			half = uint16(b>>16) | 0x40
		}
		le.PutUint16(out[i/2:], half)
	}
	return out
}
