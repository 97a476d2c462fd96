package collective

import (
	"errors"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// Op is one collective: a pointer to one of this package's structs. Like the
// operations of package device it is a value with tagged operands, so that a
// plan holds both alike; but it runs only through a Comm. With n ranks, part r
// of a tensor is its r-th of n equal ranges, or as Part cuts it.
type Op interface {
	device.Op
	// collective closes the set.
	collective() (kind, name string)
}

// AllGather gives every rank all parts of Data: part r comes from rank r.
type AllGather struct {
	Own  device.Tensor `op:"r"` // this rank's part of Data, in its place
	Data device.Tensor `op:"w"`
	Name string        // for messages: what it is of
}

// ReduceScatter gives this rank in Out the sum over ranks, in their order, of
// its part of Data. What Data holds afterwards is not defined.
type ReduceScatter struct {
	Data device.Tensor `op:"r"`
	Out  device.Tensor `op:"w"` // the size of the part; may be the part itself
	Name string
}

// AllReduce gives every rank in Data the sum over ranks, in their order.
type AllReduce struct {
	Data device.Tensor `op:"rw"`
	Name string
}

// Broadcast gives every rank in Data what rank Root has.
type Broadcast struct {
	Data device.Tensor `op:"rw"`
	Root int
	Name string
}

// Barrier is done when all ranks have come to it.
type Barrier struct{ Name string }

func (o *AllGather) collective() (string, string)     { return "all-gather", o.Name }
func (o *ReduceScatter) collective() (string, string) { return "reduce-scatter", o.Name }
func (o *AllReduce) collective() (string, string)     { return "all-reduce", o.Name }
func (o *Broadcast) collective() (string, string)     { return "broadcast", o.Name }
func (o *Barrier) collective() (string, string)       { return "barrier", o.Name }

// Check implements device.Op.
func (o *AllGather) Check() error {
	if o.Own.Type != o.Data.Type || o.Own.Len > o.Data.Len {
		return fmt.Errorf("all-gather of %s: %d of %s are no part of %d of %s", o.Name, o.Own.Len, o.Own.Type, o.Data.Len, o.Data.Type)
	}
	return nil
}

// Check implements device.Op.
func (o *ReduceScatter) Check() error {
	if o.Out.Type != o.Data.Type || o.Out.Len > o.Data.Len {
		return fmt.Errorf("reduce-scatter of %s: %d of %s are no part of %d of %s", o.Name, o.Out.Len, o.Out.Type, o.Data.Len, o.Data.Type)
	}
	return nil
}

// Check implements device.Op.
func (o *AllReduce) Check() error { return nil }

// Check implements device.Op.
func (o *Broadcast) Check() error { return nil }

// Check implements device.Op.
func (o *Barrier) Check() error { return nil }

// Cost implements device.Op: the bytes that this rank reads from others.
func (o *AllGather) Cost() device.Cost { return device.Cost{Bytes: o.Data.Bytes() - o.Own.Bytes()} }

// Cost implements device.Op: the bytes that this rank reads from others.
func (o *ReduceScatter) Cost() device.Cost {
	return device.Cost{FLOPs: o.Data.Len, Bytes: o.Data.Bytes() - o.Out.Bytes()}
}

// Cost implements device.Op: both halves, as if ranks were many.
func (o *AllReduce) Cost() device.Cost {
	return device.Cost{FLOPs: o.Data.Len, Bytes: 2 * o.Data.Bytes()}
}

// Cost implements device.Op.
func (o *Broadcast) Cost() device.Cost { return device.Cost{Bytes: o.Data.Bytes()} }

// Cost implements device.Op.
func (o *Barrier) Cost() device.Cost { return device.Cost{} }

const unbound = "collective: an operation that no Comm has bound was launched"

// Reference implements device.Op; a collective has none on one rank's memory.
func (o *AllGather) Reference() { panic(unbound) }

// Reference implements device.Op; a collective has none on one rank's memory.
func (o *ReduceScatter) Reference() { panic(unbound) }

// Reference implements device.Op; a collective has none on one rank's memory.
func (o *AllReduce) Reference() { panic(unbound) }

// Reference implements device.Op; a collective has none on one rank's memory.
func (o *Broadcast) Reference() { panic(unbound) }

// Reference implements device.Op; a collective has none on one rank's memory.
func (o *Barrier) Reference() { panic(unbound) }

// Comm is one rank's end of a group of ranks: those along one axis of the mesh.
type Comm interface {
	// Rank and Size are the rank's place in the group, and the group's size.
	Rank() int
	Size() int
	// Bind prepares op, whose tensors have addresses, and returns the device
	// operations that carry it out on this rank when they are launched, in
	// order, on one stream, as often as wanted. It blocks until all ranks have
	// bound the same op, and fails where they did not. An operation that waits
	// for a peer in vain fails its stream with an *Error.
	Bind(op Op) ([]device.Op, error)
	// Abort makes every wait of every rank of the group fail with reason.
	Abort(reason error)
}

// Error is a collective that failed. Ranks go by the numbers that their group
// was given for them, else by their places in it.
type Error struct {
	Rank       int
	Kind, Name string // which collective, of what
	Number     int    // collectives that the rank had finished on this Comm
	Waited     time.Duration
	Missing    []int // ranks that are gone or did not come in time
	Err        error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("rank %d: %s of %s, number %d", e.Rank, e.Kind, e.Name, e.Number)
	if len(e.Missing) > 0 {
		s += fmt.Sprintf(", waited %v for ranks %v", e.Waited, e.Missing)
	}
	return s + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// tell hands the error on, so that what else depends on it ends, too: as another
// rank has told it where that was the reason.
func (e *Error) tell(end func(error)) {
	var t *told
	switch {
	case end == nil:
	case errors.As(e.Err, &t):
		end(t)
	default:
		end(e)
	}
}

// told is why a group ends, as a rank has told it.
type told struct {
	rank     int // by its name
	deadline bool
	text     string
}

func (e *told) Error() string { return fmt.Sprintf("rank %d says: %s", e.rank, e.text) }

// Unwrap returns ErrDeadline where that was the reason.
func (e *told) Unwrap() error {
	if e.deadline {
		return ErrDeadline
	}
	return nil
}

// say puts a reason into the words of a rank. What another has said stays that
// one's.
func say(rank int, reason error) *told {
	if t, ok := reason.(*told); ok {
		return t
	}
	return &told{rank, errors.Is(reason, ErrDeadline), reason.Error()}
}

// names are what a group's ranks are called, by place; nil: by their places.
type names []int

func (n names) of(place int) int {
	if n == nil {
		return place
	}
	return n[place]
}

func (n names) all(places []int) []int {
	if n == nil || places == nil {
		return places
	}
	list := make([]int, len(places))
	for i, p := range places {
		list[i] = n[p]
	}
	return list
}

// Part returns the range [from,to) of rank r of n in a tensor of length
// elements: equal parts but for the last ranks, which may have fewer or none.
func Part(length int64, r, n int) (from, to int64) {
	each := (length + int64(n) - 1) / int64(n)
	return min(int64(r)*each, length), min(int64(r+1)*each, length)
}
