package collective

import (
	"fmt"

	"github.com/gofsdp/gofsdp/device"
)

// A sum over several nodes keeps the order of ranks: the first node adds its
// ranks' data in their order, the next adds its own to that, and so on; the last
// node's sum goes to the rank whose part it is. So the bits are those of one sum
// over all ranks, and between two nodes a part goes once, and once more to where it
// belongs, however many ranks the nodes have. Each rank works on the parts of its
// column, a chunk after the other; all nodes do so at once, each on another chunk.

// unit is a chunk of the part of a column's rank.
type unit struct {
	node     int   // of the rank whose part it is
	at, from int64 // its first element in the whole tensor, and in the part
	size     int64
}

// chain is the memory of a sum under way. Each kind has two, so that the next
// chunk comes and the one before leaves while one is added.
type chain struct {
	*levelBinding
	acc      device.DType // that sums are added in
	in, out  [2]device.Tensor
	narrow   [2]device.Tensor // a sum in the type of the data, where that is another
	wide     []device.Tensor  // of each rank of the node: its data in the type of sums
	data     device.Tensor
	to       device.Tensor // this rank's part of the sum
	units    []unit
	got, off []*latch // by unit: it has come from the node before; its sum has left
	own      *latch   // the sums of this rank's part have come
}

// sum puts this rank's part of the sum of all ranks' data into out. The step that
// it returns has to come next: after it all is there and has been sent.
func (b *levelBinding) sum(data, out device.Tensor) (done *exchange, err error) {
	c := &chain{levelBinding: b, acc: data.Type, data: data, to: out}
	if c.acc == device.BF16 {
		c.acc = device.F32 // sums are rounded once
	}
	if err := c.cut(); err != nil {
		return nil, err
	}
	node, last := b.far.Rank(), b.far.Size()-1
	c.got, c.off, c.own = make([]*latch, len(c.units)), make([]*latch, len(c.units)), newLatch(last+1)
	base := b.wire.parts
	s, owed := b.wire.step(), false
	for j, u := range c.units {
		if node > 0 {
			if j == 0 {
				c.expect(s, base, 0)
			}
			if j+1 < len(c.units) {
				c.expect(s, base, j+1)
			}
			s.do.wait = append(s.do.wait, c.got[j])
		}
		if j >= 2 && c.off[j-2] != nil {
			s.do.wait = append(s.do.wait, c.off[j-2])
		}
		b.add(s)
		summed := c.add(j)
		s = b.wire.step()
		b.wire.parts = base + uint32(j)
		to := node + 1
		if node == last {
			to = u.node
		}
		if to != node {
			c.off[j] = newLatch(last + 1)
			s.do.arm = append(s.do.arm, c.off[j])
			b.wire.move(s, to, true, summed, c.off[j])
		}
		if u.node == node && node < last {
			if !owed {
				s.do.arm, owed = append(s.do.arm, c.own), true
			}
			b.wire.move(s, last, false, c.to.Slice(u.from, u.size), c.own)
		}
	}
	b.wire.parts = base + uint32(len(c.units))
	for _, l := range c.off[max(len(c.units)-2, 0):] {
		if l != nil {
			s.do.wait = append(s.do.wait, l)
		}
	}
	if owed {
		s.do.wait = append(s.do.wait, c.own)
	}
	return s, nil
}

// cut makes the units, and the memory to work on one.
func (c *chain) cut() error {
	nodes, ranks := c.far.Size(), c.Size()
	longest, _ := Part(c.data.Len, 1, ranks) // the first part's end
	size := c.acc.Size()
	chunk := (min(stageSize/4/size, max(longest, 1)) + 63) / 64 * 64
	for at := int64(0); at < longest; at += chunk {
		for node := range nodes {
			from, to := Part(c.data.Len, c.place(node, c.near.rank), ranks)
			if n := min(chunk, to-from-at); n > 0 {
				c.units = append(c.units, unit{node, from + at, at, n})
			}
		}
	}
	tensors := []*device.Tensor{&c.in[0], &c.in[1], &c.out[0], &c.out[1]}
	if c.acc != c.data.Type {
		tensors = append(tensors, &c.narrow[0], &c.narrow[1])
		c.wide = make([]device.Tensor, c.near.size)
		for r := range c.wide {
			tensors = append(tensors, &c.wide[r])
		}
	}
	stage, err := c.far.stage(int64(len(tensors)) * chunk * size)
	if err != nil {
		return fmt.Errorf("collective: memory to stage %s: %w", c.wire.about, err)
	}
	for i, t := range tensors {
		*t = stage.In(c.acc, int64(i)*chunk*size, chunk)
	}
	for i := range c.narrow {
		c.narrow[i].Type = c.data.Type // of which it then has room for more
	}
	return nil
}

// expect adds to a step that a unit's sum comes from the node before.
func (c *chain) expect(s *exchange, base uint32, j int) {
	c.got[j] = newLatch(c.far.Size())
	s.do.arm = append(s.do.arm, c.got[j])
	c.wire.parts = base + uint32(j)
	c.wire.move(s, c.far.Rank()-1, false, c.in[j%2].Slice(0, c.units[j].size), c.got[j])
}

// add emits the addition of this node's data of a unit to what has come, and
// returns what is to be sent on.
func (c *chain) add(j int) (summed device.Tensor) {
	node, last := c.far.Rank(), c.far.Size()-1
	u, n := c.units[j], int(c.units[j].size)
	emit := func(op device.Op) { c.steps = append(c.steps, op) }
	summed = c.out[j%2].Slice(0, u.size)
	here := node == last && u.node == last // it ends in this rank's part
	if here && c.acc == c.data.Type {
		summed = c.to.Slice(u.from, u.size)
	}
	var srcs []device.Tensor
	if node > 0 {
		srcs = append(srcs, c.in[j%2].Slice(0, u.size))
	}
	for r, p := range c.peers {
		src := p.data.Slice(u.at, u.size)
		if node > 0 && src.Type != c.acc { // sources are of one type
			wide := c.wide[r].Slice(0, u.size)
			emit(&device.Cast{Src: src, Dst: wide, N: n})
			src = wide
		}
		srcs = append(srcs, src)
	}
	emit(&device.ReduceSum{Srcs: srcs, Dst: summed, N: n})
	if node < last || c.acc == c.data.Type {
		return summed
	}
	rounded := c.narrow[j%2].Slice(0, u.size)
	if here {
		rounded = c.to.Slice(u.from, u.size)
	}
	emit(&device.Cast{Src: summed, Dst: rounded, N: n})
	return rounded
}
