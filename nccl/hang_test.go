//go:build sim && cgo && linux

package nccl_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/nccl"
)

// alone is a GPU that a test may close: the machine's first, once more.
func alone(t *testing.T) nccl.Device {
	t.Helper()
	_, s := library(t)
	driver, err := cuda.OpenTable(s.m.Table(), nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := cuda.New(driver, cuda.Options{Ordinal: 0})
	if err != nil {
		t.Fatal(err)
	}
	return d.(nccl.Device)
}

// hung is a rank on a device of its own that waits in a collective to which the other one does not come.
func hung(t *testing.T, deadline time.Duration) (d nccl.Device, s device.Stream, mine *nccl.Groups) {
	t.Helper()
	l, shared := library(t)
	d = alone(t)
	devices := []nccl.Device{d, shared.gpus[1]}
	groups := make([]*nccl.Groups, 2)
	ex := exchange(2, nil)
	var op device.Op
	if err := errors.Join(parallel(2, func(rank int) (err error) {
		groups[rank], err = l.Connect(t.Context(), [][]int{{0, 1}}, rank, nccl.ConnectSettings{
			Run: "run hang", Deadline: deadline, Device: devices[rank], Exchange: ex(rank),
		})
		if err != nil {
			return err
		}
		ops, err := groups[rank].Comms[0].Bind(&collective.Barrier{Name: "of which one does not come"})
		if rank == 0 && err == nil {
			op = ops[0]
		}
		return err
	})...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = groups[1].Close() }) // whose peer has gone
	s = d.NewStream("reduce")
	s.Launch(op)
	if err := d.Do(func() error { return nil }); err != nil { // behind it: it has been started
		t.Fatal(err)
	}
	return d, s, groups[0]
}

func TestAHungCollectiveEndsAlsoWhileItsDeviceIsClosed(t *testing.T) {
	for name, waits := range map[string]bool{"and somebody waits for it": true, "and nobody waits for it": false} {
		t.Run(name, func(t *testing.T) {
			d, s, mine := hung(t, 3*time.Second)
			synced, closed := make(chan error, 1), make(chan error, 1)
			if waits {
				go func() { synced <- s.Sync() }()
				time.Sleep(100 * time.Millisecond)
			}
			go func() { closed <- d.Close() }()
			eventually(t, func() bool { // nobody else comes any more, and at once
				err := d.Do(func() error { return nil })
				return err != nil && strings.Contains(err.Error(), "is closed")
			})
			if waits {
				if err := <-synced; !errors.Is(err, collective.ErrDeadline) {
					t.Errorf("who waits is told %v", err)
				}
			}
			if err := <-closed; err != nil {
				t.Error(err)
			}
			// The groups are to be closed before: their memory has gone with the device.
			if err := mine.Close(); err == nil || !strings.Contains(err.Error(), "is closed") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAnAbortNeedsNothingOfTheDevicesThread(t *testing.T) {
	d, s, mine := hung(t, patient)
	b, err := d.Alloc(4, device.Local)
	if err != nil {
		t.Fatal(err)
	}
	// The thread is held up, as by a GPU whose queue is full, and more is queued than there is room for.
	busy, release := make(chan struct{}), make(chan struct{})
	held, queued := make(chan error, 1), make(chan struct{})
	go func() { held <- d.Do(func() error { close(busy); <-release; return nil }) }()
	<-busy
	go func() {
		defer close(queued)
		for range 3000 {
			s.Launch(&device.Fill{Dst: b.In(device.F32, 0, 1), N: 1, Value: 1})
		}
	}()
	reason := errors.New("another rank has failed")
	mine.Abort(reason)
	_, shared := library(t)
	eventually(t, func() bool {
		return !strings.Contains(strings.Join(shared.m.Leaks(), "\n"), `"run hang, group 0", rank 0 of 2`)
	})
	close(release)
	<-queued
	if err := errors.Join(<-held); err != nil {
		t.Error(err)
	}
	if err := s.Sync(); !errors.Is(err, reason) {
		t.Errorf("%v", err)
	}
	if err := errors.Join(d.Free(b), mine.Close(), d.Close()); err != nil {
		t.Error(err)
	}
}

func TestAnAbortThatDoesNotEndEndsTheWaitAllTheSame(t *testing.T) {
	d, s, mine := hung(t, 3*time.Second)
	_, shared := library(t)
	release := shared.m.HoldAborts()
	defer release()
	reason := errors.New("another rank has failed")
	mine.Abort(reason)
	if err := s.Sync(); !errors.Is(err, reason) {
		t.Errorf("who waits is told %v", err)
	}
	if err := mine.Close(); err == nil || !strings.Contains(err.Error(), "rank 0: communicator \"run hang, group 0\": NCCL was told to abort") || !strings.Contains(err.Error(), "this process has to end") {
		t.Errorf("%v", err)
	}
	if err := d.Close(); err != nil { // which has the communicator's memory
		t.Error(err)
	}
}
