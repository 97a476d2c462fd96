package fsdp

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// Flight is a rank's flight recorder: it remembers the last operations of each
// stream by their names in the plan, so that after a failure one can see where
// the rank stood. It is always kept: to remember an operation allocates nothing
// and takes a fraction of a microsecond. Its methods may be called by any
// goroutine at any time, also while streams run.
type Flight struct {
	plan  atomic.Pointer[Plan] // nil before there is an engine
	steps atomic.Int64         // optimizer steps done
	began time.Time
	rings [rings]ring

	// The collectives launched and bound so far, of gathers and of reductions,
	// by axis. They are the engine's goroutine's own.
	launched, bound [2][2]int64
}

// The rings beside those of the streams.
const (
	bindings = int(streams) + iota // the collectives that ranks bind before the first step
	replays                        // what Locate runs again
	rings
)

// NewFlight returns an empty recorder, for one engine.
func NewFlight() *Flight {
	f := &Flight{began: time.Now()}
	for i := range f.rings {
		f.rings[i].epoch = f.began
	}
	return f
}

// FlightStream is what is remembered of a stream.
type FlightStream struct {
	Name     string // "compute", "gather", "reduce"; "set-up": collectives being bound; "replay": the search for a NaN
	Launched int64  // operations so far
	Queued   int64  // of them, those that have not begun
	Ops      []FlightOp
}

// FlightOp is an operation of a plan as it was run once. A collective is one
// operation, though a stream carries it out in several parts.
type FlightOp struct {
	Number     int64  // on its stream, counted from 0
	Program    string // its name
	Step       int    // of the program, counted from 0
	Unit, Cut  string
	Operation  string // "MatMul", "all-gather of block 3 weights"
	Group      string // of a collective: "gather within"; else empty
	Collective int64  // of a collective: its number in the group, counted from 0 and alike on all ranks
	Bytes      int64  // that it must at least move
	State      string
	WaitsFor   string // of one that waits: the streams that it comes after
	Part       int    // that has begun, counted from 1; 0 before
	Parts      int
	Queued     time.Time
	Begun      time.Time // zero where it has not
	Ended      time.Time // zero where it has not
}

// The states of an operation.
const (
	FlightQueued   = "queued"
	FlightWaiting  = "waiting" // it is the next, and has not begun
	FlightUnderWay = "under way"
	FlightDone     = "done"
	FlightFailed   = "failed"
	FlightSkipped  = "skipped" // an earlier one failed
)

// How many operations Streams returns of a stream: those that ended last, and
// those that are next. The rest is counted.
const (
	flightEnded = 200
	flightNext  = 16
)

// Steps returns the optimizer steps that are done.
func (f *Flight) Steps() int { return int(f.steps.Load()) }

// Failed reports whether any operation has.
func (f *Flight) Failed() bool {
	for i := range f.rings {
		if f.rings[i].failed.Load() {
			return true
		}
	}
	return false
}

// Groups returns the ranks of this rank's group along each axis of the mesh that
// has several.
func (f *Flight) Groups() map[string][]int {
	groups := map[string][]int{}
	if p := f.plan.Load(); p != nil {
		for _, l := range p.Mesh.lines() {
			if slices.Contains(l.ranks, p.Rank) {
				groups[l.axis.String()] = l.ranks
			}
		}
	}
	return groups
}

// Streams returns what is remembered of each stream that has run anything, in the
// order of launches.
func (f *Flight) Streams() (all []FlightStream) {
	p := f.plan.Load()
	for i := range f.rings {
		slots, s := f.rings[i].copy()
		if s.Launched == 0 {
			continue
		}
		s.Name = ringName(i)
		for k, slot := range slots {
			op := f.describe(p, slot)
			op.Number = s.Launched - int64(len(slots)-k)
			s.Ops = append(s.Ops, op)
		}
		if over := len(s.Ops) - int(s.Queued); over < len(s.Ops) {
			if next := &s.Ops[over]; over == 0 || s.Ops[over-1].State != FlightUnderWay {
				next.State = FlightWaiting
				next.WaitsFor = waitsFor(slots[over])
			}
			s.Ops = s.Ops[:min(over+flightNext, len(s.Ops))]
		}
		all = append(all, s)
	}
	return all
}

// ringName is the name of what a ring remembers.
func ringName(i int) string {
	switch {
	case i < int(streams):
		return Stream(i).String()
	case i == replays:
		return "replay"
	}
	return "set-up"
}

func (f *Flight) describe(p *Plan, s flown) FlightOp {
	step := s.prog.Steps[s.step]
	op := FlightOp{
		Program: s.prog.Name, Step: s.step, Unit: p.Units[step.Unit].Name, Cut: step.Cut, Operation: device.Name(step.Op),
		Bytes: step.Op.Cost().Bytes, Part: s.part, Parts: s.parts, Queued: f.began.Add(s.queued),
	}
	if c, ok := step.Op.(collective.Op); ok {
		op.Operation, op.Collective = collectiveName(c), s.number
		op.Group = [2]string{"gather", "reduce"}[whichGroup(c)] + " " + step.Axis.String()
	}
	if s.begun > 0 {
		op.Begun = f.began.Add(s.begun)
	}
	if s.ended > 0 {
		op.Ended = f.began.Add(s.ended)
	}
	switch {
	case s.failed:
		op.State = FlightFailed
	case s.ended > 0 && s.begun == 0:
		op.State = FlightSkipped
	case s.ended > 0:
		op.State = FlightDone
	case s.begun > 0:
		op.State = FlightUnderWay
	default:
		op.State = FlightQueued
	}
	return op
}

