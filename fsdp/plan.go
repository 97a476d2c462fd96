package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
)

// Kind groups buffers by what they are for.
type Kind string

// The kinds of buffers. Activations live within one program, gradients of a
// single micro-batch until their update; such share memory. All others keep what
// they hold.
const (
	Parameters  Kind = "parameters (master, f32)"
	ComputeCopy Kind = "parameters (compute)"
	Gradients   Kind = "gradients"
	Moments     Kind = "optimizer moments"
	Inputs      Kind = "batch"
	Tables      Kind = "rotary tables"
	Outputs     Kind = "losses, norms, logits"
	Caches      Kind = "key-value caches"
	Mailbox     Kind = "mailbox of host and device"
	Activations Kind = "activations"

	// Sharing is of no buffer, but of a row of Memory.
	Sharing Kind = "activations and gradients"
)

// Buffer is a piece of an arena.
type Buffer struct {
	Name  string
	Kind  Kind
	Bytes int64
	Lasts bool          // else it shares the arena's tail, where its life is placed
	In    device.Memory // whose arena
	Off   int64         // from the arena's start

	fields []field // of several things side by side
}

// Arena is a rank's memory of one kind. What lasts comes first; the tail, from
// Scratch on, is shared by all that does not.
type Arena struct{ Bytes, Scratch int64 }

// Step is one operation of a Program.
type Step struct {
	Op   device.Op
	Unit int    // index of the unit whose weights it uses
	Cut  string // the cut point: where in the unit
	Axis Axis   // of a collective
	// Stream is where it runs, in the order of the program's steps; Waits are
	// earlier steps of other streams that it has to come after.
	Stream Stream
	Waits  []int
}

// Program is a list of operations that run in order.
type Program struct {
	Name  string
	Steps []Step
}

// Plan is every buffer and every operation of a run's steps. It is made by
// NewPlan and never changed.
type Plan struct {
	Options
	Units   []Unit
	Buffers []Buffer // device.Buf b is Buffers[b-1]
	// Arenas hold the buffers, by kind of memory. Shared is what others read in a
	// collective; it is apart, since what processes share has a price.
	Arenas [device.Memories]Arena

	// Micro holds forward and backward of a micro-batch: [0] for a step's
	// first, which overwrites gradients, [1] for the others, which add, where
	// there are any.
	Micro      [2]Program
	Reduce     Program // what of the gradients is added up over ranks only at the step's end
	Norm       Program // squared norms of the gradients, by unit and finest shard
	Agree      Program // the small all-reduce of a step
	Update     Program // AdamW, and the weights that compute brought in line
	Refresh    Program // the weights that compute brought in line with the master weights
	Evaluation Program // forward and losses
	// Whole gathers a unit's master weights, by unit; empty where every rank
	// holds all of them.
	Whole []Program
	// Prefill and Decode generate; see model.Decoder.Decode.
	Prefill, Decode Program

	slots  map[string]Slot
	rows   strategy     // how things are spread on this mesh
	master []device.Buf // by unit, spread as rows.end; m and v alike
	copies []device.Buf // by unit, spread as rows.params: what computes, 0 where the master weights do
	grad   []device.Buf // by unit, spread as rows.between
	m, v   []device.Buf
	in     model.Inputs
	loss   device.Tensor         // [T] F32
	norms  device.Tensor         // [ranks,units] F64, finest shards in the order of their places
	agreed device.Tensor         // F64; see Engine.agree
	hyper  device.Tensor         // [HyperLen] F32
	decode [2]model.DecodeInputs // prefill, decode
	logits device.Tensor         // [Decoding.Seqs,Vocab] F32
	caches []model.Cache
	whole  []device.Buf // by unit: where Whole gathers to

	letters []letter // by their places in the mailbox
	mailed  int64    // bytes of the mailbox that they take
	mailbox device.Buf
	staging device.Tensor // F32, for what no program moves
}

