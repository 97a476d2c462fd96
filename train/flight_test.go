package train

import (
	"context"
	"errors"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
)

func TestStatesOfOperationsHaveTheSameNamesInRecords(t *testing.T) {
	for of, in := range map[string]string{
		fsdp.FlightQueued: record.FlightQueued, fsdp.FlightWaiting: record.FlightWaiting, fsdp.FlightUnderWay: record.FlightUnderWay,
		fsdp.FlightDone: record.FlightDone, fsdp.FlightFailed: record.FlightFailed, fsdp.FlightSkipped: record.FlightSkipped,
	} {
		if of != in {
			t.Errorf("%q is %q in records", of, in)
		}
	}
}

func TestTheFlightRecorderHoldsTheReplayThatFoundANaN(t *testing.T) {
	dev := device.NewReference()
	defer dev.Close()
	f := fsdp.NewFlight()
	if r := FlightRecord(f, 3, 4); r.Rank != 3 || r.World != 4 || r.At() != "before its first operation" || r.Streams == nil {
		t.Errorf("before there is an engine: %+v", r)
	}
	w := work(t)
	w.Train.LR, w.Train.Warmup, w.Train.Clip = 1e30, 0, 0
	r, err := Open(context.Background(), w, Place{Flight: f}, dev, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = r.Train(context.Background(), Reporters{})
	var spoilt *NotFinite
	if !errors.As(err, &spoilt) {
		t.Fatalf("it ended with %v", err)
	}
	got := FlightRecord(f, 0, 1)
	if !f.Failed() || got.Steps != spoilt.Step-1 {
		t.Errorf("failed %v after step %d, want after step %d", f.Failed(), got.Steps, spoilt.Step-1)
	}
	last := got.Streams[len(got.Streams)-1]
	failed := 0
	for _, op := range last.Ops {
		var found *device.NotFiniteError
		if op.State != record.FlightFailed || !errors.As(spoilt.Where, &found) {
			continue
		}
		if failed++; op.Operation != found.Op {
			t.Errorf("%s failed, want %s", op.Operation, found.Op)
		}
	}
	if last.Name != "replay" || failed != 1 {
		t.Errorf("stream %s with %d failed operations: %+v", last.Name, failed, last)
	}
}
