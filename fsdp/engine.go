package fsdp

import (
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/device"
)

// Engine executes a Plan on a device whose memory the host can see. It takes
// all its memory when made: MicroBatch, SquaredNorm, Update, Evaluate and Extend
// allocate nothing. One goroutine at a time may use it, and each method returns
// when its work is done.
type Engine struct {
	Plan   *Plan
	dev    device.Device
	stream device.Stream
	arena  device.Buffer
	bound  map[*Program]*program

	logits []float32 // [Decoding.Seqs,Vocab]: of each sequence's newest token
	cached []int     // rows in each sequence's caches
}

// program is a Program whose operations have addresses.
type program struct {
	plan *Program
	ops  []device.Op
}

// Batch is one micro-batch, rows of all its sequences one after the other.
type Batch struct {
	IDs, Targets, Start, Pos []int32
}

// NewEngine allocates the plan's arena on dev and binds the plan to it. Weights
// are zero until Param's slices are filled and Refresh is called.
func NewEngine(p *Plan, dev device.Device) (*Engine, error) {
	arena, err := dev.Alloc(p.Arena)
	if err != nil {
		return nil, fmt.Errorf("fsdp: the plan's %d bytes of memory: %w", p.Arena, err)
	}
	if arena.Host == nil {
		return nil, errors.Join(fmt.Errorf("fsdp: device %s keeps its memory from the host", dev.Info().Name), dev.Free(arena))
	}
	e := &Engine{Plan: p, dev: dev, stream: dev.NewStream("compute"), arena: arena, bound: map[*Program]*program{}}
	for _, prog := range p.Programs() {
		b := &program{plan: prog}
		for _, s := range prog.Steps {
			op := device.Clone(s.Op)
			for _, o := range device.Operands(op) {
				*o.T = e.at(*o.T)
			}
			b.ops = append(b.ops, op)
		}
		e.bound[prog] = b
	}
	cos, sin := p.Model.RopeTables(int(p.in.Cos.Len) * 2 / p.Model.HeadSize)
	copy(e.at(p.in.Cos).F32(), cos)
	copy(e.at(p.in.Sin).F32(), sin)
	if n := p.Decoding.Seqs; n > 0 {
		e.logits, e.cached = make([]float32, n*p.Model.Vocab), make([]int, n)
	}
	return e, nil
}

// Close gives the memory back. The device stays open.
func (e *Engine) Close() error {
	return errors.Join(e.stream.Sync(), e.dev.Free(e.arena))
}

// at returns a plan's tensor where it lies in the arena.
func (e *Engine) at(t device.Tensor) device.Tensor {
	t.Addr = e.arena.Addr + device.Addr(e.Plan.Buffers[t.Buf-1].Off+t.Off)
	return t
}

// Param returns a parameter's master weights in place. After writing them call
// Refresh.
func (e *Engine) Param(name string) []float32 { return e.slot(name, e.Plan.master).F32() }

// Grad returns a parameter's gradient in place.
func (e *Engine) Grad(name string) []float32 { return e.slot(name, e.Plan.grad).F32() }

func (e *Engine) slot(name string, units []device.Buf) device.Tensor {
	s := e.Plan.slot(name)
	return e.at(e.Plan.flat(units[s.Unit], device.F32, s.Off, s.Len()))
}

// Refresh brings the weights that compute in line with the master weights.
func (e *Engine) Refresh() error {
	p := e.Plan
	if p.Type == device.F32 {
		return nil
	}
	for i, u := range p.Units {
		e.stream.Launch(&device.Cast{Src: e.at(p.flat(p.master[i], device.F32, 0, u.Len)), Dst: e.at(p.flat(p.weight[i], device.BF16, 0, u.Len)), N: u.Len})
	}
	return e.stream.Sync()
}

