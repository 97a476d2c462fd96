//go:build sim && cgo && linux

package sim

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"syscall"
)

// commGroup is what the ranks of a communicator share: a unique id's.
type commGroup struct {
	m     *Machine
	ready chan struct{} // closed when all ranks have joined, or cannot

	mu     sync.Mutex
	size   int
	comms  map[int]*comm // by rank, those that have joined
	joined int
	broken bool // its root has given up: nobody will ever be ready
	why    string
	rounds map[int]*round // by number
}

// round is one collective of all ranks.
type round struct {
	came map[int]*share // by rank
	done chan struct{}  // closed when it has been carried out
}

// share is what a rank brings to a collective.
type share struct {
	task
	send, recv span // of no allocation where this rank sends or receives nothing
}

// task is what all ranks must have alike.
type task struct {
	call  string
	count uint64
	typ   int
	root  int // -1: none
}

func (t task) String() string {
	return fmt.Sprintf("%s of %d of type %d, root %d", t.call, t.count, t.typ, t.root)
}

// has tells whether a rank is one of the group's.
func (g *commGroup) has(rank int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return rank < g.size
}

// reason is why the group has failed.
func (g *commGroup) reason() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}

// join adds a rank.
func (g *commGroup) join(c *comm, size int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.comms == nil {
		g.size, g.comms = size, map[int]*comm{}
	}
	switch {
	case g.size != size:
		g.broken = true
		g.m.report(&Fault{Device: c.ctx.device.number, Stream: c.name, Call: "ncclCommInitRankConfig", Err: fmt.Errorf("bootstrap root: mismatch in rank count from procs %d : %d; all ranks wait for ever", g.size, size)})
		return nil
	case g.comms[c.rank] != nil:
		return deny(NCCLInternalError, "bootstrap root: rank %d of %d ranks has already checked in", c.rank, size)
	}
	for _, other := range g.comms {
		if other.ctx.device == c.ctx.device {
			g.why = fmt.Sprintf("Duplicate GPU detected: rank %d and rank %d both on CUDA device %d", other.rank, c.rank, c.ctx.device.number)
		}
	}
	g.comms[c.rank] = c
	if g.joined++; g.joined < size || g.broken {
		return nil
	}
	if g.why != "" {
		for _, each := range g.comms {
			each.async = NCCLInvalidUsage
		}
	}
	close(g.ready)
	return nil
}

// state is how a rank's end is.
func (g *commGroup) state(c *comm) NCCLResult {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.async == NCCLSuccess && !isDone(g.ready) {
		return NCCLInProgress
	}
	return c.async
}

// fault gives a rank's end an error, which stays.
func (g *commGroup) fault(c *comm, r NCCLResult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.async == NCCLSuccess {
		c.async = r
	}
}

// withdraw takes back what a rank has brought.
func (g *commGroup) withdraw(c *comm) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.rounds {
		delete(r.came, c.rank)
	}
}

// meet is a rank's part of a collective, in its stream. The last to come carries it out for all.
func (c *comm) meet(s *share) error {
	g := c.group
	g.mu.Lock()
	if isDone(c.stopped) {
		g.mu.Unlock()
		return nil // what an aborted collective leaves is nothing to rely on
	}
	number := c.started
	c.started++
	r := g.rounds[number]
	if r == nil {
		r = &round{came: map[int]*share{}, done: make(chan struct{})}
		g.rounds[number] = r
	}
	r.came[c.rank] = s
	var err error
	if len(r.came) == g.size {
		delete(g.rounds, number)
		err = g.run(r, number)
	}
	g.mu.Unlock()
	select {
	case <-r.done:
	case <-c.stopped:
	}
	return err
}

// run carries out a collective that all ranks have come to. Where they do not do the same, all are told and
// nothing ends.
func (g *commGroup) run(r *round, number int) error {
	for rank := range g.size {
		if r.came[rank].task != r.came[0].task {
			g.why = fmt.Sprintf("message truncated: collective %d is %s on rank 0 and %s on rank %d", number, r.came[0].task, r.came[rank].task, rank)
			for _, c := range g.comms {
				if c.async == NCCLSuccess {
					c.async = NCCLInvalidUsage
				}
			}
			return &unnoticed{"ranks differ: " + g.why}
		}
	}
	shares := make([]*share, g.size)
	for rank, s := range r.came {
		shares[rank] = s
	}
	defer close(r.done)
	return carry(shares)
}

