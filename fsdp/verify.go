package fsdp

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// verify executes prog on a shadow of the arena, which remembers of each byte
// the buffer that was last written there. It finds, by other means than those
// that made the plan,
//
//   - a read of what was not written, or was overwritten since: operations that
//     are missing or out of order, and two lives at one address;
//   - a result that nothing reads, or that is overwritten before anything has
//     read it, as where a sum should have gone on and begins anew;
//   - an operation whose operands overlap though it cannot work in place;
//   - what the program leaves undone or does beside: see duty;
//   - a gradient that is gone before the programs of the step that are to find it.
func (p *Plan) verify(prog *Program) error {
	if err := p.verifySums(prog); err != nil {
		return err
	}
	d := p.duty(prog)
	s, err := p.shadow(prog)
	if err != nil {
		return err
	}
	var read []span
	for i, step := range prog.Steps {
		fail := func(o device.Operand, format string, args ...any) error {
			return fmt.Errorf("fsdp: program %s, step %d (%s, %s, %s.%s): %s", prog.Name, i, p.Units[step.Unit].Name, step.Cut,
				device.Name(step.Op), o.Name, fmt.Sprintf(format, args...))
		}
		operands := accesses(step.Op)
		for _, o := range operands {
			if o.T.Buf < 1 || int(o.T.Buf) > len(p.Buffers) {
				return fail(o, "there is no buffer %d", o.T.Buf)
			}
			if b := p.Buffers[o.T.Buf-1]; o.T.Off < 0 || o.T.Off+o.T.Bytes() > b.Bytes {
				return fail(o, "it lies outside of %s", b.Name)
			} else if a := p.Arenas[b.In]; b.Off+b.Bytes > a.Bytes || b.Off != align(b.Off) || !b.Lasts && b.Off < a.Scratch {
				return fail(o, "%s lies outside of its part of the arena, or is not aligned", b.Name)
			}
		}
		if a, b, ok := p.collision(step.Op, operands); ok {
			return fail(a, "it shares memory with %s", b.Name)
		}
		for _, o := range operands {
			if o.Access&device.Read == 0 {
				continue
			}
			r := p.span(*o.T)
			if !s.read(r, o.T.Buf) {
				return fail(o, "it reads %s, which was not written, or was overwritten since", p.Buffers[o.T.Buf-1].Name)
			}
			if p.Buffers[o.T.Buf-1].Kind != Activations {
				read = append(read, r)
			}
		}
		for _, o := range operands {
			if o.Access&device.Write == 0 {
				continue
			}
			b, r := p.Buffers[o.T.Buf-1], p.span(*o.T)
			if b.Kind != Activations {
				if !slices.ContainsFunc(d.writes, func(s span) bool { return s.from <= r.from && r.to <= s.to }) {
					return fail(o, "the program may not write to %s there", b.Name)
				}
				// Gradients are sums; a reduction over two axes goes over them twice.
				if _, sum := step.Op.(*collective.AllReduce); !sum && b.Kind != Gradients && s.written(r) {
					return fail(o, "it writes to %s again", b.Name)
				}
			}
			if lost := s.unread(r); lost != 0 && (o.Access == device.Write || lost != o.T.Buf) {
				return fail(o, "it overwrites %s, which nothing has read", p.Buffers[lost-1].Name)
			}
			// Scratch leaves nothing that could be read.
			x := piece{span: r, buf: o.T.Buf, fresh: true, unread: step.Cut != "gather" && !slices.Contains(byProducts, o.Name)}
			if o.Scratch {
				x = piece{span: r}
			}
			s.put(x)
		}
	}
	var errs []error
	_, left := p.passed(prog)
	for _, t := range left {
		if !s.read(p.span(t), t.Buf) {
			errs = append(errs, fmt.Errorf("fsdp: program %s does not leave %s to those that follow", prog.Name, p.Buffers[t.Buf-1].Name))
		}
	}
	for m, a := range p.Arenas {
		if b := s.unread(span{a.Scratch, a.Bytes}.in(device.Memory(m))); b != 0 {
			errs = append(errs, fmt.Errorf("fsdp: program %s does not read %s", prog.Name, p.Buffers[b-1].Name))
		}
	}
	for _, r := range d.reads {
		if !covers(read, r) {
			errs = append(errs, fmt.Errorf("fsdp: program %s does not read all of %s", prog.Name, p.nameAt(r)))
		}
	}
	for _, r := range d.writes {
		if !s.done(r) {
			errs = append(errs, fmt.Errorf("fsdp: program %s does not write all of %s", prog.Name, p.nameAt(r)))
		}
	}
	return errors.Join(append(errs, p.verifyWaits(prog))...)
}

