package fsdp

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
)

var flightOptions = Options{Model: small(true), Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Optimizer: adamw}

// flownStream returns what is remembered of one stream.
func flownStream(t *testing.T, f *Flight, name string) FlightStream {
	t.Helper()
	all := f.Streams()
	i := slices.IndexFunc(all, func(s FlightStream) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("nothing is remembered of stream %s in %v", name, all)
	}
	return all[i]
}

// consistent fails the test where a stream's memory cannot be true.
func consistent(t *testing.T, s FlightStream) {
	t.Helper()
	for i, op := range s.Ops {
		if i > 0 && op.Number != s.Ops[i-1].Number+1 {
			t.Errorf("stream %s: number %d comes after %d", s.Name, op.Number, s.Ops[i-1].Number)
		}
		over := op.State == FlightDone || op.State == FlightFailed || op.State == FlightSkipped
		if over == op.Ended.IsZero() || op.State == FlightDone && (op.Begun.Before(op.Queued) || op.Ended.Before(op.Begun) || op.Part != op.Parts) {
			t.Errorf("stream %s: impossible: %+v", s.Name, op)
		}
		if !over && i > 0 && s.Ops[i-1].State == FlightQueued && op.State != FlightQueued {
			t.Errorf("stream %s: %q before its turn", s.Name, op.State)
		}
	}
}

func TestTheFlightRecorderRemembersTheLastOperationsByThePlansNames(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	p, err := NewPlan(flightOptions)
	if err != nil {
		t.Fatal(err)
	}
	f := NewFlight()
	if len(f.Streams()) != 0 || f.Failed() {
		t.Error("something happened before there was an engine")
	}
	e, err := f.NewEngine(p, dev, Comms{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	initialise(t, e, 5)
	b := packed(rand.New(rand.NewPCG(3, 4)), 1, 8, flightOptions.Model.Vocab)
	before := int64(0)
	if s := f.Streams(); len(s) > 0 {
		before = s[0].Launched
	}
	steps := int64(len(p.Micro[0].Steps))
	for launched := int64(0); launched < 2*ringLen; launched += steps { // the ring goes round twice
		if err := e.MicroBatch(b, 1, true); err != nil {
			t.Fatal(err)
		}
		before += steps
	}
	s := flownStream(t, f, "compute")
	consistent(t, s)
	if len(s.Ops) != flightEnded || s.Launched != before || s.Queued != 0 {
		t.Fatalf("%d operations of %d launched and %d queued, want the last %d of %d", len(s.Ops), s.Launched, s.Queued, flightEnded, before)
	}
	last := s.Ops[len(s.Ops)-1]
	want := p.Micro[0].Steps[steps-1]
	if last.Number != before-1 || last.Program != p.Micro[0].Name || last.Step != int(steps)-1 || last.Unit != "embed+head" || last.Cut != want.Cut ||
		last.Operation != "Copy" || last.Bytes != want.Op.Cost().Bytes || last.State != FlightDone || last.Group != "" {
		t.Errorf("the last is %+v", last)
	}
	if f.Steps() != 0 || f.Failed() || len(f.Groups()) != 0 {
		t.Errorf("%d steps, failed %v, groups %v", f.Steps(), f.Failed(), f.Groups())
	}
	if err := e.Update(Hyper{LR: 1e-3, GradScale: 1, Step: 7}); err != nil || f.Steps() != 7 {
		t.Errorf("%v; %d steps", err, f.Steps())
	}

	b.IDs[3] = 1 << 20
	if err := e.MicroBatch(b, 1, true); err == nil || !f.Failed() {
		t.Fatalf("%v; failed %v", err, f.Failed())
	}
	s = flownStream(t, f, "compute")
	consistent(t, s)
	first := slices.IndexFunc(s.Ops, func(op FlightOp) bool { return op.State == FlightFailed })
	if first < 0 || s.Ops[first].Operation != "Embed" || s.Ops[first-1].State != FlightDone {
		t.Fatalf("the failed look-up is operation %d of %+v", first, s.Ops)
	}
	for _, op := range s.Ops[first+1:] {
		if op.State != FlightSkipped || !op.Begun.IsZero() {
			t.Errorf("after it: %+v", op)
		}
	}
}

// waiting returns once rank waits in a collective of a stream, with what is
// remembered of that stream then.
func waiting(t *testing.T, f *Flight, stream string) FlightOp {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, s := range f.Streams() {
			i := slices.IndexFunc(s.Ops, func(op FlightOp) bool { return op.State == FlightUnderWay && op.Group != "" })
			if s.Name == stream && i >= 0 && time.Since(s.Ops[i].Begun) > 50*time.Millisecond {
				consistent(t, s)
				return s.Ops[i]
			}
		}
	}
	t.Fatalf("stream %s never waited: %+v", stream, f.Streams())
	return FlightOp{}
}

// flightEngine makes an engine of one rank of a mesh.
func flightEngine(t *testing.T, f *Flight, o Options, rank int, comms Comms) (*Engine, error) {
	t.Helper()
	o.Rank = rank
	p, err := NewPlan(o)
	if err != nil {
		return nil, err
	}
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { dev.Close() })
	return f.NewEngine(p, dev, comms)
}

