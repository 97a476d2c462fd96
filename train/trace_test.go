package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
)

func TestAWindowOfStepsIsRead(t *testing.T) {
	for text, want := range map[string]Window{"": {}, "3-5": {3, 5}, "1-1": {1, 1}, "7-106": {7, 106}, "1": {3, 3}, "4": {3, 6}, "100": {3, 102}} {
		got, err := ParseWindow(text)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
		if again, err := ParseWindow(got.String()); err != nil || again != want {
			t.Errorf("%q is written %q, which is %v, %v", text, got, again, err)
		}
	}
	for text, want := range map[string]string{
		"0": "neither a number", "-3": "neither a number", "0-3": "neither a number", "3-": "neither a number", "a": "neither a number", "1-2-3": "neither a number",
		"3-99999999999": "neither a number", "+3": "neither a number",
		"5-4": "the last step is before the first", "1-101": "101 steps are more than the 100", "2147483647": "are more than the 100",
	} {
		if got, err := ParseWindow(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %s", text, got, err, want)
		}
	}
}

// tracedRun trains on ranks and merges what they leave of a window; it returns the
// ranks' plans, too. None is left where merging returns nil.
func tracedRun(t *testing.T, w Work, ranks int, window Window) (*record.Trace, []*fsdp.Plan, error) {
	t.Helper()
	dir, err := record.Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	plans := make([]*fsdp.Plan, ranks)
	strategy := fsdp.FullShard
	if ranks == 1 {
		strategy = fsdp.NoShard
	}
	errs := onRanks(w, ranks, sharded(strategy), func(ctx context.Context, _ func(), r *Run) error {
		plans[r.Plan.Rank] = r.Plan
		written := 0
		r.TraceSteps(window, func(part *record.Trace) {
			if written++; written > 1 {
				t.Errorf("rank %d leaves %d parts", r.Plan.Rank, written)
			}
			if err := dir.WriteTracePart(part); err != nil {
				t.Error(err)
			}
		})
		_, err := r.Train(ctx, Reporters{})
		return err
	})
	if head, err := dir.MergeTrace(); err != nil || head == nil {
		if err != nil {
			t.Fatal(err)
		}
		return nil, plans, errors.Join(errs...)
	}
	got, err := dir.ReadTrace()
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, got)
	return got, plans, errors.Join(errs...)
}

// place is where events are.
type place struct{ rank, stream int }

// wellFormed wants a trace that a viewer shows as it is meant.
func wellFormed(t *testing.T, trace *record.Trace) {
	t.Helper()
	ranks, streams := map[int]string{}, map[place]string{}
	free := map[place]record.Micros{} // since when
	from := map[int64]record.TraceEvent{}
	for i, e := range trace.Events {
		at := place{e.Rank, e.Stream}
		what := fmt.Sprintf("event %d, %s of rank %d on %q at %v", i, e.Name, e.Rank, streams[at], time.Duration(e.At))
		switch e.Phase {
		case record.TraceMeta:
			var args struct{ Name string }
			if err := json.Unmarshal(e.Args, &args); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			switch e.Name {
			case "process_name":
				ranks[e.Rank] = args.Name
			case "thread_name":
				streams[at] = args.Name
			}
			continue
		case record.TraceComplete:
			if e.Duration == nil || *e.Duration < 0 || e.At < free[at] {
				t.Errorf("%s: it lasts %v, and the last one ends at %v", what, e.Duration, free[at])
				continue
			}
			free[at] = e.At + *e.Duration
		case record.TraceFlowFrom:
			from[e.Flow] = e
		case record.TraceFlowTo:
			if f, ok := from[e.Flow]; !ok || f.Rank != e.Rank || f.Stream == e.Stream || f.At > e.At || e.Binds != "e" {
				t.Errorf("%s: an arrow from %+v", what, f)
			}
		default:
			t.Errorf("%s: of phase %q", what, e.Phase)
		}
		if e.At < 0 || ranks[e.Rank] != fmt.Sprintf("rank %d", e.Rank) || streams[at] != traceStreams[e.Stream] {
			t.Errorf("%s: its rank is called %q", what, ranks[e.Rank])
		}
	}
	for _, e := range trace.Events { // an arrow begins within an operation
		inside := func(f record.TraceEvent) bool {
			return f.Phase == record.TraceComplete && f.Rank == e.Rank && f.Stream == e.Stream && f.At <= e.At && e.At <= f.At+*f.Duration
		}
		if (e.Phase == record.TraceFlowFrom || e.Phase == record.TraceFlowTo) && !slices.ContainsFunc(trace.Events, inside) {
			t.Errorf("an arrow is tied to nothing: %+v", e)
		}
	}
	for _, r := range trace.Ranks {
		for _, s := range r.Steps {
			shares := []float64{s.Compute, s.Gather, s.Reduce, s.Agree, s.Host, s.Start}
			sum := 0.0
			for _, x := range shares {
				sum += x
			}
			if math.Abs(sum-1) > 1e-6 || slices.Min(shares) < 0 || s.Seconds <= 0 || s.Compute == 0 {
				t.Errorf("rank %d: the shares add up to %v: %+v", r.Rank, sum, s)
			}
		}
	}
}

