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
	written map[string]bool // gradients that this step has written to
	all     bool            // every gradient counts as written
}

// program collects what emit emits and places its activations.
func (p *Plan) program(name string, emit func(*builder)) Program {
	prog := Program{Name: name}
	first := len(p.Buffers)
	emit(&builder{plan: p, prog: &prog, written: map[string]bool{}})
	p.place(&prog, first)
	return prog
}

// Weight implements model.Emitter.
func (b *builder) Weight(param string) device.Tensor {
	s := b.plan.slot(param)
	return b.plan.flat(b.plan.weight[s.Unit], b.plan.Type, s.Off, s.Len())
}

// Grad implements model.Emitter.
func (b *builder) Grad(param string) (device.Tensor, bool) {
	s := b.plan.slot(param)
	acc := b.all || b.written[param]
	b.written[param] = true
	return b.plan.flat(b.plan.grad[s.Unit], device.F32, s.Off, s.Len()), acc
}

// Value implements model.Emitter.
func (b *builder) Value(name string, typ device.DType, n int) device.Tensor {
	t := device.Tensor{Type: typ, Len: int64(n)}
	t.Buf = b.plan.buffer(b.plan.Units[b.unit].Name+" "+name, Activations, t.Bytes())
	return t
}

// Emit implements model.Emitter. A wrong operation is this program's mistake.
func (b *builder) Emit(cut string, op device.Op) {
	if err := op.Check(); err != nil {
		panic(fmt.Sprintf("fsdp: %s, %s: %v", b.plan.Units[b.unit].Name, cut, err))
	}
	b.prog.Steps = append(b.prog.Steps, Step{Op: op, Unit: b.unit, Cut: cut})
}

func (p *Plan) decoder(seqs, seqLen int) *model.Decoder {
	return &model.Decoder{
		Config: p.Model, Type: p.Type, Seqs: seqs, SeqLen: seqLen,
		Positions: int(p.in.Cos.Len) * 2 / p.Model.HeadSize, HeadRows: p.headRows(),
	}
}

// micro emits forward and backward of a micro-batch.
func (p *Plan) micro(add bool) func(*builder) {
	return func(b *builder) {
		b.all = add
		d, acts := p.decoder(p.Seqs, p.SeqLen), make([]model.Acts, p.Model.Layers)
		s := d.Embed(b, p.in)
		for l := range acts {
			b.unit = 1 + l
			s, acts[l] = d.Block(b, l, p.in, s)
		}
		b.unit = d.HeadUnit()
		dh := d.HeadLoss(b, p.in, s, p.loss, true)
		for l := len(acts) - 1; l >= 0; l-- {
			b.unit = 1 + l
			a := acts[l]
			switch p.Recompute {
			case RecomputeSelective:
				a = d.RecomputeCheap(b, l, p.in, a)
			case RecomputeBlock:
				a = d.RecomputeBlock(b, l, p.in, a)
			}
			dh = d.BlockBackward(b, l, p.in, a, dh)
		}
		b.unit = 0
		d.EmbedBackward(b, p.in, dh)
	}
}

func (p *Plan) evaluation(b *builder) {
	d := p.decoder(p.Seqs, p.SeqLen)
	s := d.Embed(b, p.in)
	for l := range p.Model.Layers {
		b.unit = 1 + l
		s, _ = d.Block(b, l, p.in, s)
	}
	b.unit = d.HeadUnit()
	d.HeadLoss(b, p.in, s, p.loss, false)
}

func (p *Plan) decoding(which, seqLen int) func(*builder) {
	return func(b *builder) {
		d := p.decoder(p.Decoding.Seqs, seqLen)
		d.Decode(b, p.decode[which], p.caches, p.Decoding.CacheLen, p.logits, func(u int) { b.unit = u })
	}
}

// norm emits the squared norm of each unit's gradient. Gaps and tail are zero.
func (p *Plan) norm(b *builder) {
	for i, u := range p.Units {
		b.unit = i
		b.Emit("norm", &device.SumSquares{X: p.flat(p.grad[i], device.F32, 0, u.Len), Out: p.norms.Slice(int64(i), 1), N: u.Len})
	}
}

// update emits AdamW over the decayed range of each unit and over the rest.
func (p *Plan) update(b *builder) {
	o := p.Optimizer
	for i, u := range p.Units {
		b.unit = i
		for _, r := range []struct {
			from, to int
			decay    float64
		}{{0, u.Decayed, o.WeightDecay}, {u.Decayed, u.Len, 0}} {
			n := r.to - r.from
			if n == 0 {
				continue
			}
			op := &device.AdamW{
				Param: p.flat(p.master[i], device.F32, r.from, n), Grad: p.flat(p.grad[i], device.F32, r.from, n),
				M: p.flat(p.m[i], device.F32, r.from, n), V: p.flat(p.v[i], device.F32, r.from, n), Hyper: p.hyper, N: n,
				Beta1: float32(o.Beta1), Beta2: float32(o.Beta2), Eps: float32(o.Eps), WeightDecay: float32(r.decay),
				Index: int64(r.from),
			}
			if p.Type == device.BF16 {
				op.Copy, op.Stochastic = p.flat(p.weight[i], device.BF16, r.from, n), o.Stochastic
				op.Seed = roundingSeed(p.Seed, u.Name)
			}
			b.Emit("update", op)
		}
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
