package collective

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

// exchange is the operation that moves parts between this rank and its peers:
// it starts some transfers and waits for some, its own or earlier ones.
type exchange struct {
	Of string // the collective, for transcripts
	do moves
}

// moves are an exchange's transfers. All is made by Bind and used at each launch.
type moves struct {
	comm  *TCP
	op    Op
	arm   []*latch // that this step's transfers are the first of
	post  []transfer
	wait  []*latch
	final bool // the collective is done
}

// Check implements device.Op.
func (o *exchange) Check() error { return nil }

// Cost implements device.Op: what is received.
func (o *exchange) Cost() (c device.Cost) {
	for i := range o.do.post {
		if x := &o.do.post[i]; !x.send {
			c.Bytes += int64(len(x.memory))
		}
	}
	return c
}

// Reference implements device.Op. It blocks, and panics with an *Error.
func (o *exchange) Reference() {
	m, began := &o.do, time.Now()
	for _, l := range m.arm {
		l.set()
	}
	for i := range m.post {
		x := m.post[i]
		x.frame.number = m.comm.number.Load()
		queue := x.link.receives
		if x.send {
			queue = x.link.sends
		}
		select {
		case queue <- x:
		case <-m.comm.failed:
		}
	}
	for _, l := range m.wait {
		if !m.comm.wait(l, began) {
			panic(m.comm.errorOf(m.op, began))
		}
	}
	if m.final {
		m.comm.number.Add(1)
	}
}

// latch opens when a number of transfers is done.
type latch struct {
	ofPeer []int32 // transfers with each peer
	left   []atomic.Int32
	all    atomic.Int32
	open   chan struct{}
}

func newLatch(size int) *latch {
	return &latch{ofPeer: make([]int32, size), left: make([]atomic.Int32, size), open: make(chan struct{}, 1)}
}

// set closes the latch again.
func (l *latch) set() {
	var all int32
	for r, n := range l.ofPeer {
		l.left[r].Store(n)
		all += n
	}
	l.all.Store(all)
	if all == 0 {
		l.open <- struct{}{}
	}
}

func (l *latch) finish(peer int) {
	l.left[peer].Add(-1)
	if l.all.Add(-1) == 0 {
		l.open <- struct{}{}
	}
}

// wait returns whether the latch opened. It fails the group where a peer that
// owes something has been silent for the deadline.
func (t *TCP) wait(l *latch, began time.Time) bool {
	for patience := t.set.Deadline; ; {
		t.timer.Reset(patience)
		select {
		case <-l.open:
			t.timer.Stop()
			return true
		case <-t.failed:
			t.timer.Stop()
			return false
		case now := <-t.timer.C:
			var missing []int
			patience = t.set.Deadline
			for r, p := range t.peers {
				if p == nil || l.left[r].Load() == 0 {
					continue
				}
				last := max(began.UnixNano(), p.last.Load())
				if left := t.set.Deadline - time.Duration(now.UnixNano()-last); left <= 0 {
					missing = append(missing, p.name)
				} else {
					patience = min(patience, left)
				}
			}
			if missing != nil {
				t.fail(missing, fmt.Errorf("rank %d waited in vain: %w", t.name(t.set.Rank), ErrDeadline))
				return false
			}
		}
	}
}

// stageSize is about how much memory sums are staged in; small pieces make up
// for it, and let the next one come while one is summed.
const stageSize = 4 << 20

// steps returns what carries the collective out.
func (b *binding) steps() (steps []device.Op, err error) {
	n, rank := b.comm.Size(), b.comm.Rank()
	switch op := b.op.(type) {
	case *AllGather:
		return []device.Op{b.last(b.gather(op.Data, op.Own))}, nil
	case *ReduceScatter:
		if steps, err = b.sum(op.Data, op.Out); err != nil {
			return nil, err
		}
		return append(steps, b.last(b.step())), nil
	case *AllReduce:
		from, to := Part(op.Data.Len, rank, n)
		own := op.Data.Slice(from, to-from)
		if steps, err = b.sum(op.Data, own); err != nil {
			return nil, err
		}
		// What is gathered comes to where the parts that are sent lie.
		steps = append(steps, b.flush(b.step()))
		return append(steps, b.last(b.gather(op.Data, own))), nil
	case *Broadcast:
		s := b.step()
		for _, r := range b.others() {
			if rank == op.Root {
				b.send(s, r, op.Data)
			} else if r == op.Root {
				b.receive(s, r, op.Data, nil)
			}
		}
		return []device.Op{b.last(s)}, nil
	default:
		s := b.step()
		got := newLatch(n)
		for _, r := range b.others() {
			b.receive(s, r, device.Tensor{}, got)
			b.send(s, r, device.Tensor{})
		}
		return []device.Op{b.last(s)}, nil
	}
}

func (b *binding) step() *exchange {
	return &exchange{b.about, moves{comm: b.comm, op: b.op}}
}

// others lists the peers, the next rank first so that not all use one at once.
func (b *binding) others() (ranks []int) {
	for i := 1; i < b.comm.Size(); i++ {
		ranks = append(ranks, (b.comm.Rank()+i)%b.comm.Size())
	}
	return ranks
}

// gather sends own to all and receives their parts of whole.
func (b *binding) gather(whole, own device.Tensor) *exchange {
	s, got := b.step(), newLatch(b.comm.Size())
	for _, r := range b.others() {
		from, to := Part(whole.Len, r, b.comm.Size())
		b.receive(s, r, whole.Slice(from, to-from), got)
		b.send(s, r, own)
	}
	b.parts++
	return s
}

