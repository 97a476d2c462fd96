package collective

import (
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// levels is a rank's end of a group that has several ranks on each of several
// nodes, as many on all of them. Where one level fails the other has to end, too:
// whoever makes it sees to that (onError). Ranks of a node read each other's memory; beyond
// it a rank talks over TCP with those that have its place on the other nodes, its
// column. So what a node gets from another crosses the link once, and not once for
// each of its ranks.
type levels struct {
	near *member // the ranks of this node
	far  *TCP    // this rank's column, one rank of each node
}

// farDeadline is the deadline of a column. It is longer than that of a node: who
// waits for a rank that waits for another hears from it first whom it lacks.
func farDeadline(d time.Duration) time.Duration { return d * 5 / 4 }

// Rank implements Comm.
func (c *levels) Rank() int { return c.place(c.far.Rank(), c.near.rank) }

// Size implements Comm.
func (c *levels) Size() int { return c.far.Size() * c.near.size }

// place returns the group's place of the rank at a place on a node.
func (c *levels) place(node, near int) int { return node*c.near.size + near }

// Abort implements Comm.
func (c *levels) Abort(reason error) {
	c.near.Abort(reason)
	c.far.Abort(reason)
}

// Bind implements Comm.
func (c *levels) Bind(op Op) ([]device.Op, error) {
	about, err := checked(op, c.Rank(), c.Size())
	if err != nil {
		return nil, err
	}
	b := &levelBinding{levels: c, op: op, wire: c.far.binding(op, about)}
	// What the ranks of each node and those of each column have alike, all have.
	if b.peers, err = c.near.agree(op, about); err == nil {
		err = c.far.agree(op, about)
	}
	if err == nil {
		err = b.bind()
	}
	if err != nil {
		return nil, err
	}
	return b.steps, nil
}

// levelBinding is what Bind makes of one collective.
type levelBinding struct {
	*levels
	op    Op
	peers []offer  // of the ranks of this node
	wire  *binding // to the ranks of the column
	steps []device.Op
}

// bind makes the steps. Each collective begins with a meeting of the node, so
// that a rank which does not come is missed there first.
func (b *levelBinding) bind() error {
	b.meet(false)
	switch op := b.op.(type) {
	case *AllGather:
		b.gather(op.Data, op.Own)
	case *ReduceScatter:
		done, err := b.sum(op.Data, op.Out)
		if err != nil {
			return err
		}
		b.add(b.wire.last(done))
	case *AllReduce:
		from, to := Part(op.Data.Len, b.Rank(), b.Size())
		own := op.Data.Slice(from, to-from)
		done, err := b.sum(op.Data, own)
		if err != nil {
			return err
		}
		b.add(done)
		b.meet(false) // what is gathered comes to where others have read what they sum
		b.gather(op.Data, own)
	case *Broadcast:
		b.broadcast(op)
	default:
		s, got := b.wire.step(), newLatch(b.far.Size())
		for _, r := range b.wire.others() {
			b.wire.receive(s, r, device.Tensor{}, got)
			b.wire.send(s, r, device.Tensor{})
		}
		b.add(b.wire.last(s))
	}
	b.meet(true)
	return nil
}

func (b *levelBinding) add(op device.Op) { b.steps = append(b.steps, op) }

func (b *levelBinding) meet(last bool) { b.add(&meet{b.near, b.op, last}) }

// gather gets the parts of this rank's column over TCP and all others from the
// memory of the node, where each rank has got those of its own column.
func (b *levelBinding) gather(whole, own device.Tensor) {
	node, size := b.far.Rank(), b.far.Size()
	start, end, got := b.wire.step(), b.wire.step(), newLatch(size)
	start.do.arm = append(start.do.arm, got)
	for _, r := range b.wire.others() {
		b.wire.move(start, r, false, b.part(whole, r, b.near.rank), got)
		b.wire.send(start, r, own)
	}
	b.wire.parts++
	end.do.wait = append(end.do.wait, got)
	b.add(start)
	b.copy(whole, node) // while the others come
	b.add(b.wire.last(end))
	b.meet(false)
	for i := 1; i < size; i++ {
		b.copy(whole, (node+i)%size)
	}
}

// copy takes the parts of a node's ranks, but this rank's column, from the memory
// of the ranks here.
func (b *levelBinding) copy(whole device.Tensor, node int) {
	for i := 1; i < b.near.size; i++ {
		r := (b.near.rank + i) % b.near.size
		if dst := b.part(whole, node, r); dst.Len > 0 {
			b.steps = append(b.steps, &device.Copy{Src: b.part(b.peers[r].data, node, r), Dst: dst, N: int(dst.Len)})
		}
	}
}

func (b *levelBinding) part(whole device.Tensor, node, near int) device.Tensor {
	from, to := Part(whole.Len, b.place(node, near), b.Size())
	return whole.Slice(from, to-from)
}

// broadcast sends what the root has to the ranks of its column, from which the
// others of their nodes take it.
func (b *levelBinding) broadcast(op *Broadcast) {
	node, near := op.Root/b.near.size, op.Root%b.near.size
	s := b.wire.step()
	if b.near.rank == near {
		for _, r := range b.wire.others() {
			if op.Root == b.Rank() {
				b.wire.send(s, r, op.Data)
			} else if r == node {
				b.wire.receive(s, r, op.Data, nil)
			}
		}
	}
	b.add(b.wire.last(s))
	b.meet(false)
	if n := op.Data.Len; b.near.rank != near && n > 0 {
		b.steps = append(b.steps, &device.Copy{Src: b.peers[near].data, Dst: op.Data, N: int(n)})
	}
}