// shown is an operation's name in a trace.
func shown(op device.Op) string {
	switch op := op.(type) {
	case *collective.AllGather:
		return "all-gather " + op.Name
	case *collective.ReduceScatter:
		return "reduce-scatter " + op.Name
	case *collective.AllReduce:
		return "all-reduce " + op.Name
	}
	return device.Name(op)
}

// ran are operations of a stream by program and step.
type ran map[string][]string

func (r ran) add(stream, program string, step int, op string) {
	r[stream] = append(r[stream], fmt.Sprintf("%s %d: %s", program, step, op))
}

// stepOf returns the operations of a step of so many micro-batches.
func stepOf(plan *fsdp.Plan, micros int) ran {
	programs := []*fsdp.Program{&plan.Micro[0]}
	for range micros - 1 {
		programs = append(programs, &plan.Micro[1])
	}
	all := ran{}
	for _, p := range append(programs, &plan.Reduce, &plan.Norm, &plan.Agree, &plan.Update) {
		for i, s := range p.Steps {
			all.add(s.Stream.String(), p.Name, i, shown(s.Op))
		}
	}
	return all
}

func TestATracedStepHoldsThePlansOperationsInTheirOrder(t *testing.T) {
	for ranks := 1; ranks <= 2; ranks++ {
		w := work(t)
		w.Train.Batch, w.Train.MicroBatch, w.Train.Steps, w.Train.EvalEvery, w.Train.EvalPacks = 12, 2, 6, 3, 2
		trace, plans, err := tracedRun(t, w, ranks, Window{2, 4})
		if err != nil || trace == nil {
			t.Fatalf("%d ranks: %v, %v", ranks, trace, err)
		}
		got, evaluated, collectives := map[place]ran{}, 0, map[string][]record.TraceEvent{}
		phases := map[int]string{}
		for _, e := range trace.Events {
			var args traceArgs
			if e.Args != nil && e.Phase == record.TraceComplete {
				if err := json.Unmarshal(e.Args, &args); err != nil {
					t.Fatal(err)
				}
			}
			switch e.Category {
			case tracePhase:
				phases[e.Rank] += " " + e.Name
			case traceOperation, traceCollective:
				if args.Step == 0 {
					if args.Program == plans[e.Rank].Evaluation.Name {
						evaluated++
					}
					continue
				}
				at := place{e.Rank, args.Step}
				if got[at] == nil {
					got[at] = ran{}
				}
				got[at].add(traceStreams[e.Stream], args.Program, args.ProgramStep, e.Name)
				if e.Category == traceCollective {
					key := fmt.Sprintf("%s %s %d", e.Name, args.Group, *args.Collective)
					collectives[key] = append(collectives[key], e)
				}
			}
		}
		if len(got) != 3*ranks {
			t.Errorf("%d ranks: steps %v", ranks, slices.Collect(maps.Keys(got)))
		}
		for at, ops := range got {
			want := stepOf(plans[at.rank], 12/2/ranks)
			for stream := range want {
				if !slices.Equal(ops[stream], want[stream]) {
					t.Errorf("rank %d, step %d, %s: %d operations, want %d:\n%q\n%q", at.rank, at.stream, stream, len(ops[stream]), len(want[stream]), ops[stream], want[stream])
				}
			}
			if len(ops) != len(want) {
				t.Errorf("rank %d, step %d: %d streams, want %d", at.rank, at.stream, len(ops), len(want))
			}
		}
		if evaluated == 0 {
			t.Errorf("%d ranks: the evaluation after step 3 is not traced", ranks)
		}
		if (len(collectives) > 0) != (ranks > 1) {
			t.Errorf("%d ranks: collectives %v", ranks, slices.Collect(maps.Keys(collectives)))
		}
		for key, both := range collectives {
			// Ranks are in a collective at one time.
			if len(both) != 2 || both[0].At > both[1].At+*both[1].Duration || both[1].At > both[0].At+*both[0].Duration {
				t.Errorf("%s: %+v", key, both)
			}
		}
		micros := strings.Repeat(" batch micro-batch", 12/2/ranks)
		step := micros + " agree update report"
		for rank, got := range phases {
			if want := step + step + " evaluate" + step; got != want || len(phases) != ranks {
				t.Errorf("rank %d of %d: phases%s, want%s", rank, ranks, got, want)
			}
		}
		for _, r := range trace.Ranks {
			var steps []int
			for _, s := range r.Steps {
				steps = append(steps, s.Step)
			}
			if !slices.Equal(steps, []int{2, 3, 4}) {
				t.Errorf("rank %d: steps %v", r.Rank, steps)
			}
		}
	}
}

