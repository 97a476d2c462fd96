package fsdp

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

func TestATraceKeepsEveryOperationOfItsTimeWithWhatItCameAfter(t *testing.T) {
	o := flightOptions
	o.Mesh, o.Strategy, o.Prefetch = Mesh{Within: 2}, FullShard, 1
	comms := groups(o.Mesh)
	const batches = 30 // more than a ring remembers
	errs := make([]error, 2)
	var both sync.WaitGroup
	for rank := range 2 {
		both.Go(func() {
			f := NewFlight()
			e, err := flightEngine(t, f, o, rank, comms[rank])
			if err != nil {
				errs[rank] = err
				return
			}
			b := packed(rand.New(rand.NewPCG(3, 4)), 1, 8, o.Model.Vocab)
			run := func(n int) {
				for range n {
					errs[rank] = errors.Join(errs[rank], e.MicroBatch(b, 1, true))
				}
			}
			run(1)
			if all := f.Traced(); len(all) != 0 {
				t.Errorf("without a trace, %d streams are kept", len(all))
			}
			f.Trace()
			run(batches)
			all := f.Traced()
			run(1)
			if again := f.Traced(); len(again) != 0 {
				t.Errorf("after the trace, %d streams are kept", len(again))
			}
			isTrace(t, &e.Plan.Micro[0], batches, all)
			errs[rank] = errors.Join(errs[rank], e.Close())
		})
	}
	both.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// isTrace wants all to be so many runs of a program.
func isTrace(t *testing.T, prog *Program, runs int, all []TracedStream) {
	t.Helper()
	if len(all) != int(streams) {
		t.Fatalf("%d streams are traced, want %d", len(all), streams)
	}
	for _, s := range all {
		var want []int
		for i, step := range prog.Steps {
			if step.Stream.String() == s.Name {
				want = append(want, i)
			}
		}
		if len(s.Ops) != runs*len(want) {
			t.Fatalf("stream %s: %d operations, want %d times %d", s.Name, len(s.Ops), runs, len(want))
		}
		for i, op := range s.Ops {
			step := prog.Steps[op.Step]
			if op.Program != prog.Name || op.Step != want[i%len(want)] || op.FLOPs != step.Op.Cost().FLOPs || op.State != FlightDone {
				t.Fatalf("stream %s: operation %d is %+v", s.Name, i, op)
			}
			if i > 0 && (op.Begun.Before(s.Ops[i-1].Ended) || op.Number != s.Ops[i-1].Number+1) {
				t.Fatalf("stream %s: operation %d begins before the last has ended, or has another's number: %+v", s.Name, i, op)
			}
			if came := !op.Came.IsZero(); came != (op.Parts > 1) || came && (op.Came.Before(op.Begun) || op.Came.After(op.Ended)) {
				t.Fatalf("stream %s: the first of %d parts of operation %d ended at %v: %+v", s.Name, op.Parts, i, op.Came, op)
			}
			var after []int
			for _, ref := range op.After {
				d := all[ref.Stream].Ops[ref.Op]
				after = append(after, d.Step)
				if run := ref.Op / (len(all[ref.Stream].Ops) / runs); run != i/len(want) || d.Ended.After(op.Begun) {
					t.Fatalf("stream %s: operation %d of run %d came after one of run %d: %+v, %+v", s.Name, i, i/len(want), run, op, d)
				}
			}
			if !slices.Equal(after, step.Waits) {
				t.Fatalf("stream %s: operation %d came after steps %v, want %v", s.Name, i, after, step.Waits)
			}
		}
	}
}