// run executes a program on stream and waits for it.
func (e *Engine) run(p *Program, stream device.Stream) error {
	for _, op := range e.bound[p].ops {
		stream.Launch(op)
	}
	if err := stream.Sync(); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// feed writes a batch to where the programs read it.
func (e *Engine) feed(b Batch, scale float32) {
	in := e.Plan.in
	for _, x := range []struct {
		t    device.Tensor
		host []int32
	}{{in.IDs, b.IDs}, {in.Targets, b.Targets}, {in.Start, b.Start}, {in.Pos, b.Pos}} {
		if int64(len(x.host)) != x.t.Len {
			panic(fmt.Sprintf("fsdp: a batch of %d rows for a plan of %d", len(x.host), x.t.Len))
		}
		copy(e.at(x.t).I32(), x.host)
	}
	e.at(in.Scale).F32()[0] = scale
}

// MicroBatch runs forward and backward. The gradients become those of this
// micro-batch (first) or have them added. scale is 1/(valid targets of the
// whole step). Losses holds each row's loss afterwards, unscaled.
func (e *Engine) MicroBatch(b Batch, scale float32, first bool) error {
	e.feed(b, scale)
	return e.run(e.micro(first), e.stream)
}

func (e *Engine) micro(first bool) *Program {
	if first {
		return &e.Plan.Micro[0]
	}
	return &e.Plan.Micro[1]
}

// Evaluate runs the forward alone; Losses holds each row's loss afterwards.
func (e *Engine) Evaluate(b Batch) error {
	e.feed(b, 0)
	return e.run(&e.Plan.Evaluation, e.stream)
}

// Losses returns the loss of each row of the last batch in nats, 0 where the
// target is masked. It is overwritten by the next batch.
func (e *Engine) Losses() []float32 { return e.at(e.Plan.loss).F32() }

// SquaredNorm returns the gradient's squared norm over all units: float64 sums
// as device.SumSquares defines them, units in order. It is not finite where
// any gradient is not.
func (e *Engine) SquaredNorm() (float64, error) {
	if err := e.run(&e.Plan.Norm, e.stream); err != nil {
		return 0, err
	}
	var sum float64
	for _, x := range e.at(e.Plan.norms).F64() {
		sum += x
	}
	return sum, nil
}

// Hyper is what the optimizer is told each step; device.AdamW says how it uses
// them.
type Hyper struct {
	LR, GradScale float64
	Step          int // counted from 1
}

// Update runs AdamW over all parameters.
func (e *Engine) Update(h Hyper) error {
	x := e.at(e.Plan.hyper).F32()
	// The corrections are those of the decays as the device has them: in fp32,
	// 1−0.999 is off by 1e-5, and a correction of 0.999 would not fit.
	beta1, beta2 := float64(float32(e.Plan.Optimizer.Beta1)), float64(float32(e.Plan.Optimizer.Beta2))
	x[device.HyperLR] = float32(h.LR)
	x[device.HyperGradScale] = float32(h.GradScale)
	x[device.HyperBias1] = float32(1 / (1 - math.Pow(beta1, float64(h.Step))))
	x[device.HyperBias2] = float32(1 / math.Sqrt(1-math.Pow(beta2, float64(h.Step))))
	x[device.HyperStep] = float32(h.Step)
	return e.run(&e.Plan.Update, e.stream)
}

// Locate runs a micro-batch again on a stream that can tell what it sees, such
// as one of device.NaNFinder, and returns what the stream reports. Gradients
// are spoilt.
func (e *Engine) Locate(b Batch, scale float32, first bool, stream device.Stream) error {
	e.feed(b, scale)
	return e.run(e.micro(first), stream)
}

// Describe names an operand of a bound program's operation by program, unit, cut
// point and buffer, and returns "" where the operation is none of the engine's.
func (e *Engine) Describe(op device.Op, operand string) string {
	for _, b := range e.bound {
		for i, o := range b.ops {
			if o != op {
				continue
			}
			s := b.plan.Steps[i]
			where := fmt.Sprintf("%s, %s, %s", b.plan.Name, e.Plan.Units[s.Unit].Name, s.Cut)
			for _, x := range device.Operands(s.Op) {
				if x.Name == operand {
					where += ", " + e.Plan.Buffers[x.T.Buf-1].Name
				}
			}
			return where
		}
	}
	return ""
}