func TestATraceIsLeftOnlyWhereItsStepsWereReached(t *testing.T) {
	w := work(t)
	w.Train.Steps = 4
	for what, c := range map[string]struct {
		window Window
		lr     float64
		steps  int // that the trace holds
	}{
		"none is asked for":             {Window{}, 1e-3, -1},
		"it begins behind the run":      {Window{5, 6}, 1e-3, -1},
		"the run ends in it":            {Window{3, 90}, 1e-3, 2},
		"the run fails in it":           {Window{1, 4}, 1e30, 1},
		"the run fails before it":       {Window{4, 4}, 1e30, -1},
		"it is of the last step":        {Window{4, 4}, 1e-3, 1},
		"it is of the first step alone": {Window{1, 1}, 1e-3, 1},
	} {
		w.Train.LR, w.Train.Warmup, w.Train.Clip = c.lr, 0, 0
		trace, _, err := tracedRun(t, w, 1, c.window)
		if failed := c.lr > 1; failed != (err != nil) {
			t.Fatalf("%s: %v", what, err)
		}
		switch {
		case (trace == nil) != (c.steps < 0):
			t.Errorf("%s: %v", what, trace)
		case trace == nil:
		case len(trace.Ranks[0].Steps) != c.steps:
			t.Errorf("%s: %d steps, want %d", what, len(trace.Ranks[0].Steps), c.steps)
		case err != nil && !slices.ContainsFunc(trace.Events, func(e record.TraceEvent) bool { return strings.Contains(string(e.Args), `"failed":true`) }):
			t.Errorf("%s: no operation of the trace has failed", what)
		}
	}
}

func TestATraceOfStepsThatTheRunDoesNotHaveIsRefused(t *testing.T) {
	w := work(t)
	w.Train.Steps = 4
	errs := onRanks(w, 1, sharded(fsdp.NoShard), func(_ context.Context, _ func(), r *Run) error {
		for _, last := range []int{4, 9} {
			if err := r.CheckTrace(Window{4, last}); err != nil {
				t.Error(err)
			}
		}
		if err := r.CheckTrace(Window{}); err != nil {
			t.Error(err)
		}
		return r.CheckTrace(Window{5, 9})
	})
	if want := "run.trace: 5-9 begins with step 5 of a run of 4; name earlier ones, such as 1-4"; errs[0] == nil || errs[0].Error() != want {
		t.Errorf("%v, want %s", errs[0], want)
	}
}
