package fsdp

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

// failing is a device whose streams say that they have failed at the operations
// for which at is true, if it is set.
type failing struct {
	device.Device
	at func(device.Op) bool
}

func (d *failing) NewStream(name string) device.Stream {
	return &failingStream{Stream: d.Device.NewStream(name), device: d}
}

type failingStream struct {
	device.Stream
	device *failing
	failed error
}

func (s *failingStream) Launch(op device.Op) {
	if s.device.at != nil && s.device.at(op) && s.failed == nil {
		s.failed = &refused{op}
	}
	s.Stream.Launch(op)
}

func (s *failingStream) Sync() error {
	err := errors.Join(s.failed, s.Stream.Sync())
	s.failed = nil
	return err
}

// refused is an operation that a device refuses by its name.
type refused struct{ op device.Op }

func (r *refused) Error() string        { return device.Name(r.op) + ": refused" }
func (r *refused) Operation() device.Op { return r.op }

func TestAnErrorOfTheDeviceSaysAtWhichUnitAndCutPoint(t *testing.T) {
	dev := &failing{Device: device.NewReference()}
	t.Cleanup(func() { dev.Close() })
	e := engine(t, Options{Model: twoBlocks(true), Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, HeadRows: 8, Optimizer: adamw}, dev)
	seen := 0
	dev.at = func(op device.Op) bool {
		if _, ok := op.(*device.AttentionBackward); ok {
			seen++
		}
		return seen == 2 // of the first block, whose backward is the second
	}
	err := e.MicroBatch(Batch{IDs: make([]int32, 8), Targets: make([]int32, 8), Start: make([]int32, 8), Pos: make([]int32, 8)}, 1, true)
	step := -1
	for i, s := range e.Plan.Micro[0].Steps {
		if _, ok := s.Op.(*device.AttentionBackward); ok {
			step = i // the last in the program
		}
	}
	s := e.Plan.Micro[0].Steps[step]
	want := fmt.Sprintf("%s, %s, %s: AttentionBackward: refused", e.Plan.Micro[0].Name, e.Plan.Units[s.Unit].Name, s.Cut)
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("the error is %q, want one that begins with %q", err, want)
	}
	var r *refused
	if !errors.As(err, &r) {
		t.Error("the device's own error is lost")
	}
}
