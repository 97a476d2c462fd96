package fsdp

import (
	"cmp"
	"slices"
	"time"
)

// keptAtFirst is the room for a stream's operations with which a trace begins.
// It grows where there are more.
const keptAtFirst = 4 * ringLen

// TracedStream is all that a stream ended while a trace was taken.
type TracedStream struct {
	Name string // as of FlightStream
	Ops  []TracedOp
}

// TracedOp is an operation that was run and has ended.
type TracedOp struct {
	FlightOp
	FLOPs int64
	// Came is, of a collective of several parts, when the first of them ended: in
	// memory that ranks share, that is when the last rank had come. Else it is zero.
	Came time.Time
	// After are the operations of other streams that this one had to come after,
	// and that ended while the trace was taken.
	After []TracedRef
}

// TracedRef is an operation by its place in what Traced returns.
type TracedRef struct{ Stream, Op int }

// Trace begins to keep every operation that ends, until Traced is called. What
// it takes is a hundred bytes an operation.
func (f *Flight) Trace() {
	for i := range f.rings {
		r := &f.rings[i]
		r.mu.Lock()
		r.kept = make([]flown, 0, keptAtFirst)
		r.mu.Unlock()
	}
}

// Traced ends a trace and returns, for each stream that ended anything in it, its
// operations in the order in which they ran. Those that were skipped because an
// earlier one failed are not among them.
func (f *Flight) Traced() (all []TracedStream) {
	p := f.plan.Load()
	for i := range f.rings {
		r := &f.rings[i]
		r.mu.Lock()
		kept, at := r.kept, r.at
		r.kept = nil
		r.mu.Unlock()
		s := TracedStream{Name: ringName(i)}
		for k, slot := range kept {
			if slot.begun == 0 {
				continue
			}
			op := TracedOp{FlightOp: f.describe(p, slot), FLOPs: slot.prog.Steps[slot.step].Op.Cost().FLOPs}
			op.Number = at - int64(len(kept)-k)
			if slot.came > 0 {
				op.Came = f.began.Add(slot.came)
			}
			s.Ops = append(s.Ops, op)
		}
		if len(s.Ops) > 0 {
			all = append(all, s)
		}
	}
	if p != nil {
		p.findWaits(all)
	}
	return all
}

// findWaits gives operations those that they came after. A program's steps are
// launched in order, so what a step waits for is the last launch of that step
// before its own.
func (p *Plan) findWaits(all []TracedStream) {
	type launch struct {
		TracedRef
		*TracedOp
	}
	var launches []launch
	for s := range all {
		if all[s].Name == ringName(replays) { // which waits for nothing
			continue
		}
		for i := range all[s].Ops {
			launches = append(launches, launch{TracedRef{s, i}, &all[s].Ops[i]})
		}
	}
	slices.SortStableFunc(launches, func(a, b launch) int {
		return cmp.Or(a.Queued.Compare(b.Queued), cmp.Compare(a.Step, b.Step))
	})
	type place struct {
		program string
		step    int
	}
	programs, last := map[string]*Program{}, map[place]TracedRef{}
	for _, prog := range p.Programs() {
		programs[prog.Name] = prog
	}
	for _, l := range launches {
		prog := programs[l.Program]
		if prog == nil {
			continue
		}
		for _, w := range prog.Steps[l.Step].Waits {
			if ref, ok := last[place{l.Program, w}]; ok {
				l.After = append(l.After, ref)
			}
		}
		last[place{l.Program, l.Step}] = l.TracedRef
	}
}
