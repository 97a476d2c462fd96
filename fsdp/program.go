package fsdp

import (
	"fmt"
	"hash/fnv"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
)

// builder is the model.Emitter that collects one Program.
type builder struct {
	plan    *Plan
	prog    *Program
	unit    int
	written map[string]bool // gradients that this micro-batch has written to
	add     bool            // gradients that last hold the sum of earlier micro-batches

	weights  map[int]device.Buf // by unit: gathered weights
	segments []segment          // of a program that goes from unit to unit
	ahead    bool               // what is emitted may run ahead of the segments before
	grads    map[int]device.Buf // by unit: whole gradients that this micro-batch has begun
}

// program collects what emit emits.
func (p *Plan) program(name string, emit func(*builder)) Program {
	prog := Program{Name: name}
	b := &builder{plan: p, prog: &prog, written: map[string]bool{}, weights: map[int]device.Buf{}, grads: map[int]device.Buf{}}
	emit(b)
	b.flatten()
	return prog
}

// Weight implements model.Emitter.
func (b *builder) Weight(param string) device.Tensor {
	s := b.plan.slot(param)
	buf := b.plan.lasting(s.Unit)
	if buf == 0 {
		if buf = b.weights[s.Unit]; buf == 0 {
			panic("fsdp: nobody has gathered " + param)
		}
	}
	return b.plan.flat(buf, b.plan.Type, s.Off, s.Len())
}

// Grad implements model.Emitter.
func (b *builder) Grad(param string) (device.Tensor, bool) {
	s, p := b.plan.slot(param), b.plan
	add := b.written[param] || b.add && !p.rows.between.has(sharded)
	b.written[param] = true
	return p.flat(b.gradient(), device.F32, s.Off, s.Len()), add
}

// Value implements model.Emitter.
func (b *builder) Value(name string, typ device.DType, n int) device.Tensor {
	t := device.Tensor{Type: typ, Len: int64(n)}
	t.Buf = b.plan.buffer(b.plan.Units[b.unit].Name+" "+name, Activations, t.Bytes())
	return t
}

// Emit implements model.Emitter. A wrong operation is this program's mistake.
func (b *builder) Emit(cut string, op device.Op) { b.step(Step{Op: op, Unit: b.unit, Cut: cut}) }

func (b *builder) step(s Step) {
	if err := s.Op.Check(); err != nil {
		panic(fmt.Sprintf("fsdp: %s, %s: %v", b.plan.Units[s.Unit].Name, s.Cut, err))
	}
	n := len(b.segments)
	switch {
	case n == 0:
		b.prog.Steps = append(b.prog.Steps, s)
	case b.ahead:
		b.segments[n-1].gathers = append(b.segments[n-1].gathers, s)
	default:
		b.segments[n-1].rest = append(b.segments[n-1].rest, s)
	}
}

func (p *Plan) decoder(seqs, seqLen int) *model.Decoder {
	return &model.Decoder{
		Config: p.Model, Type: p.Type, Seqs: seqs, SeqLen: seqLen,
		Positions: int(p.in.Cos.Len) * 2 / p.Model.HeadSize, HeadRows: p.headRows(),
	}
}

// micro emits forward and backward of a micro-batch. Weights are gathered as a
// unit begins; they are released behind it, but for the last block's, which
// the backward begins with, and reduced gradients follow each unit's backward.
func (p *Plan) micro(add bool) func(*builder) {
	return func(b *builder) {
		b.add = add
		d, acts := p.decoder(p.Seqs, p.SeqLen), make([]model.Acts, p.Model.Layers)
		b.upload(p.letterOf(p.in.IDs))
		b.enter(0)
		s := d.Embed(b, p.in)
		b.leave(p.KeepWeights)
		for l := range acts {
			b.enter(1 + l)
			s, acts[l] = d.Block(b, l, p.in, s)
			b.leave(p.KeepWeights || l == len(acts)-1)
		}
		b.enter(d.HeadUnit())
		dh := d.HeadLoss(b, p.in, s, p.loss, true)
		b.leave(false)
		if !p.Model.Tied {
			b.settle()
		}
		for l := len(acts) - 1; l >= 0; l-- {
			b.enter(1 + l)
			a := acts[l]
			switch p.Recompute {
			case RecomputeSelective:
				a = d.RecomputeCheap(b, l, p.in, a)
			case RecomputeBlock:
				a = d.RecomputeBlock(b, l, p.in, a)
			}
			dh = d.BlockBackward(b, l, p.in, a, dh)
			b.leave(false)
			b.settle()
		}
		b.unit = 0 // the gradient of the look-up needs no weights
		d.EmbedBackward(b, p.in, dh)
		b.settle()
		b.download(p.loss)
	}
}

func (p *Plan) evaluation(b *builder) {
	d := p.decoder(p.Seqs, p.SeqLen)
	b.upload(p.letterOf(p.in.IDs))
	b.enter(0)
	s := d.Embed(b, p.in)
	b.leave(p.KeepWeights)
	for l := range p.Model.Layers {
		b.enter(1 + l)
		s, _ = d.Block(b, l, p.in, s)
		b.leave(false)
	}
	b.enter(d.HeadUnit())
	d.HeadLoss(b, p.in, s, p.loss, false)
	b.download(p.loss)
}

func (p *Plan) decoding(which, seqLen int) func(*builder) {
	return func(b *builder) {
		d := p.decoder(p.Decoding.Seqs, seqLen)
		b.upload(p.letterOf(p.decode[which].IDs))
		d.Decode(b, p.decode[which], p.caches, p.Decoding.CacheLen, p.logits, func(u int) {
			b.leave(false)
			b.enter(u)
		})
		b.download(p.logits)
	}
}

