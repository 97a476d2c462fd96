package fsdp

import (
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// Engine executes a Plan on a device. Of the device's memory it reads and writes
// that of kind Pinned alone. It takes all its memory when made: MicroBatch, Agree,
// Update, Evaluate and Extend allocate nothing. One goroutine at a time may use it,
// and each method returns when its work is done.
type Engine struct {
	Plan   *Plan
	dev    device.Device
	queues [streams]device.Stream         // nil where the plan has nothing for them
	arenas [device.Memories]device.Buffer // of no size where the plan has nothing in them
	comms  Comms
	bound  map[*Program]*program
	flight *Flight

	passing  bool // gradients that do not last are there
	gathered int  // the unit that Whole was called for

	logits []float32 // [Decoding.Seqs,Vocab]: of each sequence's newest token
	cached []int     // rows in each sequence's caches
}

// Comms are a rank's ends of its groups along the mesh's axes, nil along an axis
// of one rank: one group for gathers, another for reductions, which may be under
// way at once.
type Comms struct{ Gather, Reduce [2]collective.Comm }

// program is a Program whose operations have addresses. A collective is several.
type program struct {
	plan *Program
	ops  []boundOp
}

// boundOp is an operation with what its stream does before and after it.
type boundOp struct {
	device.Op
	step   int // that it is of
	queue  device.Stream
	waits  []device.Event
	record device.Event // nil where nobody waits for it
	parts  int          // of the first of a step's operations: how many they are
	number *int64       // of the first of a collective's: where it is counted
	list   []device.Op  // of the last of several that are launched at once: all of them
	joined bool         // it is launched with a later one
}

// Batch is one micro-batch, rows of all its sequences one after the other.
type Batch struct {
	IDs, Targets, Start, Pos []int32
}

// NewEngine allocates the plan's arenas on dev and binds the plan to it. comms
// are this rank's ends of the groups across and within, nil along an axis of one
// rank; all ranks make their engines at once, since binding a collective waits
// for the others. Weights are zero until WriteOwned sets them and Refresh is
// called.
func NewEngine(p *Plan, dev device.Device, comms Comms) (*Engine, error) {
	return NewFlight().NewEngine(p, dev, comms)
}

// NewEngine is the function NewEngine with this recorder from the first
// operation on.
func (f *Flight) NewEngine(p *Plan, dev device.Device, comms Comms) (e *Engine, err error) {
	for _, axis := range []Axis{Across, Within} {
		for _, c := range []collective.Comm{comms.Gather[axis], comms.Reduce[axis]} {
			if n := p.Mesh.Along(axis); n > 1 && (c == nil || c.Size() != n || c.Rank() != p.Mesh.At(p.Rank, axis)) {
				return nil, fmt.Errorf("fsdp: rank %d of a mesh of %v has no fitting end of the group %v", p.Rank, p.Mesh, axis)
			}
		}
	}
	if d, ok := dev.(limited); ok {
		if err := p.Limits(d.Runs); err != nil {
			return nil, fmt.Errorf("device %s cannot run the plan: %w", dev.Info().Name, err)
		}
	}
	f.plan.Store(p)
	made := &Engine{Plan: p, dev: dev, comms: comms, bound: map[*Program]*program{}, flight: f}
	defer func() {
		if err != nil {
			err = errors.Join(err, made.free())
		}
	}()
	e = made
	for m, a := range p.Arenas {
		if a.Bytes == 0 {
			continue
		}
		if e.arenas[m], err = dev.Alloc(a.Bytes, device.Memory(m)); err != nil {
			return nil, fmt.Errorf("fsdp: the plan's %d bytes of %v memory: %w", a.Bytes, device.Memory(m), err)
		}
	}
	if pinned := e.arenas[device.Pinned]; len(pinned.Host) == 0 || &pinned.Host[0] != (*byte)(pinned.In(device.I32, 0, 1).Pointer()) {
		return nil, fmt.Errorf("fsdp: device %s does not show its %v memory to the host at the device's address", dev.Info().Name, device.Pinned)
	}
	e.queues[Computing] = f.stream(dev, Computing)
	// The plans are compared before anything else is bound: ranks with different
	// ones would wait for each other in vain.
	if p.Mesh.Size() > 1 {
		if err := e.bind(&p.Agree); err != nil {
			return nil, err
		}
		if err := e.compare(); err != nil {
			return nil, err
		}
	}
	for _, prog := range p.Programs() {
		if e.bound[prog] != nil {
			continue
		}
		if err := e.bind(prog); err != nil {
			return nil, err
		}
	}
	cos, sin := p.Model.RopeTables(int(p.in.Cos.Len) * 2 / p.Model.HeadSize)
	if err := errors.Join(e.write(p.in.Cos, cos), e.write(p.in.Sin, sin)); err != nil {
		return nil, fmt.Errorf("fsdp: writing rotary tables: %w", err)
	}
	if n := p.Decoding.Seqs; n > 0 {
		e.logits, e.cached = make([]float32, n*p.Model.Vocab), make([]int, n)
	}
	return e, nil
}

// bind gives a program's operations their addresses.
func (e *Engine) bind(prog *Program) error {
	b := &program{plan: prog}
	events := make([]device.Event, len(prog.Steps))
	for _, s := range prog.Steps {
		for _, w := range s.Waits {
			if events[w] == nil {
				events[w] = e.dev.NewEvent()
			}
		}
	}
	for i, s := range prog.Steps {
		if e.queues[s.Stream] == nil {
			e.queues[s.Stream] = e.flight.stream(e.dev, s.Stream)
		}
		op := device.Clone(s.Op)
		for _, o := range device.Operands(op) {
			*o.T = e.at(*o.T)
		}
		ops := []device.Op{op}
		if c, ok := op.(collective.Op); ok {
			var err error
			if ops, err = e.flight.bind(prog, i, c, e.comm(c, s.Axis)); err != nil {
				return fmt.Errorf("fsdp: program %s: %w", prog.Name, err)
			}
		}
		for k, op := range ops {
			o := boundOp{Op: op, step: i, queue: e.queues[s.Stream]}
			if k == 0 {
				o.parts, o.number = len(ops), e.flight.number(s)
				for _, w := range s.Waits {
					o.waits = append(o.waits, events[w])
				}
			}
			if k == len(ops)-1 {
				o.record = events[i]
			}
			b.ops = append(b.ops, o)
		}
	}
	b.list(e.queues[Computing])
	e.bound[prog] = b
	return nil
}

// comm returns the end of the group that carries a collective out.
func (e *Engine) comm(op collective.Op, a Axis) collective.Comm {
	if _, gather := op.(*collective.AllGather); gather {
		return e.comms.Gather[a]
	}
	return e.comms.Reduce[a]
}

// Close gives the memory back. The device stays open.
func (e *Engine) Close() error {
	return errors.Join(e.sync(), e.free())
}

func (e *Engine) free() error {
	var errs []error
	for _, a := range e.arenas {
		if a.Size > 0 {
			errs = append(errs, e.dev.Free(a))
		}
	}
	return errors.Join(errs...)
}

// at returns a plan's tensor where it lies in its arena.
func (e *Engine) at(t device.Tensor) device.Tensor {
	b := e.Plan.Buffers[t.Buf-1]
	t.Addr = e.arenas[b.In].Addr + device.Addr(b.Off+t.Off)
	return t
}

// mail returns the place in the mailbox of what operations find at t; the host
// sees it.
func (e *Engine) mail(t device.Tensor) device.Tensor { return e.at(e.Plan.mail(t)) }

// Refresh brings the weights that compute in line with the master weights.
func (e *Engine) Refresh() error { return e.run(&e.Plan.Refresh) }

// run executes a program and waits for it.
func (e *Engine) run(p *Program) error {
	b := e.bound[p]
	if b == nil {
		return nil // nothing to do on this mesh
	}
	e.pass(p)
	for i := range b.ops {
		o := &b.ops[i]
		for _, w := range o.waits {
			o.queue.Wait(w)
		}
		if o.parts > 0 {
			e.flight.rings[b.plan.Steps[o.step].Stream].launch(b.plan, o)
		}
		o.launch()
		if o.record != nil {
			o.queue.Record(o.record)
		}
	}
	if err := e.sync(); err != nil {
		return fmt.Errorf("%s: %w", e.where(p, err), err)
	}
	return nil
}

// where says in which program an error is, and at which unit and cut point where
// the device names the operation.
func (e *Engine) where(p *Program, err error) string {
	var named interface{ Operation() device.Op }
	if errors.As(err, &named) && named.Operation() != nil {
		if place := e.Describe(named.Operation(), ""); place != "" {
			return place
		}
	}
	return p.Name
}

// pass follows gradients that do not last from program to program. An update that
// does not find them is the caller's mistake.
func (e *Engine) pass(p *Program) {
	if e.Plan.accumulates() {
		return
	}
	switch p {
	case &e.Plan.Micro[0]:
		e.passing = true
	case &e.Plan.Reduce, &e.Plan.Norm, &e.Plan.Agree:
	case &e.Plan.Update:
		if !e.passing {
			panic("fsdp: an update whose gradients are gone: it comes behind its micro-batch, and nothing but Agree between them")
		}
		e.passing = false
	default:
		e.passing = false
	}
}

// sync waits for all streams. Of several that failed the computation's error
// comes first: the others may have waited for it.
func (e *Engine) sync() error {
	var errs []error
	for _, q := range e.queues {
		if q != nil {
			if err := q.Sync(); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// feed puts a batch into the mailbox.
func (e *Engine) feed(b Batch, scale float32) {
	in := e.Plan.in
	for _, x := range []struct {
		t    device.Tensor
		host []int32
	}{{in.IDs, b.IDs}, {in.Targets, b.Targets}, {in.Start, b.Start}, {in.Pos, b.Pos}} {
		if int64(len(x.host)) != x.t.Len {
			panic(fmt.Sprintf("fsdp: a batch of %d rows for a plan of %d", len(x.host), x.t.Len))
		}
		copy(e.mail(x.t).I32(), x.host)
	}
	e.mail(in.Scale).F32()[0] = scale
}

// MicroBatch runs forward and backward. The gradients become those of this
// micro-batch (first) or have them added. scale is 1/(valid targets of the
// whole step). Losses holds each row's loss afterwards, unscaled.
func (e *Engine) MicroBatch(b Batch, scale float32, first bool) error {
	e.feed(b, scale)
	return e.run(e.micro(first))
}

func (e *Engine) micro(first bool) *Program {
	switch {
	case first:
		return &e.Plan.Micro[0]
	case !e.Plan.accumulates():
		panic("fsdp: a second micro-batch, for a plan whose steps have one")
	}
	return &e.Plan.Micro[1]
}

// Evaluate runs the forward alone; Losses holds each row's loss afterwards.
func (e *Engine) Evaluate(b Batch) error {
	e.feed(b, 0)
	return e.run(&e.Plan.Evaluation)
}

// Losses returns the loss of each row of the last batch in nats, 0 where the
// target is masked. It is overwritten by the next batch.
func (e *Engine) Losses() []float32 { return e.mail(e.Plan.loss).F32() }

// Agreement is what all ranks know alike of a step before they use it.
type Agreement struct {
	Loss        float64 // summed over ranks, in their order
	SquaredNorm float64 // of the whole gradient; not finite where any of it is not
	Stop        bool    // a rank wishes to stop
}

// Agree adds up what is left of the gradients to add, takes their squared norm
// and tells the other ranks of it, of this rank's summed loss and of its wish to
// stop. The norm is that of one rank under every strategy: float64 sums as
// device.SumSquares defines them, over each finest shard of each unit, units in
// order, then ranks in order.
func (e *Engine) Agree(loss float64, stop bool) (Agreement, error) {
	for _, prog := range []*Program{&e.Plan.Reduce, &e.Plan.Norm} {
		if err := e.run(prog); err != nil {
			return Agreement{}, err
		}
	}
	p, norms := e.Plan, e.mail(e.Plan.norms)
	return e.agree(loss, stop, func(rank int) (sum float64) {
		units := len(p.Units)
		for _, norm := range norms.F64()[p.finest(rank)*units:][:units] {
			sum += norm
		}
		return sum
	})
}

// Total returns the sum of a number of each rank, in the order of ranks.
func (e *Engine) Total(x float64) (float64, error) {
	a, err := e.agree(x, false, func(int) float64 { return 0 })
	return a.Loss, err
}

// agree exchanges numbers: for each rank the squared norm of its finest shard,
// which the first that holds it tells, then each rank's loss, then the wishes
// to stop. Only one rank gives a number, the others zero, so sums are exact.
func (e *Engine) agree(loss float64, stop bool, norm func(rank int) float64) (a Agreement, err error) {
	p, n := e.Plan, e.Plan.Mesh.Size()
	if n == 1 {
		return Agreement{Loss: loss, SquaredNorm: norm(0), Stop: stop}, nil
	}
	x := e.mail(p.agreed).F64()
	clear(x)
	for r := range n {
		if f := p.finest(r); p.first(p.rows.end) && p.holds(f) {
			x[r] = norm(r)
		}
	}
	x[n+p.Rank] = loss
	if stop {
		x[2*n] = 1
	}
	if err := e.run(&p.Agree); err != nil {
		return a, err
	}
	for r := range n {
		a.SquaredNorm += x[r]
		a.Loss += x[n+r]
	}
	a.Stop = x[2*n] > 0
	return a, nil
}

// Hyper is what the optimizer is told each step; device.AdamW says how it uses
// them.
type Hyper struct {
	LR, GradScale float64
	Step          int // counted from 1
}

// Update runs AdamW over all parameters.
func (e *Engine) Update(h Hyper) error {
	x := e.mail(e.Plan.hyper).F32()
	// The corrections are those of the decays as the device has them: in fp32,
	// 1−0.999 is off by 1e-5, and a correction of 0.999 would not fit.
	beta1, beta2 := float64(float32(e.Plan.Optimizer.Beta1)), float64(float32(e.Plan.Optimizer.Beta2))
	x[device.HyperLR] = float32(h.LR)
	x[device.HyperGradScale] = float32(h.GradScale)
	x[device.HyperBias1] = float32(1 / (1 - math.Pow(beta1, float64(h.Step))))
	x[device.HyperBias2] = float32(1 / math.Sqrt(1-math.Pow(beta2, float64(h.Step))))
	x[device.HyperStep] = float32(h.Step)
	if err := e.run(&e.Plan.Update); err != nil {
		return err
	}
	e.flight.steps.Store(int64(h.Step))
	return nil
}

// Locate runs a micro-batch again on a stream that can tell what it sees, such
// as one of device.NaNFinder, and returns what the stream reports. Gradients
// are spoilt.
func (e *Engine) Locate(b Batch, scale float32, first bool, stream device.Stream) error {
	e.feed(b, scale)
	prog := e.micro(first)
	e.flight.replay(stream)
	for i := range e.bound[prog].ops {
		o := &e.bound[prog].ops[i]
		if o.parts > 0 {
			e.flight.rings[replays].launch(prog, o)
		}
		stream.Launch(o.Op)
	}
	if err := stream.Sync(); err != nil {
		return fmt.Errorf("%s: %w", prog.Name, err)
	}
	return nil
}

// Describe names an operand of a bound program's operation by program, unit, cut
// point and buffer, and returns "" where the operation is none of the engine's.
func (e *Engine) Describe(op device.Op, operand string) string {
	for _, b := range e.bound {
		for _, o := range b.ops {
			if o.Op != op {
				continue
			}
			s := b.plan.Steps[o.step]
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