func TestTheFlightRecorderTellsInWhichCollectiveARankWaits(t *testing.T) {
	o := flightOptions
	o.Mesh, o.Strategy = Mesh{Within: 2}, FullShard
	comms := groups(o.Mesh)
	flights := []*Flight{NewFlight(), NewFlight()}
	engines, errs := make([]*Engine, 2), make([]error, 2)
	var both sync.WaitGroup
	both.Go(func() { engines[0], errs[0] = flightEngine(t, flights[0], o, 0, comms[0]) })
	// The other one is late already when collectives are bound.
	if op := waiting(t, flights[0], "set-up"); op.Operation != "all-reduce of agreement" || op.Group != "reduce within" || op.Collective != 0 {
		t.Errorf("it waits in %+v", op)
	}
	engines[1], errs[1] = flightEngine(t, flights[1], o, 1, comms[1])
	both.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	b := packed(rand.New(rand.NewPCG(3, 4)), 1, 8, o.Model.Vocab)
	for rank, e := range engines {
		both.Go(func() { errs[rank] = e.MicroBatch(b, 1, true) })
	}
	both.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}

	failed := make(chan error)
	go func() { failed <- engines[0].MicroBatch(b, 1, true) }()
	op := waiting(t, flights[0], "gather")
	for end := time.Now().Add(time.Minute); op.Part == 0 && time.Now().Before(end); { // it has been slow to come to its wait
		op = waiting(t, flights[0], "gather")
	}
	if op.Operation != "all-gather of embed+head weights" || op.Group != "gather within" || op.Part != 1 || op.Parts < 2 || op.Bytes == 0 {
		t.Errorf("it waits in %+v", op)
	}
	var s FlightStream
	next := -1
	for end := time.Now().Add(time.Minute); (next < 0 || s.Queued < flightNext) && time.Now().Before(end); time.Sleep(time.Millisecond) {
		s = flownStream(t, flights[0], "compute") // of which not all may have been launched yet
		consistent(t, s)
		next = slices.IndexFunc(s.Ops, func(op FlightOp) bool { return op.State == FlightWaiting })
	}
	if next < 0 || s.Ops[next].Operation != "Embed" || s.Ops[next].WaitsFor != "gather" || s.Queued < flightNext || len(s.Ops) != next+flightNext {
		t.Errorf("the computation waits before operation %d of %d, %d queued: %+v", next, len(s.Ops), s.Queued, s.Ops[max(next, 0)])
	}
	if g := flights[0].Groups(); len(g) != 1 || !slices.Equal(g["within"], []int{0, 1}) {
		t.Errorf("groups %v", g)
	}
	abort(comms[1], errors.New("rank 1 has other plans"))
	err := <-failed
	var c *collective.Error
	if !errors.As(err, &c) || int64(c.Number) != op.Collective || c.Kind+" of "+c.Name != op.Operation || !flights[0].Failed() || flights[1].Failed() {
		t.Errorf("%v for %+v", err, op)
	}
	s = flownStream(t, flights[0], "gather")
	consistent(t, s)
	if at := s.Ops[slices.IndexFunc(s.Ops, func(op FlightOp) bool { return op.State == FlightFailed })]; at.Operation != op.Operation || at.Collective != op.Collective || at.Ended.IsZero() {
		t.Errorf("it failed in %+v", at)
	}
	for _, e := range engines {
		e.Close()
	}
}

// Whoever writes the recorder does so while the streams run: to be run with
// -race.
func TestTheFlightRecorderIsReadWhileStreamsRun(t *testing.T) {
	o := flightOptions
	o.Mesh, o.Strategy = Mesh{Within: 2}, FullShard
	comms := groups(o.Mesh)
	var flights [2]*Flight
	var read sync.WaitGroup
	over := make(chan struct{})
	for rank := range flights {
		flights[rank] = NewFlight()
		read.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				for _, s := range flights[rank].Streams() {
					consistent(t, s)
				}
				flights[rank].Groups()
				flights[rank].Steps()
				time.Sleep(time.Millisecond)
			}
		})
	}
	errs := make([]error, 2)
	var both sync.WaitGroup
	for rank, f := range flights {
		both.Go(func() {
			e, err := flightEngine(t, f, o, rank, comms[rank])
			b := packed(rand.New(rand.NewPCG(3, 4)), 1, 8, o.Model.Vocab)
			for step := 1; step <= 20 && err == nil; step++ {
				if err = e.MicroBatch(b, 1, true); err == nil {
					err = e.Update(Hyper{LR: 1e-3, GradScale: 1, Step: step})
				}
			}
			errs[rank] = errors.Join(err, e.Close())
		})
	}
	both.Wait()
	close(over)
	read.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, s := range flights[0].Streams() {
		names += " " + s.Name
	}
	if names = strings.TrimSpace(names); names != "compute gather reduce set-up" || flights[1].Steps() != 20 {
		t.Errorf("streams %s, %d steps", names, flights[1].Steps())
	}
}
