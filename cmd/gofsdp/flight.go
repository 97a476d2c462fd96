package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

type flightCommand struct {
	Directory string `arg:"" name:"run" help:"The run's directory."`
}

// Run prints where the ranks of a failed run stood.
func (c *flightCommand) Run(a *app) error {
	dir, err := record.Open(c.Directory)
	if err != nil {
		return asUser(err)
	}
	flights, err := dir.ReadFlights()
	if err != nil {
		return asUser(err)
	}
	if len(flights) == 0 {
		return asUser(fmt.Errorf("%s has no flight recorder in its logs: a rank leaves one only where it sees the run fail", c.Directory))
	}
	a.printf("%s", record.FlightReport(flights))
	return nil
}

// flight leaves a rank's flight recorder in the run's directory when the run
// fails: once, with the first reason. Its methods may be called at once.
type flight struct {
	*fsdp.Flight
	app         *app
	dir         *record.Dir
	rank, world int

	mu      sync.Mutex
	unseen  bool // the device's streams cannot be observed
	held    *record.Flight
	written bool
}

// newFlight returns the recorder of one of several ranks, for the directory that
// the launcher has made.
func (a *app) newFlight(rank, world int) (*flight, error) {
	dir, err := record.Open(os.Getenv(directoryVariable))
	if err != nil {
		return nil, err
	}
	return &flight{Flight: fsdp.NewFlight(), app: a, dir: dir, rank: rank, world: world}, nil
}

// blind is for a device whose streams cannot be observed.
func (f *flight) blind() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unseen = true
}

// stand takes what the recorder holds now, unless it has been taken.
func (f *flight) stand(reason error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		f.held = train.FlightRecord(f.Flight, f.rank, f.world)
		f.held.Unseen = f.unseen
		f.held.Reason = f.app.oneLine(reason)
	}
}

// write leaves in the run's directory what stand took, if anything, and says so.
// It returns once that is there, whoever writes it.
func (f *flight) write() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil || f.written {
		return
	}
	f.written = true
	where := "flight recorder: " + f.dir.FlightFile(f.rank)
	if err := f.dir.WriteFlight(f.held); err != nil {
		where = "no flight recorder: " + plain(err.Error())
	}
	who := ""
	if f.world > 1 && f.rank == 0 { // the others' lines have their number in front
		who = "rank 0: "
	}
	// Not by printf: who reads the output may be what failed.
	fmt.Fprintf(f.app.out, "%s%s; %s\n", who, f.held.At(), where)
}

// note leaves the recorder where err is about what it recorded: a device, a
// collective, or numbers that are not finite. A user who stops the run, or a disk
// that is full, is no matter of it.
func (f *flight) note(err error, finite bool) {
	var c *collective.Error
	var n *train.NotFinite
	if err == nil || errors.Is(err, context.Canceled) || finite && !f.Failed() && !errors.As(err, &c) && !errors.As(err, &n) {
		return
	}
	f.stand(err)
	f.write()
}

// watch leaves the recorder also where SIGQUIT ends the process, until over.
func (f *flight) watch() (over func()) {
	quit, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(quit, syscall.SIGQUIT)
	go func() {
		select {
		case <-quit:
			f.stand(errors.New("SIGQUIT: quit"))
			f.write()
			signal.Reset(syscall.SIGQUIT)
			syscall.Kill(os.Getpid(), syscall.SIGQUIT) // to Go's runtime, which prints all stacks
		case <-done:
		}
	}()
	return func() {
		signal.Stop(quit)
		close(done)
	}
}

// panicked, deferred, leaves the recorder where the caller panics, which goes on.
func (f *flight) panicked() {
	if p := recover(); p != nil {
		f.stand(fmt.Errorf("panic: %v", p))
		f.write()
		panic(p)
	}
}
