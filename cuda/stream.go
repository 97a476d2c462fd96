//go:build cgo && linux

package cuda

// #include "call.h"
import "C"

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

// Flags of CUstream_flags and CUevent_flags.
const (
	nonBlocking   = 1
	blockingSync  = 1 // who waits sleeps, and leaves the core to others
	disableTiming = 2
)

// stream is a CUDA stream. Its methods queue commands for the device's thread, which runs the lower-case
// ones.
type stream struct {
	gpu      *gpu
	name     string
	handle   C.CUstream
	finished C.CUevent // recorded at each Sync
	blas     multiplier
	broken   error // why it could not be made
	answers  chan answer

	// The thread's own.
	err     error     // the first since the last Sync
	watched []Failure // of the Natives that were ever started
	begun
}

// answer is how a stream has fared since its last Sync.
type answer struct {
	err     error // of the calls; what the GPU says comes later
	watched []Failure
	begun
}

// begun is what a stream has started since its last Sync.
type begun struct {
	started     int
	first, last device.Op
}

// since says where to look for what the GPU found later.
func (b begun) since() string {
	switch b.started {
	case 0:
		return "no operation of this stream is under way"
	case 1:
		return fmt.Sprintf("this stream had started %s; cuda.Options.Synchronous finds which operation it was", device.Name(b.last))
	}
	return fmt.Sprintf("this stream had started %d operations, %s to %s; cuda.Options.Synchronous finds which it was", b.started, device.Name(b.first), device.Name(b.last))
}

func (s *stream) Launch(op device.Op) { s.gpu.queue <- command{stream: s, op: op} }

func (s *stream) Record(e device.Event) {
	mine := s.own(e)
	s.gpu.queue <- command{stream: s, event: mine, turn: mine.recorded.Add(1)}
}

func (s *stream) Wait(e device.Event) {
	if mine := s.own(e); mine.recorded.Load() > 0 {
		s.gpu.queue <- command{stream: s, event: mine}
	}
}

// own refuses an event of another device, for which order means nothing here.
func (s *stream) own(e device.Event) *event {
	mine, ok := e.(*event)
	if !ok || mine.gpu != s.gpu {
		panic(fmt.Sprintf("cuda: stream %s of %s is given an event of another device", s.name, s.gpu.name))
	}
	return mine
}

// Sync implements device.Stream. It waits on the caller's thread, so other streams go on.
func (s *stream) Sync() error {
	g := s.gpu
	if !g.enter() {
		return fmt.Errorf("stream %s: its device is closed", s.name)
	}
	defer g.users.Done()
	g.queue <- command{stream: s}
	a := <-s.answers
	if s.broken != nil {
		return s.broken
	}
	if r := C.gofsdp_await(g.driver.table, g.context, s.finished); r != 0 && a.err == nil {
		return s.failed(r, "cuEventSynchronize", a.since())
	}
	if a.err != nil {
		return a.err
	}
	return s.failure(a.watched)
}

// perform starts an operation, unless an earlier one failed.
func (s *stream) perform(op device.Op) {
	if s.err != nil {
		return
	}
	if s.started++; s.started == 1 {
		s.first = op
	}
	s.last = op
	s.err = s.start(op)
}

// start turns a panic, which is a mistake of the program, into an error with the place.
func (s *stream) start(op device.Op) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("stream %s: %s: %v\n%s", s.name, device.Name(op), p, debug.Stack())
		}
	}()
	table := s.gpu.driver.table
	if own, ok := op.(Native); ok {
		s.watching(own)
		if err := own.Start(unsafe.Pointer(s.handle)); err != nil {
			return fmt.Errorf("stream %s: %w", s.name, err)
		}
	} else {
		w, err := s.gpu.work(op, s)
		if err != nil {
			return fmt.Errorf("stream %s: %w", s.name, err)
		}
		for _, p := range w.parts {
			if e := p.start(s); e != nil {
				if late(e.Code) {
					e.Detail = s.since() // op itself is not to blame
				} else {
					e.Op = op
				}
				return e
			}
		}
	}
	if s.gpu.options.Synchronous {
		if r := C.call_cuStreamSynchronize(table, s.handle); r != 0 {
			e := s.failed(r, "cuStreamSynchronize", device.Format(op))
			e.Op = op
			return e
		}
	}
	return nil
}

// failed makes an error of a result of the driver's.
func (s *stream) failed(r C.CUresult, call, detail string) *Error {
	e := s.gpu.driver.failure(r, call, "stream "+s.name)
	e.Detail = detail
	return e
}

// answer is the thread's part of a Sync.
func (s *stream) answer() {
	if s.broken == nil {
		if r := C.call_cuEventRecord(s.gpu.driver.table, s.finished, s.handle); r != 0 && s.err == nil {
			s.err = s.failed(r, "cuEventRecord", s.since())
		}
	}
	s.answers <- answer{s.err, s.watched, s.begun}
	s.err, s.begun = s.broken, begun{}
}

// record makes e fire, whether the stream has failed or not.
func (s *stream) record(e *event, turn uint64) {
	err := e.broken
	if err == nil && s.broken == nil {
		if r := C.call_cuEventRecord(s.gpu.driver.table, e.handle, s.handle); r != 0 {
			err = s.failed(r, "cuEventRecord", s.since())
		}
	}
	e.lost.Store(err != nil || s.broken != nil)
	e.issued.Store(turn)
	if s.err == nil {
		s.err = err
	}
}

// wait holds the stream back until e's last record has fired. A record that was lost is no reason to.
func (s *stream) wait(e *event) {
	if s.broken != nil || e.lost.Load() {
		return
	}
	if r := C.call_cuStreamWaitEvent(s.gpu.driver.table, s.handle, e.handle, 0); r != 0 && s.err == nil {
		s.err = s.failed(r, "cuStreamWaitEvent", s.since())
	}
}

// event is a CUDA event. It counts its Records, since a stream's may not have reached the driver yet.
type event struct {
	gpu              *gpu
	handle           C.CUevent
	broken           error // why it could not be made
	recorded, issued atomic.Uint64
	lost             atomic.Bool // the driver did not take the last Record
}

// Done implements device.Event. What the driver has lost, by a fault on the device, counts as done. While
// the device gives everything back it says no, afterwards yes.
func (e *event) Done() bool {
	if !e.gpu.alive.TryRLock() {
		return false
	}
	defer e.gpu.alive.RUnlock()
	turn := e.recorded.Load()
	switch {
	case turn == 0 || e.gpu.gone:
		return true
	case e.issued.Load() < turn:
		return false
	}
	return e.lost.Load() || C.gofsdp_query(e.gpu.driver.table, e.gpu.context, e.handle) != notReady
}
