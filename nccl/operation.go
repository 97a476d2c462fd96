//go:build cgo && linux

package nccl

// #include "call.h"
import "C"

import (
	"fmt"
	"hash/fnv"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
)

// operation is a collective that a Comm has bound: a cuda.Native that may fail later.
type operation struct {
	comm       *Comm
	op         collective.Op
	kind, name string
	about      string // what ranks must have alike
	calls      []C.gofsdp_collective
	silent     bool // not counted: no caller has bound it
}

var _ cuda.Watched = (*operation)(nil)

// Numbers of ncclDataType_t.
var types = map[device.DType]C.int{device.I32: 2, device.F32: 7, device.F64: 8, device.BF16: 9}

// callNames are the names of kinds of calls.
var callNames = map[C.int]string{
	C.ALL_GATHER: "ncclAllGather", C.REDUCE_SCATTER: "ncclReduceScatter", C.ALL_REDUCE: "ncclAllReduce",
	C.REDUCE: "ncclReduce", C.BROADCAST: "ncclBroadcast",
}

// call is one call of NCCL's, of count elements from send to recv.
func call(kind C.int, send, recv device.Tensor, count int64, root int) C.gofsdp_collective {
	return C.gofsdp_collective{
		kind: kind, _type: types[recv.Type], root: C.int(root),
		send: C.uint64_t(send.Addr), recv: C.uint64_t(recv.Addr), count: C.size_t(count),
	}
}

// bound returns what op is on this rank. NCCL's gathers and scatters have equal parts; where the last ranks have
// less than the others, as collective.Part cuts, they are one broadcast or reduction a part, as one group.
func (c *Comm) bound(op collective.Op) (*operation, error) {
	if err := op.Check(); err != nil {
		return nil, err
	}
	o := &operation{comm: c, op: op}
	size := len(c.ranks)
	var whole, part device.Tensor
	root := -1
	switch op := op.(type) {
	case *collective.AllGather:
		o.kind, o.name, whole, part = "all-gather", op.Name, op.Data, op.Own
	case *collective.ReduceScatter:
		o.kind, o.name, whole, part = "reduce-scatter", op.Name, op.Data, op.Out
	case *collective.AllReduce:
		o.kind, o.name, whole = "all-reduce", op.Name, op.Data
	case *collective.Broadcast:
		o.kind, o.name, whole, root = "broadcast", op.Name, op.Data, op.Root
	case *collective.Barrier:
		o.kind, o.name, whole = "barrier", op.Name, c.cell.In(device.F32, 0, 1)
	}
	refuse := func(format string, args ...any) (*operation, error) {
		return nil, fmt.Errorf("nccl: %s of %s %s", o.kind, o.name, fmt.Sprintf(format, args...))
	}
	if whole.Absent() {
		return refuse("has no data")
	}
	if types[whole.Type] == 0 {
		return refuse("is of %s, which NCCL is not called with", whole.Type)
	}
	o.about = fmt.Sprintf("%s of %s (%d of %s)", o.kind, o.name, whole.Len, whole.Type)
	if o.kind == "broadcast" {
		if root < 0 || root >= size {
			return refuse("has root %d in a group of %d", root, size)
		}
		o.about += fmt.Sprintf(" from place %d", root)
	}
	if len(o.about) >= slotBytes {
		h := fnv.New64a()
		_, _ = h.Write([]byte(o.about)) // never fails
		o.about = fmt.Sprintf("%s... %x", o.about[:slotBytes-32], h.Sum64())
	}
	from, to := collective.Part(whole.Len, c.place, size)
	if !part.Absent() && part.Len != to-from {
		return refuse("has %d elements for the rank at place %d of %d, want %d", part.Len, c.place, size, to-from)
	}
	o.calls = c.callsOf(o.kind, whole, part, root)
	return o, nil
}