// sum exchanges and adds this rank's part of all ranks' data into out, a chunk
// after the other. While one is added the next comes, into the other half of the
// staging memory.
func (b *binding) sum(data, out device.Tensor) (steps []device.Op, err error) {
	n, rank := b.comm.Size(), b.comm.Rank()
	longest, _ := Part(data.Len, 1, n) // the first part's end
	width := data.Type.Size()
	chunk := min(max(stageSize/2/int64(max(n-1, 1)), 64<<10)/width, max(longest, 1))
	chunk = (chunk + 63) / 64 * 64
	stage, err := b.comm.stage(2 * int64(n-1) * chunk * width)
	if err != nil {
		return nil, fmt.Errorf("collective: memory to stage %s: %w", b.about, err)
	}
	chunks := max((longest+chunk-1)/chunk, 1)
	// cut is a chunk of a rank's part of the data.
	cut := func(r int, k int64) device.Tensor {
		from, to := Part(data.Len, r, n)
		first := min(from+k*chunk, to)
		return data.Slice(first, min(first+chunk, to)-first)
	}
	staged := func(r int, k int64) device.Tensor {
		if r > rank {
			r--
		}
		return stage.In(data.Type, ((k%2)*int64(n-1)+int64(r))*chunk*width, cut(rank, k).Len)
	}
	base := b.parts
	got := make([]*latch, chunks)
	post := func(s *exchange, k int64) {
		b.parts = base + uint32(k)
		got[k] = newLatch(n)
		s.do.arm = append(s.do.arm, got[k])
		for _, r := range b.others() {
			b.move(s, r, false, staged(r, k), got[k])
			b.send(s, r, cut(r, k))
		}
	}
	for k := range chunks {
		s := b.step()
		if k == 0 {
			post(s, 0)
		}
		if k+1 < chunks {
			post(s, k+1)
		}
		s.do.wait = []*latch{got[k]}
		steps = append(steps, s)
		mine := cut(rank, k)
		if mine.Len == 0 {
			continue
		}
		srcs := make([]device.Tensor, n)
		for r := range n {
			if srcs[r] = mine; r != rank {
				srcs[r] = staged(r, k)
			}
		}
		steps = append(steps, &device.ReduceSum{Srcs: srcs, Dst: out.Slice(k*chunk, mine.Len), N: int(mine.Len)})
	}
	b.parts = base + uint32(chunks)
	return steps, nil
}

// receive adds a transfer from a peer that the step itself waits for.
func (b *binding) receive(s *exchange, peer int, to device.Tensor, got *latch) {
	if got == nil {
		got = newLatch(b.comm.Size())
	}
	if !slices.Contains(s.do.wait, got) {
		s.do.arm, s.do.wait = append(s.do.arm, got), append(s.do.wait, got)
	}
	b.move(s, peer, false, to, got)
}

// send adds a transfer to a peer, for which a later flush waits.
func (b *binding) send(s *exchange, peer int, from device.Tensor) {
	b.arm(s)
	b.move(s, peer, true, from, b.sends)
}

// arm makes s the first step of those whose sends are waited for together.
func (b *binding) arm(s *exchange) {
	if b.sends == nil {
		b.sends = newLatch(b.comm.Size())
		s.do.arm = append(s.do.arm, b.sends)
	}
}

// flush makes a step wait for all sends.
func (b *binding) flush(s *exchange) *exchange {
	if b.sends != nil {
		s.do.wait = append(s.do.wait, b.sends)
	}
	b.sends = nil
	return s
}

// last makes a step the one after which the collective is done: nobody reads
// this rank's memory any more.
func (b *binding) last(s *exchange) device.Op {
	b.flush(s).do.final = true
	return s
}

// sideBySide is the size of parts that go over several connections: it only pays for parts that are not small.
const sideBySide = 256 << 10

// move adds a transfer to a step, cut into one for each connection.
func (b *binding) move(s *exchange, peer int, send bool, t device.Tensor, l *latch) {
	memory := hostBytes(t)
	links := b.comm.peers[peer].links
	if len(memory) < sideBySide {
		links = links[:1]
	}
	each := (len(memory) + len(links) - 1) / len(links)
	for i, link := range links {
		f := frame{kind: b.kind, index: link.index, group: b.comm.group, bound: b.id, part: b.parts, from: uint32(b.comm.Rank()), to: uint32(peer)}
		if !send {
			f.from, f.to = f.to, f.from
		}
		m := memory[min(i*each, len(memory)):min((i+1)*each, len(memory))]
		f.length = uint64(len(m))
		s.do.post = append(s.do.post, transfer{link: link, send: send, frame: f, memory: m, latch: l})
		l.ofPeer[peer]++
	}
}

// hostBytes returns a tensor's bytes in place.
func hostBytes(t device.Tensor) []byte {
	if t.Bytes() == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(t.Pointer()), t.Bytes())
}

// stage returns memory of at least size bytes that the collectives share: only
// one of them is under way at a time.
func (t *TCP) stage(size int64) (device.Buffer, error) {
	if n := len(t.stages); n > 0 && t.stages[n-1].Size >= size {
		return t.stages[n-1], nil
	}
	if size == 0 {
		return device.Buffer{}, nil
	}
	b, err := t.set.Device.Alloc(size, device.Local)
	if err != nil {
		return b, err
	}
	t.stages = append(t.stages, b)
	if b.Host == nil {
		return b, fmt.Errorf("device %s keeps its memory from the host", t.set.Device.Info().Name)
	}
	return b, nil
}