// collectiveName is a collective's as in the errors of package collective.
func collectiveName(op collective.Op) string {
	switch op := op.(type) {
	case *collective.AllGather:
		return "all-gather of " + op.Name
	case *collective.ReduceScatter:
		return "reduce-scatter of " + op.Name
	case *collective.AllReduce:
		return "all-reduce of " + op.Name
	}
	return device.Name(op)
}

// whichGroup is by which of an axis's two groups a collective goes: 0 for what
// gathers, 1 for what reduces.
func whichGroup(op collective.Op) int {
	if _, gather := op.(*collective.AllGather); gather {
		return 0
	}
	return 1
}

// waitsFor names the other streams that an operation comes after.
func waitsFor(s flown) string {
	var names []string
	for _, w := range s.prog.Steps[s.step].Waits {
		names = append(names, s.prog.Steps[w].Stream.String())
	}
	return strings.Join(names, ", ")
}

// stream makes an engine's stream and follows it.
func (f *Flight) stream(dev device.Device, s Stream) device.Stream {
	q := dev.NewStream(s.String())
	f.rings[s].follow(q)
	return q
}

// replay follows a stream of Locate's caller.
func (f *Flight) replay(s device.Stream) {
	if r := &f.rings[replays]; r.stream != s {
		r.follow(s)
	}
}

// bind binds a collective, step i of a program, and remembers it as it does the
// launched ones: ranks wait for each other here, too.
func (f *Flight) bind(prog *Program, i int, op collective.Op, comm collective.Comm) ([]device.Op, error) {
	r, number := &f.rings[bindings], &f.bound[whichGroup(op)][prog.Steps[i].Axis]
	r.open()
	r.queue(prog, i, 1, *number)
	*number++
	r.Begin()
	ops, err := comm.Bind(op)
	r.End(err)
	return ops, err
}

// number returns where the number of a collective is counted; nil for what is
// none.
func (f *Flight) number(s Step) *int64 {
	if c, ok := s.Op.(collective.Op); ok {
		return &f.launched[whichGroup(c)][s.Axis]
	}
	return nil
}

// launch remembers that the first of a step's operations is about to be
// launched.
func (r *ring) launch(prog *Program, o *boundOp) {
	number := int64(0)
	if o.number != nil {
		number = *o.number
		*o.number++
	}
	r.queue(prog, o.step, o.parts, number)
}

// ring remembers the last operations of a stream, and observes it.
type ring struct {
	epoch  time.Time     // of all times
	stream device.Stream // nil where none is followed
	failed atomic.Bool   // an operation has

	mu       sync.Mutex
	slots    []flown // nil where nothing is remembered
	launched int64
	at       int64   // operations that have ended
	kept     []flown // all that end while a trace is taken; nil otherwise
}

// ringLen is more than what can be queued, so that whatever has not ended is
// there. A step is at least one command in the queue.
const ringLen = 2 * device.QueueLen

// flown is a slot of a ring.
type flown struct {
	prog                 *Program
	step                 int
	number               int64 // of a collective
	part, parts          int
	queued, begun, ended time.Duration // since the epoch; 0: not yet
	came                 time.Duration // when the first of several parts ended; known only in a trace
	failed               bool
}

// follow begins to remember what a stream does, where it can be observed.
func (r *ring) follow(s device.Stream) {
	r.stream = s
	if o, ok := s.(device.Observable); ok {
		r.open()
		o.Observe(r)
	}
}

func (r *ring) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slots == nil {
		r.slots = make([]flown, ringLen)
	}
}

func (r *ring) queue(prog *Program, step, parts int, number int64) {
	if r.slots == nil {
		return
	}
	now := time.Since(r.epoch)
	r.mu.Lock()
	r.slots[r.launched%ringLen] = flown{prog: prog, step: step, parts: parts, number: number, queued: now}
	r.launched++
	r.mu.Unlock()
}

// Begin implements device.Observer.
func (r *ring) Begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.now(); s != nil {
		if s.part == 0 {
			s.begun = time.Since(r.epoch)
		}
		s.part++
	}
}

// End implements device.Observer.
func (r *ring) End(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.now(); s != nil {
		if err != nil {
			s.failed, s.ended = true, time.Since(r.epoch)
			r.failed.Store(true)
		}
		if r.kept != nil && s.part == 1 && s.parts > 1 {
			s.came = time.Since(r.epoch)
		}
		r.pass(s)
	}
}

// Skip implements device.Observer.
func (r *ring) Skip() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.now(); s != nil {
		s.part++
		r.pass(s)
	}
}

// now returns the operation that the stream is at; nil where it runs what no
// engine has launched.
func (r *ring) now() *flown {
	if r.at == r.launched {
		return nil
	}
	return &r.slots[r.at%ringLen]
}

// pass goes on behind an operation's last part.
func (r *ring) pass(s *flown) {
	if s.part == s.parts {
		if s.ended == 0 {
			s.ended = time.Since(r.epoch)
		}
		if r.kept != nil {
			r.kept = append(r.kept, *s)
		}
		r.at++
	}
}

// copy returns the operations that ended last and all after them.
func (r *ring) copy() (slots []flown, s FlightStream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := max(r.at-flightEnded, 0); n < r.launched; n++ {
		slots = append(slots, r.slots[n%ringLen])
	}
	s.Launched, s.Queued = r.launched, r.launched-r.at
	if r.at < r.launched && r.slots[r.at%ringLen].begun > 0 {
		s.Queued-- // it is under way
	}
	return slots, s
}