// NewPlan plans what o asks for and verifies the result.
func NewPlan(o Options) (*Plan, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &Plan{Options: o, slots: map[string]Slot{}, rows: o.row()}
	for i, mu := range o.Model.Units() {
		u := layout(i, mu, o.Mesh.Size())
		p.Units = append(p.Units, u)
		for _, s := range u.Slots {
			p.slots[s.Name] = s
		}
	}
	p.state()
	p.inputs()
	p.pinned()
	if o.Train {
		p.Micro[0] = p.program("micro-batch (first)", p.micro(false))
		if o.accumulates() {
			p.Micro[1] = p.program("micro-batch", p.micro(true))
		}
		p.Reduce = p.program("reduce", p.reduce)
		p.Norm = p.program("norm", p.norm)
		p.Update = p.program("update", p.update)
	}
	if o.Mesh.Size() > 1 {
		p.Agree = p.program("agree", p.agree)
	}
	p.Refresh = p.program("refresh", p.refresh)
	for u := range p.Units {
		if p.rows.end.has(sharded) {
			p.Whole = append(p.Whole, p.program("whole "+p.Units[u].Name, p.gatherMaster(u)))
		}
	}
	if o.Eval {
		p.Evaluation = p.program("evaluation", p.evaluation)
	}
	if o.Decoding.Seqs > 0 {
		p.Prefill = p.program("prefill", p.decoding(0, o.Decoding.Prefill))
		p.Decode = p.program("decode", p.decoding(1, 1))
	}
	p.layOut()
	for _, prog := range p.Programs() {
		if err := p.verify(prog); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Programs returns those that the plan contains, those of a step first and in
// the order in which it runs them.
func (p *Plan) Programs() []*Program {
	var list []*Program
	for _, prog := range []*Program{&p.Micro[0], &p.Micro[1], &p.Reduce, &p.Norm, &p.Agree, &p.Update, &p.Refresh, &p.Evaluation, &p.Prefill, &p.Decode} {
		if len(prog.Steps) > 0 {
			list = append(list, prog)
		}
	}
	for u := range p.Whole {
		list = append(list, &p.Whole[u])
	}
	return list
}

// slot returns a parameter's place. A name that the model does not have is the
// caller's mistake.
func (p *Plan) slot(param string) Slot {
	s, ok := p.slots[param]
	if !ok {
		panic("fsdp: no parameter " + param)
	}
	return s
}

// buffer adds a buffer without a place.
func (p *Plan) buffer(name string, kind Kind, bytes int64) device.Buf {
	p.Buffers = append(p.Buffers, Buffer{Name: name, Kind: kind, Bytes: bytes})
	return device.Buf(len(p.Buffers))
}

// keep adds a buffer that lives as long as the plan.
func (p *Plan) keep(name string, kind Kind, typ device.DType, n int) device.Tensor {
	t := device.Tensor{Type: typ, Len: int64(n)}
	t.Buf = p.buffer(name, kind, t.Bytes())
	p.Buffers[t.Buf-1].Lasts = true
	return t
}

// state lays out what lasts from step to step.
func (p *Plan) state() {
	computes := p.rows.params != p.rows.end || p.Type != device.F32 && (!p.rows.params.has(sharded) || p.Optimizer.Stochastic)
	// Where only one of two is offloaded, or what is gathered is smaller than the
	// master weights, they are two buffers.
	if out := p.Offload; out.optimizer() != out.parameters() || p.Type != device.F32 && out.parameters() {
		computes = true
	}
	for _, u := range p.Units {
		p.master = append(p.master, p.offload(p.Offload.optimizer(), p.keep(u.Name+" weights", Parameters, device.F32, p.held(u.Len, p.rows.end).len())))
		var c device.Buf
		if computes {
			c = p.offload(p.Offload.parameters(), p.keep(u.Name+" computing weights", ComputeCopy, p.Type, p.held(u.Len, p.rows.params).len()))
		}
		p.copies = append(p.copies, c)
	}
	if !p.Train {
		return
	}
	for _, u := range p.Units {
		n := p.held(u.Len, p.rows.end).len()
		grad := p.keep(u.Name+" gradient", Gradients, device.F32, p.held(u.Len, p.rows.between).len()).Buf
		p.Buffers[grad-1].Lasts = p.accumulates()
		p.grad = append(p.grad, grad)
		p.m = append(p.m, p.offload(p.Offload.optimizer(), p.keep(u.Name+" first moment", Moments, device.F32, n)))
		p.v = append(p.v, p.offload(p.Offload.optimizer(), p.keep(u.Name+" second moment", Moments, device.F32, n)))
	}
}

// offload keeps t's buffer in the host's memory, if asked, and returns it.
func (p *Plan) offload(out bool, t device.Tensor) device.Buf {
	if out {
		p.Buffers[t.Buf-1].In = device.Pinned
	}
	return t.Buf
}

// offloaded reports whether t lies in the host's memory.
func (p *Plan) offloaded(t device.Tensor) bool { return p.Buffers[t.Buf-1].In == device.Pinned }

// inputs lays out what the host writes and reads, and the caches.
func (p *Plan) inputs() {
	c := p.Model
	alone := func(name string, kind Kind, typ device.DType, n int) device.Tensor {
		return p.exchange(name, kind, field{name: name, typ: typ, n: n})[0]
	}
	positions := 0
	if p.Train || p.Eval {
		rows := p.Seqs * p.SeqLen
		batch := p.exchange("batch", Inputs,
			field{name: "token ids", typ: device.I32, n: rows}, field{name: "targets", typ: device.I32, n: rows},
			field{name: "document starts", typ: device.I32, n: rows}, field{name: "positions", typ: device.I32, n: rows},
			field{name: "loss scale", typ: device.F32, n: 1})
		p.in = model.Inputs{IDs: batch[0], Targets: batch[1], Start: batch[2], Pos: batch[3], Scale: batch[4]}
		p.loss = alone("losses", Outputs, device.F32, rows)
		positions = p.SeqLen
	}
	if p.Train {
		p.norms = alone("squared norms", Outputs, device.F64, p.Mesh.Size()*len(p.Units))
		p.hyper = alone("learning rate and clip factor", Inputs, device.F32, device.HyperLen)
	}
	if n := p.Mesh.Size(); n > 1 {
		p.agreed = alone("agreement", Inputs, device.F64, agreeLen(n))
	}
	if d := p.Decoding; d.Seqs > 0 {
		positions = max(positions, d.CacheLen)
		for i, n := range []int{d.Prefill, 1} {
			in := p.exchange("new tokens", Inputs,
				field{name: "new token ids", typ: device.I32, n: d.Seqs * n}, field{name: "new positions", typ: device.I32, n: d.Seqs * n},
				field{name: "cached rows", typ: device.I32, n: d.Seqs}, field{name: "last rows", typ: device.I32, n: d.Seqs})
			p.decode[i] = model.DecodeInputs{IDs: in[0], Pos: in[1], Cached: in[2], Last: in[3]}
		}
		p.logits = alone("logits", Outputs, device.F32, d.Seqs*c.Vocab)
		n := d.Seqs * d.CacheLen * c.KVHeads * c.HeadSize
		for l := range c.Layers {
			p.caches = append(p.caches, model.Cache{
				K: p.keep(fmt.Sprintf("block %d key cache", l), Caches, p.Type, n),
				V: p.keep(fmt.Sprintf("block %d value cache", l), Caches, p.Type, n),
			})
		}
	}
	p.in.Cos = p.keep("cosines", Tables, device.F32, positions*c.HeadSize/2)
	p.in.Sin = p.keep("sines", Tables, device.F32, positions*c.HeadSize/2)
	for i := range p.decode {
		p.decode[i].Cos, p.decode[i].Sin = p.in.Cos, p.in.Sin
	}
}