// callsOf returns the calls that make a collective; none where there is nothing to move.
func (c *Comm) callsOf(kind string, whole, part device.Tensor, root int) (calls []C.gofsdp_collective) {
	size := int64(len(c.ranks))
	switch {
	case whole.Len == 0:
		return nil
	case kind == "all-reduce" || kind == "barrier":
		return []C.gofsdp_collective{call(C.ALL_REDUCE, whole, whole, whole.Len, 0)}
	case kind == "broadcast":
		return []C.gofsdp_collective{call(C.BROADCAST, whole, whole, whole.Len, root)}
	case whole.Len%size == 0 && kind == "all-gather":
		return []C.gofsdp_collective{call(C.ALL_GATHER, part, whole, part.Len, 0)}
	case whole.Len%size == 0:
		return []C.gofsdp_collective{call(C.REDUCE_SCATTER, whole, part, part.Len, 0)}
	}
	for r := range c.ranks {
		from, to := collective.Part(whole.Len, r, len(c.ranks))
		if from == to {
			break
		}
		theirs := whole.Slice(from, to-from)
		own := theirs
		if r == c.place {
			own = part
		}
		if kind == "all-gather" {
			calls = append(calls, call(C.BROADCAST, own, theirs, theirs.Len, r))
		} else {
			calls = append(calls, call(C.REDUCE, theirs, own, theirs.Len, r))
		}
	}
	return calls
}

// Check implements device.Op.
func (o *operation) Check() error { return nil }

// Cost implements device.Op.
func (o *operation) Cost() device.Cost {
	if o.op == nil {
		return device.Cost{}
	}
	return o.op.Cost()
}

// Reference implements device.Op; a collective has none on one rank's memory.
func (o *operation) Reference() {
	panic("nccl: " + o.kind + " of " + o.name + " is for a stream of a GPU")
}

// Watch implements cuda.Watched.
func (o *operation) Watch() cuda.Failure { return o.comm }

// Start implements cuda.Native. It waits until NCCL has taken the collective, not for it: what is queued after
// it on the stream must come after it. Where connections are made first, that lasts until the others come.
func (o *operation) Start(stream unsafe.Pointer) error {
	c := o.comm
	s, err := c.enter(o, stream)
	if err != nil {
		return err
	}
	if len(o.calls) > 0 {
		if r := c.launch(o.calls, stream); r != success {
			return c.fail(o, 0, c.refused(r, callNames[o.calls[0].kind], fmt.Sprintf("%d in one group, the first of %d elements", len(o.calls), o.calls[0].count)))
		}
	}
	if s == nil {
		return c.Err()
	}
	if err := c.device.Mark(s.end, stream); err != nil {
		return c.fail(o, 0, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.launched, s.since = true, time.Time{} // from here on the deadline counts
	return c.err
}

// launch makes the calls, and waits until NCCL has taken them, or the communicator is broken.
func (c *Comm) launch(calls []C.gofsdp_collective, stream unsafe.Pointer) C.ncclResult_t {
	c.calls.Lock()
	defer c.calls.Unlock()
	c.mu.Lock()
	handle, broken := c.handle, c.err != nil
	c.mu.Unlock()
	if broken {
		return success // Start tells why
	}
	r := C.gofsdp_launch(c.library.table, handle, &calls[0], C.int(len(calls)), stream)
	for r == inProgress && c.Err() == nil {
		r = C.gofsdp_settle(c.library.table, handle)
	}
	if c.Err() != nil {
		return success
	}
	return r
}

// enter notes that a collective is about to start, for the watchdog: nil where there are too many. An event may
// have to wait for a place in the GPU's queue, so it is recorded while the watchdog may look.
func (c *Comm) enter(o *operation, stream unsafe.Pointer) (*started, error) {
	s, number, err := c.next(o)
	if s == nil || err != nil {
		return nil, err
	}
	if err := c.device.Mark(s.begin, stream); err != nil {
		return nil, c.fail(o, 0, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.op, s.number, s.launched, s.since = o, number, false, time.Time{}
	c.under++
	return s, c.err
}

// next returns the place for a collective's start, and its number.
func (c *Comm) next(o *operation) (s *started, number int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave()
	number = c.issued
	if !o.silent {
		c.issued++
	}
	if c.under < flightLen {
		// Only this thread adds, and the watchdog takes away at the other end: the place stays the same.
		s = &c.flight[(c.first+c.under)%flightLen]
	}
	return s, number, c.err
}