// duty is what a program has to do with what lasts. It reads at least all of
// reads; it writes all of writes and nothing else, and no operation to two of them.
type duty struct{ reads, writes []span }

func (p *Plan) duty(prog *Program) (d duty) {
	whole := func(bufs ...[]device.Buf) (list []span) {
		for _, units := range bufs {
			for _, b := range units {
				if b == 0 {
					continue
				}
				list = append(list, p.Buffers[b-1].span())
			}
		}
		return list
	}
	// Gaps between parameters belong to no program but Norm and Update, which
	// find zeros there, and to the micro-batch whose gradients do not last.
	params := func(units []device.Buf, typ device.DType) (list []span) {
		for i, u := range p.Units {
			for _, slot := range u.Slots {
				list = append(list, p.span(p.flat(units[i], typ, slot.Off, slot.Len())))
			}
		}
		return list
	}
	inputs := func(ts ...device.Tensor) (list []span) {
		for _, t := range ts {
			list = append(list, p.span(t))
		}
		return append(list, p.span(p.in.Cos), p.span(p.in.Sin))
	}
	// What this rank holds of the weights that compute: all of their parameters,
	// or its part of the vector.
	weights := func() []span {
		switch {
		case p.rows.params.has(sharded) && p.copies[0] != 0:
			return whole(p.copies)
		case p.rows.params.has(sharded):
			return whole(p.master)
		case p.copies[0] != 0:
			return params(p.copies, p.Type)
		}
		return params(p.master, p.Type)
	}
	gradients := func(sp spread) (list []span) {
		for i, u := range p.Units {
			list = append(list, p.span(p.gradient(i, p.held(u.Len, sp))))
		}
		return list
	}
	upload := func(t device.Tensor) {
		d.reads, d.writes = append(d.reads, p.span(p.mail(t))), append(d.writes, p.span(t))
	}
	download := func(t device.Tensor) {
		d.reads, d.writes = append(d.reads, p.span(t)), append(d.writes, p.span(p.mail(t)))
	}
	switch prog {
	case &p.Micro[0], &p.Micro[1]:
		d.reads = append(weights(), inputs(p.in.IDs, p.in.Targets, p.in.Start, p.in.Pos, p.in.Scale)...)
		d.writes = []span{p.span(p.loss)}
		upload(p.letterOf(p.in.IDs))
		download(p.loss)
		if p.rows.between.has(sharded) {
			d.writes = append(d.writes, whole(p.grad)...)
			break
		}
		d.writes = append(d.writes, params(p.grad, device.F32)...)
		if p.accumulates() {
			break
		}
		for i, u := range p.Units {
			for _, g := range u.gaps() {
				d.writes = append(d.writes, p.span(p.gradient(i, g)))
			}
		}
	case &p.Reduce:
		// The first reduction leaves the most; what follows lies within.
		left := p.rows.between
		for _, a := range []Axis{Across, Within} {
			if left[a] == partial && (a == Within || left[Within] != partial) {
				left[a] = p.rows.end[a]
			}
		}
		d.reads, d.writes = whole(p.grad), gradients(left)
	case &p.Norm:
		d.reads = gradients(p.rows.end)
		for i, u := range p.Units {
			own, n := p.held(u.Len, p.rows.end), u.Len/p.Mesh.Size()
			for at := own.from / n; at < own.to/n; at++ {
				d.writes = append(d.writes, p.span(p.norms.Slice(int64(at*len(p.Units)+i), 1)))
			}
		}
		download(p.ownNorms())
	case &p.Agree:
		upload(p.agreed)
		download(p.agreed)
	case &p.Update:
		d.reads, d.writes = append(gradients(p.rows.end), p.span(p.hyper)), append(whole(p.master, p.m, p.v), whole(p.copies)...)
		upload(p.hyper)
	case &p.Refresh:
		d.reads, d.writes = whole(p.master), whole(p.copies)
	case &p.Evaluation:
		d.reads = append(weights(), inputs(p.in.IDs, p.in.Targets, p.in.Start, p.in.Pos)...)
		d.writes = []span{p.span(p.loss)}
		upload(p.letterOf(p.in.IDs))
		download(p.loss)
	case &p.Prefill, &p.Decode:
		in := p.decode[0]
		if prog == &p.Decode {
			in = p.decode[1]
		}
		d.reads = append(weights(), inputs(in.IDs, in.Pos, in.Cached, in.Last)...)
		d.writes = []span{p.span(p.logits)}
		for _, c := range p.caches {
			d.writes = append(d.writes, p.span(c.K), p.span(c.V))
		}
		upload(p.letterOf(in.IDs))
		download(p.logits)
	default: // of Whole
		for u := range p.Whole {
			if prog == &p.Whole[u] {
				d.reads, d.writes = whole(p.master[u:u+1]), whole(p.whole[u:u+1])
			}
		}
	}
	return d
}

