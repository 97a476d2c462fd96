package train

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
)

// The streams of a rank's part of a trace, by their numbers in it, in the order in
// which they are shown.
var traceStreams = []string{"steps", "host", "compute", "gather", "reduce", "set-up", "replay"}

// The streams of a trace that are none of the engine's.
const (
	traceSteps = iota
	traceHost
	traceCompute
)

// The kinds of events.
const (
	traceStep       = "step"
	tracePhase      = "phase"
	traceOperation  = "operation"
	traceCollective = "collective"
	traceWait       = "wait" // the stream that computes waits for another
)

// traceArgs are what is known of an operation, or of a wait before it.
type traceArgs struct {
	Step        int            `json:"step,omitempty"` // of the run; none between two
	Unit        string         `json:"unit,omitempty"`
	Cut         string         `json:"cut,omitempty"` // the place in the unit
	Program     string         `json:"program,omitempty"`
	ProgramStep int            `json:"program_step"`
	Bytes       int64          `json:"bytes,omitempty"`
	FLOPs       int64          `json:"flops,omitempty"`
	Group       string         `json:"group,omitempty"`          // of a collective
	Collective  *int64         `json:"collective,omitempty"`     // its number in the group, alike on all ranks
	Parts       int            `json:"parts,omitempty"`          // of a collective
	ForRanks    *record.Micros `json:"first_part_us,omitempty"`  // of a collective: until the first part had ended; in shared memory that is the wait for the other ranks
	Queued      *record.Micros `json:"launched_at_us,omitempty"` // by the host
	WaitedFor   string         `json:"waited_for,omitempty"`     // what it had to come after and was last
	Waited      *record.Micros `json:"waited_us,omitempty"`      // with nothing else to do
	Failed      bool           `json:"failed,omitempty"`
}

// part makes a rank's part of a trace.
type part struct {
	*record.Trace
	rank    int
	origin  time.Time
	steps   []span // that ended
	streams []fsdp.TracedStream
	flows   int64
}

// tracePart returns a rank's part of a trace, whose times count from the first
// step's begin.
func tracePart(rank, world int, steps, phases []span, streams []fsdp.TracedStream) *record.Trace {
	p := &part{Trace: &record.Trace{World: world}, rank: rank, origin: steps[0].begun, streams: streams}
	for _, s := range steps {
		if !s.end.IsZero() {
			p.steps = append(p.steps, s)
		}
	}
	p.names()
	for _, s := range p.steps {
		p.add(traceSteps, traceStep, fmt.Sprintf("step %d", s.step), s.begun, s.end, nil)
	}
	for _, s := range phases {
		p.add(traceHost, tracePhase, s.name, s.begun, s.end, nil)
	}
	for i := range streams {
		p.stream(&streams[i])
	}
	of := record.TraceRank{Rank: rank, Origin: p.origin, Steps: []record.TraceStep{}}
	for _, s := range p.steps {
		of.Steps = append(of.Steps, p.shares(s))
	}
	p.Ranks = []record.TraceRank{of}
	return p.Trace
}

// names says what the rank and its streams are called.
func (p *part) names() {
	meta := func(stream int, what, key string, value any) {
		args, _ := json.Marshal(map[string]any{key: value})
		p.Events = append(p.Events, record.TraceEvent{Name: what, Phase: record.TraceMeta, Rank: p.rank, Stream: stream, Args: args})
	}
	meta(0, "process_name", "name", fmt.Sprintf("rank %d", p.rank))
	meta(0, "process_sort_index", "sort_index", p.rank)
	for i, name := range traceStreams {
		used := i <= traceHost
		for _, s := range p.streams {
			used = used || s.Name == name
		}
		if used {
			meta(i, "thread_name", "name", name)
			meta(i, "thread_sort_index", "sort_index", i)
		}
	}
}

// at is a time of the trace.
func (p *part) at(t time.Time) record.Micros { return record.Micros(t.Sub(p.origin)) }

// add adds a complete event.
func (p *part) add(stream int, category, name string, begun, ended time.Time, args any) {
	at, end := p.at(begun), p.at(ended)
	d := end - at
	e := record.TraceEvent{Name: name, Category: category, Phase: record.TraceComplete, At: at, Duration: &d, Rank: p.rank, Stream: stream}
	if args != nil {
		e.Args, _ = json.Marshal(args) // which has nothing that could not be
	}
	p.Events = append(p.Events, e)
}

// stream adds a stream's operations, and before those of the computation the time
// for which it waited for another stream, with an arrow from there.
func (p *part) stream(s *fsdp.TracedStream) {
	tid := streamNumber(s.Name)
	free := p.origin // since when the stream had nothing to run
	for i := range s.Ops {
		op := &s.Ops[i]
		args, category := p.args(op), traceOperation
		if op.Group != "" {
			category = traceCollective
		}
		if dep, from, until := p.wait(op, free); dep != nil {
			of := dep.of(p.streams)
			waited := record.Micros(until.Sub(from))
			args.WaitedFor, args.Waited = traceName(of), &waited
			if tid == traceCompute {
				p.add(tid, traceWait, "wait for "+traceName(of), from, until, traceArgs{
					Step: args.Step, Unit: of.Unit, Program: of.Program, ProgramStep: of.Step,
				})
				p.arrow(dep, op, tid)
			}
		}
		p.add(tid, category, traceName(op), op.Begun, op.Ended, args)
		free = op.Ended
	}
}

func streamNumber(name string) int {
	for i, n := range traceStreams {
		if n == name {
			return i
		}
	}
	panic("train: no stream " + name + " in a trace")
}

// traceName is short enough to be read in a viewer.
func traceName(op *fsdp.TracedOp) string {
	if op.Group == "" {
		return op.Operation
	}
	return strings.Replace(op.Operation, " of ", " ", 1)
}

func (p *part) args(op *fsdp.TracedOp) traceArgs {
	a := traceArgs{
		Unit: op.Unit, Cut: op.Cut, Program: op.Program, ProgramStep: op.Step, Bytes: op.Bytes, FLOPs: op.FLOPs,
		Failed: op.State == fsdp.FlightFailed,
	}
	queued := p.at(op.Queued)
	a.Queued = &queued
	for _, s := range p.steps {
		if s.holds(op) {
			a.Step = s.step
		}
	}
	if op.Group != "" {
		a.Group, a.Collective, a.Parts = op.Group, &op.Collective, op.Parts
		if !op.Came.IsZero() {
			d := record.Micros(op.Came.Sub(op.Begun))
			a.ForRanks = &d
		}
	}
	return a
}

func (s span) holds(op *fsdp.TracedOp) bool {
	return !op.Begun.Before(s.begun) && !op.Ended.After(s.end)
}

// arrow draws one from what was waited for to what waited.
func (p *part) arrow(dep *dependency, op *fsdp.TracedOp, tid int) {
	p.flows++
	of := dep.of(p.streams)
	// From the last moment that is of the operation.
	from := max(p.at(of.Ended)-1, p.at(of.Begun))
	e := record.TraceEvent{Name: traceWait, Category: traceWait, Rank: p.rank, Flow: int64(p.rank)<<32 + p.flows}
	e.Phase, e.At, e.Stream = record.TraceFlowFrom, from, streamNumber(p.streams[dep.Stream].Name)
	p.Events = append(p.Events, e)
	e.Phase, e.At, e.Stream, e.Binds = record.TraceFlowTo, p.at(op.Begun), tid, "e"
	p.Events = append(p.Events, e)
}
