package collective

import "github.com/gofsdp/gofsdp/device"

// meet is the operation that waits for all ranks of a group. The first of a
// collective says that what a rank gives is there, the last that nobody reads
// it any more.
type meet struct {
	member *member
	op     Op
	last   bool
}

// Check implements device.Op.
func (o *meet) Check() error { return nil }

// Cost implements device.Op.
func (o *meet) Cost() device.Cost { return device.Cost{} }

// Reference implements device.Op. It blocks, and panics with an *Error.
func (o *meet) Reference() {
	missing, err := o.member.meet()
	if err != nil {
		panic(o.member.fail(o.op, missing, err))
	}
	if o.last {
		o.member.done++
	}
}

// steps returns what carries op out, where peers are what the ranks offer.
func (m *member) steps(op Op, peers []offer) []device.Op {
	if _, ok := op.(*Barrier); ok {
		return []device.Op{&meet{m, op, true}}
	}
	steps := []device.Op{&meet{m, op, false}}
	from, to := Part(data(op).Len, m.rank, m.Size())
	switch op := op.(type) {
	case *AllGather:
		steps = append(steps, gather(op.Data, peers, m.rank)...)
	case *ReduceScatter:
		steps = append(steps, sum(op.Out, peers, from, to)...)
	case *AllReduce:
		steps = append(steps, sum(op.Data.Slice(from, to-from), peers, from, to)...)
		steps = append(steps, &meet{m, op, false})
		steps = append(steps, gather(op.Data, peers, m.rank)...)
	case *Broadcast:
		if n := op.Data.Len; m.rank != op.Root && n > 0 {
			steps = append(steps, &device.Copy{Src: peers[op.Root].data, Dst: op.Data, N: int(n)})
		}
	}
	return append(steps, &meet{m, op, true})
}

// gather copies the others' parts, the next rank's first so that not all read
// one rank at once.
func gather(whole device.Tensor, peers []offer, rank int) (steps []device.Op) {
	n := len(peers)
	for i := 1; i < n; i++ {
		r := (rank + i) % n
		if from, to := Part(whole.Len, r, n); to > from {
			steps = append(steps, &device.Copy{Src: peers[r].data.Slice(from, to-from), Dst: whole.Slice(from, to-from), N: int(to - from)})
		}
	}
	return steps
}

// sum adds a range of all ranks' data, in the order of ranks, into out.
func sum(out device.Tensor, peers []offer, from, to int64) []device.Op {
	if to == from {
		return nil
	}
	srcs := make([]device.Tensor, len(peers))
	for r, p := range peers {
		srcs[r] = p.data.Slice(from, to-from)
	}
	return []device.Op{&device.ReduceSum{Srcs: srcs, Dst: out, N: int(to - from)}}
}