// passed returns the gradients that prog finds, and those that it has to leave to
// the programs that follow, of a step whose gradients do not last.
func (p *Plan) passed(prog *Program) (found, left []device.Tensor) {
	if p.accumulates() {
		return nil, nil
	}
	for i, u := range p.Units[:len(p.grad)] {
		between, end := p.gradient(i, p.held(u.Len, p.rows.between)), p.gradient(i, p.held(u.Len, p.rows.end))
		switch prog {
		case &p.Micro[0]:
			left = append(left, between)
		case &p.Reduce:
			found, left = append(found, between), append(left, end)
		case &p.Norm, &p.Agree:
			found, left = append(found, end), append(left, end)
		case &p.Update:
			found = append(found, end)
		}
	}
	return found, left
}

// accesses returns op's operands. A loss without a backward leaves its logits as
// they are; a gather leaves the rank's own part.
func accesses(op device.Op) []device.Operand {
	operands := device.Operands(op)
	if g, ok := op.(*collective.AllGather); ok {
		at := (g.Own.Off - g.Data.Off) / g.Own.Type.Size()
		before, after := g.Data.Slice(0, at), g.Data.Slice(at+g.Own.Len, g.Data.Len-at-g.Own.Len)
		operands = operands[:1]
		for _, t := range []*device.Tensor{&before, &after} {
			if t.Len > 0 {
				operands = append(operands, device.Operand{Name: "Data", T: t, Access: device.Write})
			}
		}
	}
	if h, ok := op.(*device.HeadLoss); ok && !h.Backward {
		for i := range operands {
			if operands[i].Name == "Logits" {
				operands[i].Access = device.Read
			}
		}
	}
	return operands
}

// inPlace lists the operands that may be one and the same: what is written, and
// what may have been there; a reduction's output may be a part of its data. See
// the operations' comments.
var inPlace = map[string][]string{
	"AddRMSNorm.Sum":        {"X", "Residual"},
	"AddRMSNormBackward.DX": {"DOut", "DSum"},
	"QKNormRoPE.QOut":       {"Q"},
	"QKNormRoPE.KOut":       {"K"},
	"QKNormRoPEBackward.DQ": {"DQOut"},
	"QKNormRoPEBackward.DK": {"DKOut"},
	"ReduceScatter.Out":     {"Data"},
	"ReduceSum.Dst":         {"Srcs[0]"},
	"SwiGLU.Out":            {"Gate", "Up"},
	"SwiGLUBackward.DGate":  {"Gate", "DOut"},
	"SwiGLUBackward.DUp":    {"Up"},
}

// collision returns two operands that overlap though they must not: one that is
// written, and another.
func (p *Plan) collision(op device.Op, operands []device.Operand) (written, other device.Operand, found bool) {
	for _, w := range operands {
		if w.Access&device.Write == 0 {
			continue
		}
		for _, o := range operands {
			a, b := p.span(*w.T), p.span(*o.T)
			if w.Name == o.Name || a.to <= b.from || b.to <= a.from {
				continue
			}
			within := a == b || device.Name(op) == "ReduceScatter" && b.from <= a.from && a.to <= b.to
			if !within || w.T.Buf != o.T.Buf || o.Access != device.Read || !slices.Contains(inPlace[device.Name(op)+"."+w.Name], o.Name) {
				return w, o, true
			}
		}
	}
	return written, other, false
}

// span is a range of bytes of the arenas, which count as far apart.
type span struct{ from, to int64 }

// in returns a range of bytes of one arena.
func (s span) in(m device.Memory) span {
	const apart = 1 << 56
	return span{s.from + int64(m)*apart, s.to + int64(m)*apart}
}

func (b Buffer) span() span { return span{b.Off, b.Off + b.Bytes}.in(b.In) }

func (p *Plan) span(t device.Tensor) span {
	from := p.Buffers[t.Buf-1].span().from + t.Off
	return span{from, from + t.Bytes()}
}

