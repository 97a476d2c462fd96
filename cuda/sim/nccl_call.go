//go:build sim && cgo && linux

package sim

import (
	"fmt"
	"math"
	"syscall"
)

// collectiveCall is what one call of a collective asks for.
type collectiveCall struct {
	task
	op           int
	send, recv   uint64
	sends, recvs uint64 // how many counts are sent and received: 1, or perRank
}

// collective is ncclAllGather and its sisters.
func (m *Machine) collective(handle uintptr, stream uintptr, a collectiveCall) error {
	c, err := m.comm(handle)
	if err == nil {
		err = c.check(stream, &a)
	}
	b := m.nccl.batches[syscall.Gettid()]
	if err != nil {
		if b != nil && b.err == nil {
			b.err = err
		}
		return err
	}
	if a.Count == 0 {
		return nil
	}
	s, err := c.share(a)
	if err != nil {
		if b != nil && b.err == nil {
			b.err = err
		}
		return err
	}
	st := m.streams[stream]
	start := func() error { return c.submit(st, a.Call, s) }
	if b != nil {
		b.calls, b.comms = append(b.calls, start), append(b.comms, c)
		return nil
	}
	return c.proceed(start)
}

// check refuses what NCCL would, before it looks at the buffers.
func (c *comm) check(stream uintptr, a *collectiveCall) error {
	if err := c.ready(); err != nil {
		return err
	}
	st := c.m.streams[stream]
	ctx := c.m.current[syscall.Gettid()]
	switch {
	case c.finalized:
		return deny(NCCLInvalidUsage, "%s: %s after ncclCommFinalize", c.name, a.Call)
	case ctx != c.ctx:
		return deny(NCCLUnhandledCudaError, "%s: %s on a thread whose device is not its own, device %d", c.name, a.Call, c.ctx.device.number)
	case st == nil || st.ctx != c.ctx:
		return deny(NCCLUnhandledCudaError, "%s: %s in a stream (%#x) that is none of device %d", c.name, a.Call, stream, c.ctx.device.number)
	case a.Type < 0 || a.Type > 11:
		return deny(NCCLInvalidArgument, "%s: type %d", a.Call, a.Type)
	case a.op < 0 || a.op > 4:
		return deny(NCCLInvalidArgument, "%s: reduction %d", a.Call, a.op)
	case sizeOf(a.Type) == 0 || a.op != 0:
		return deny(NCCLInvalidUsage, "%s: type %d and reduction %d are not simulated", a.Call, a.Type, a.op)
	case a.Root < -1 || a.Root >= c.ranks:
		return deny(NCCLInvalidArgument, "%s: root %d of %d ranks", a.Call, a.Root, c.ranks)
	}
	return nil
}

// share finds the buffers.
func (c *comm) share(a collectiveCall) (*share, error) {
	size, ranks := sizeOf(a.Type), uint64(c.ranks)
	if a.Count > mostElements {
		return nil, deny(NCCLInvalidArgument, "%s: %d elements", a.Call, a.Count)
	}
	bytesOf := func(counts uint64) uint64 {
		if counts == perRank {
			counts = ranks
		}
		return counts * a.Count * size
	}
	s := &share{task: a.task}
	var err error
	reads := a.Call != "ncclBroadcast" || c.rank == a.Root
	writes := a.Call != "ncclReduce" || c.rank == a.Root
	if reads {
		if s.send, err = c.span("send", a, a.send, bytesOf(a.sends)); err != nil {
			return nil, err
		}
	}
	if writes {
		if s.recv, err = c.span("receive", a, a.recv, bytesOf(a.recvs)); err != nil {
			return nil, err
		}
	}
	if !reads || !writes || a.send >= a.recv+s.recv.n || a.recv >= a.send+s.send.n {
		return s, nil
	}
	from, to := a.send, a.recv
	switch a.Call {
	case "ncclAllGather":
		to += uint64(c.rank) * s.send.n
	case "ncclReduceScatter":
		from += uint64(c.rank) * s.recv.n
	}
	if from != to {
		c.m.report(&Fault{Device: c.ctx.device.number, Stream: c.name, Call: a.Call, Err: fmt.Errorf("what is sent (%d bytes at %#x) overlaps what is received (%d bytes at %#x), and is not in place", s.send.n, a.send, s.recv.n, a.recv)})
	}
	return s, nil
}

// perRank stands for one count a rank.
const perRank = math.MaxUint64

func (c *comm) span(what string, a collectiveCall, addr, n uint64) (span, error) {
	s, err := c.m.span(addr, n)
	switch {
	case err != nil:
		return s, deny(NCCLInvalidArgument, "%s: %s: %v", a.Call, what, err)
	case !s.host && s.ctx != c.ctx:
		return s, deny(NCCLInvalidArgument, "%s: %s: %#x is memory of device %d, not of %d", a.Call, what, addr, s.ctx.device.number, c.ctx.device.number)
	case addr%sizeOf(a.Type) != 0:
		return s, deny(NCCLInvalidArgument, "%s: %s: %#x is no multiple of the element's size", a.Call, what, addr)
	}
	return s, nil
}

// submit queues the collective, behind what the communicator has in other streams. In a graph the stream's own
// order is all there is.
func (c *comm) submit(s *stream, call string, mine *share) error {
	if s.capture != nil {
		return s.submit(call, func() error { return c.meet(mine) })
	}
	s.enqueue(call, func() error { return c.meet(mine) }, c.tail)
	c.tail = s.tail
	return nil
}