// norm emits the squared norm of each unit's gradient, a finest shard at a
// time, so that its sum is the same under every strategy. Gaps and tail are
// zero.
func (p *Plan) norm(b *builder) {
	for i, u := range p.Units {
		b.unit = i
		n := u.Len / p.Mesh.Size()
		for at := p.held(u.Len, p.rows.end).from; at < p.held(u.Len, p.rows.end).to; at += n {
			b.Emit("norm", &device.SumSquares{
				X: p.gradient(i, extent{at, at + n}), Parts: b.Value("norm.parts", device.F64, device.NormBlocks(n)),
				Out: p.norms.Slice(int64(at/n*len(p.Units)+i), 1), N: n,
			})
		}
	}
	b.download(p.ownNorms())
}

// ownNorms returns where the squared norms of this rank's finest shards are.
func (p *Plan) ownNorms() device.Tensor {
	own, units := p.held(p.Mesh.Size(), p.rows.end), len(p.Units)
	return p.norms.Slice(int64(own.from*units), int64(own.len()*units))
}

// update emits AdamW over what of each unit's decayed range this rank holds,
// and over what of the rest. What is offloaded is fetched as a unit begins and
// stored behind it.
func (p *Plan) update(b *builder) {
	o := p.Optimizer
	b.upload(p.hyper)
	for i, u := range p.Units {
		b.unit = i
		if p.Offload.optimizer() || p.Offload.parameters() {
			b.segments = append(b.segments, segment{})
		}
		own := p.held(u.Len, p.rows.end)
		var state [3]device.Tensor
		for k, buf := range []device.Buf{p.master[i], p.m[i], p.v[i]} {
			state[k] = b.fetched(p.flat(buf, device.F32, 0, own.len()))
		}
		copies := b.copies()
		for _, r := range []struct {
			extent
			decay float64
		}{{extent{own.from, min(own.to, u.Decayed)}, o.WeightDecay}, {extent{max(own.from, u.Decayed), own.to}, 0}} {
			n, at := r.len(), int64(r.from-own.from)
			if n <= 0 {
				continue
			}
			op := &device.AdamW{
				Param: state[0].Slice(at, int64(n)), Grad: p.gradient(i, r.extent),
				M: state[1].Slice(at, int64(n)), V: state[2].Slice(at, int64(n)), Hyper: p.hyper, N: n,
				Beta1: float32(o.Beta1), Beta2: float32(o.Beta2), Eps: float32(o.Eps), WeightDecay: float32(r.decay),
				Index: int64(r.from),
			}
			if p.Type == device.BF16 && p.copies[i] != 0 {
				op.Copy, op.Stochastic = copies.Slice(int64(r.from-p.held(u.Len, p.rows.params).from), int64(n)), o.Stochastic
				op.Seed = roundingSeed(p.Seed, u.Name)
			}
			b.Emit("update", op)
		}
		if p.copies[i] != 0 {
			b.align(copies, state[0], p.Type == device.F32)
		}
		for k, buf := range []device.Buf{p.master[i], p.m[i], p.v[i]} {
			b.stored(p.flat(buf, device.F32, 0, own.len()), state[k])
		}
	}
}

// refresh emits what brings the weights that compute in line with master
// weights that were set from outside.
func (p *Plan) refresh(b *builder) {
	for i, u := range p.Units {
		if b.unit = i; p.copies[i] != 0 {
			b.align(b.copies(), p.flat(p.master[i], device.F32, 0, p.held(u.Len, p.rows.end).len()), true)
		}
	}
}

// reduce emits what of the gradients is left to add up over ranks.
func (p *Plan) reduce(b *builder) {
	for i, u := range p.Units {
		b.unit = i
		b.sum(p.flat(p.grad[i], device.F32, 0, p.held(u.Len, p.rows.between).len()), p.held(u.Len, p.rows.between).from, p.rows.between, p.rows.end, device.Tensor{})
	}
}

// roundingSeed returns the seed of a unit's stochastic rounding, whose random
// numbers are a function of it, the step and the place in the unit.
func roundingSeed(seed uint64, unit string) uint64 {
	h := fnv.New64a()
	h.Write([]byte("rounding " + unit))
	return device.RandomKey(seed, h.Sum64())
}

// flat returns n elements of a flat vector from element off on.
func (p *Plan) flat(buf device.Buf, typ device.DType, off, n int) device.Tensor {
	return device.Tensor{Buf: buf, Off: int64(off) * typ.Size(), Type: typ, Len: int64(n)}
}

// gradient returns a range of a unit's gradient as it lasts.
func (p *Plan) gradient(unit int, e extent) device.Tensor {
	return p.flat(p.grad[unit], device.F32, e.from-p.held(p.Units[unit].Len, p.rows.between).from, e.len())
}

// copied returns a range of a unit's computing weights as they last.
func (p *Plan) copied(unit int, e extent) device.Tensor {
	return p.flat(p.copies[unit], p.Type, e.from-p.held(p.Units[unit].Len, p.rows.params).from, e.len())
}

// lasting returns the buffer of a unit's whole computing weights, 0 where they
// have to be gathered, or fetched.
func (p *Plan) lasting(unit int) device.Buf {
	switch {
	case p.rows.params.has(sharded):
		return 0
	case p.offloaded(p.shard(unit)):
		return 0
	case p.copies[unit] != 0:
		return p.copies[unit]
	}
	return p.master[unit]
}