// carry moves the bytes. All are read before any is written: in place means that they are the same.
func carry(shares []*share) error {
	of := shares[0].task
	var whole []byte // what is made, of which each rank gets a part
	var unwritten error
	read := func(s span) ([]byte, error) {
		if at := s.unwritten(); at >= 0 && unwritten == nil {
			unwritten = &unnoticed{fmt.Sprintf("byte %d of %v goes to other ranks, and nobody has written it", at, s.allocation)}
		}
		return s.bytes()
	}
	switch of.call {
	case "ncclAllGather":
		for _, s := range shares {
			b, err := read(s.send)
			if err != nil {
				return err
			}
			whole = append(whole, b...)
		}
	case "ncclBroadcast":
		b, err := read(shares[of.root].send)
		if err != nil {
			return err
		}
		whole = append(whole, b...)
	default:
		for rank, s := range shares {
			b, err := read(s.send)
			if err != nil {
				return err
			}
			if whole = add(of.typ, whole, b, rank == 0); rank == len(shares)-1 && of.typ == ncclBFloat16 {
				whole = rounded(whole)
			}
		}
	}
	for rank, s := range shares {
		if s.recv.allocation == nil {
			continue
		}
		b, err := s.recv.bytes()
		if err != nil {
			return err
		}
		from := uint64(0)
		if of.call == "ncclReduceScatter" {
			from = uint64(rank) * s.recv.n
		}
		copy(b, whole[from:])
		s.recv.mark()
	}
	return unwritten
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

// add adds a rank's numbers to a sum, which is fp32 for bf16.
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
	if a.count == 0 {
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
	start := func() error { return c.submit(st, a.call, s) }
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
		return deny(NCCLInvalidUsage, "%s: %s after ncclCommFinalize", c.name, a.call)
	case ctx != c.ctx:
		return deny(NCCLUnhandledCudaError, "%s: %s on a thread whose device is not its own, device %d", c.name, a.call, c.ctx.device.number)
	case st == nil || st.ctx != c.ctx:
		return deny(NCCLUnhandledCudaError, "%s: %s in a stream (%#x) that is none of device %d", c.name, a.call, stream, c.ctx.device.number)
	case a.typ < 0 || a.typ > 11:
		return deny(NCCLInvalidArgument, "%s: type %d", a.call, a.typ)
	case a.op < 0 || a.op > 4:
		return deny(NCCLInvalidArgument, "%s: reduction %d", a.call, a.op)
	case sizeOf(a.typ) == 0 || a.op != 0:
		return deny(NCCLInvalidUsage, "%s: type %d and reduction %d are not simulated", a.call, a.typ, a.op)
	case a.root < -1 || a.root >= c.group.size:
		return deny(NCCLInvalidArgument, "%s: root %d of %d ranks", a.call, a.root, c.group.size)
	}
	return nil
}

// share finds the buffers.
func (c *comm) share(a collectiveCall) (*share, error) {
	size, ranks := sizeOf(a.typ), uint64(c.group.size)
	if a.count > 1<<48 {
		return nil, deny(NCCLInvalidArgument, "%s: %d elements", a.call, a.count)
	}
	bytesOf := func(counts uint64) uint64 {
		if counts == perRank {
			counts = ranks
		}
		return counts * a.count * size
	}
	s := &share{task: a.task}
	var err error
	reads := a.call != "ncclBroadcast" || c.rank == a.root
	writes := a.call != "ncclReduce" || c.rank == a.root
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
	switch a.call {
	case "ncclAllGather":
		to += uint64(c.rank) * s.send.n
	case "ncclReduceScatter":
		from += uint64(c.rank) * s.recv.n
	}
	if from != to {
		c.m.report(&Fault{Device: c.ctx.device.number, Stream: c.name, Call: a.call, Err: fmt.Errorf("what is sent (%d bytes at %#x) overlaps what is received (%d bytes at %#x), and is not in place", s.send.n, a.send, s.recv.n, a.recv)})
	}
	return s, nil
}

// perRank stands for one count a rank.
const perRank = math.MaxUint64

func (c *comm) span(what string, a collectiveCall, addr, n uint64) (span, error) {
	s, err := c.m.span(addr, n)
	switch {
	case err != nil:
		return s, deny(NCCLInvalidArgument, "%s: %s: %v", a.call, what, err)
	case !s.host && s.ctx != c.ctx:
		return s, deny(NCCLInvalidArgument, "%s: %s: %#x is memory of device %d, not of %d", a.call, what, addr, s.ctx.device.number, c.ctx.device.number)
	case addr%sizeOf(a.typ) != 0:
		return s, deny(NCCLInvalidArgument, "%s: %s: %#x is no multiple of the element's size", a.call, what, addr)
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