// nameAt names what lasts at r.
func (p *Plan) nameAt(r span) string {
	for _, b := range p.Buffers {
		at := b.span()
		if b.Kind == Activations || r.from < at.from || r.from >= at.to {
			continue
		}
		for _, u := range p.Units {
			for _, s := range u.Slots {
				if b.Kind == Gradients && b.Name == u.Name+" gradient" && r.from == at.from+4*int64(s.Off) {
					return "the gradient of " + s.Name
				}
			}
		}
		return b.Name
	}
	return "nothing"
}

// covers reports whether the spans together hold all of r.
func covers(spans []span, r span) bool {
	for at := r.from; at < r.to; {
		next := at
		for _, s := range spans {
			if s.from <= at && at < s.to {
				next = max(next, s.to)
			}
		}
		if next == at {
			return false
		}
		at = next
	}
	return true
}

// shadow is what a program's memory would hold: pieces side by side in the
// order of their addresses. Where there is none, nothing is known.
type shadow struct{ pieces []piece }

// piece is bytes that hold what was written to a buffer; of none, 0, what cannot
// be read.
type piece struct {
	span
	buf    device.Buf
	fresh  bool // written by this program
	unread bool // written, and not read since
}

// shadow returns the memory as prog finds it. What lasts is there, but no
// results, nor inputs before they are copied from the mailbox, and a step's first
// micro-batch finds no gradients; its others find sums that must be read before
// they may be overwritten. Of what does not last there is what the programs before
// have to leave.
func (p *Plan) shadow(prog *Program) (*shadow, error) {
	s, ends := &shadow{}, [device.Memories]int64{}
	for i, b := range p.Buffers {
		if !b.Lasts {
			continue
		}
		if b.Kind != Inputs && b.Kind != Outputs && (b.Kind != Gradients || prog != &p.Micro[0]) {
			s.put(piece{span: b.span(), buf: device.Buf(i + 1), unread: b.Kind == Gradients && prog == &p.Micro[1]})
		}
		if b.Off < ends[b.In] || b.Off+b.Bytes > p.Arenas[b.In].Scratch || b.Off != align(b.Off) {
			return nil, fmt.Errorf("fsdp: %s does not lie behind what comes before it, aligned and within what lasts", b.Name)
		}
		ends[b.In] = b.Off + b.Bytes
	}
	found, _ := p.passed(prog)
	for _, t := range found {
		s.put(piece{span: p.span(t), buf: t.Buf})
	}
	return s, nil
}

// at splits pieces so that none crosses an end of r, and returns those within.
func (s *shadow) at(r span) (from, to int) {
	bound := func(x int64) int {
		i := sort.Search(len(s.pieces), func(i int) bool { return s.pieces[i].to > x })
		if i < len(s.pieces) && s.pieces[i].from < x {
			left, right := s.pieces[i], s.pieces[i]
			left.to, right.from = x, x
			s.pieces = slices.Replace(s.pieces, i, i+1, left, right)
			i++
		}
		return i
	}
	from = bound(r.from)
	return from, bound(r.to)
}

// read reports whether all of r holds what was written to buf, and notes that
// it was read.
func (s *shadow) read(r span, buf device.Buf) bool {
	from, to := s.at(r)
	next := r.from
	for i := from; i < to; i++ {
		if s.pieces[i].buf != buf || s.pieces[i].from != next {
			return false
		}
		s.pieces[i].unread = false
		next = s.pieces[i].to
	}
	return next == r.to
}

// written reports whether this program has written to any of r.
func (s *shadow) written(r span) bool {
	from, to := s.at(r)
	return slices.ContainsFunc(s.pieces[from:to], func(p piece) bool { return p.fresh })
}

// unread returns the first buffer in r of which something was written and not
// read since, 0 where there is none.
func (s *shadow) unread(r span) device.Buf {
	from, to := s.at(r)
	for _, p := range s.pieces[from:to] {
		if p.unread {
			return p.buf
		}
	}
	return 0
}

// done reports whether this program has written all of r.
func (s *shadow) done(r span) bool {
	from, to := s.at(r)
	next := r.from
	for _, p := range s.pieces[from:to] {
		if !p.fresh || p.from != next {
			return false
		}
		next = p.to
	}
	return next == r.to
}

// byProducts are results that a forward needs not and a backward may: they need
// not be read. Nor need all of gathered weights: a tied unit's norm is not, where
// the embedding is looked up, and never what lies between parameters.
var byProducts = []string{"Sum", "RStd", "QRStd", "KRStd", "LSE"}

// put puts a piece in the place of what was there.
func (s *shadow) put(x piece) {
	from, to := s.at(x.span)
	s.pieces = slices.Replace(s.pieces, from, to, x)
}
