//go:build cgo && linux

package cuda

// #include "call.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

// Watched is a Native whose work may fail after it was started, as a collective does whose peer dies.
type Watched interface {
	Native
	// Watch returns what tells of that: the same value for all operations that fail together.
	Watch() Failure
}

// Failure tells why work has failed, nil where it has not. Once it has told an error it stays with it. A stream's
// Sync asks those of all operations that were ever started on it, when the work has ended.
type Failure interface{ Err() error }

// watching remembers what is to be asked about an operation. The list only grows, so that a Sync may read it
// while the stream goes on.
func (s *stream) watching(op Native) {
	if w, ok := op.(Watched); ok {
		if f := w.Watch(); !slices.Contains(s.watched, f) {
			s.watched = append(s.watched, f)
		}
	}
}

// failure asks what was watched.
func (s *stream) failure(watched []Failure) error {
	for _, f := range watched {
		if err := f.Err(); err != nil {
			return fmt.Errorf("stream %s: %w", s.name, err)
		}
	}
	return nil
}

// Mark records an event of the device in a CUDA stream at once: for a Native's Start, which runs on the thread of
// the device and has the stream in hand. Stream.Record would queue it behind what is queued by then.
func (g *gpu) Mark(e device.Event, stream unsafe.Pointer) error {
	mine, ok := e.(*event)
	switch {
	case !ok || mine.gpu != g:
		panic(fmt.Sprintf("cuda: %s is to record an event of another device", g.name))
	case mine.broken != nil:
		return mine.broken
	}
	turn := mine.recorded.Add(1)
	err := g.failed(C.call_cuEventRecord(g.driver.table, mine.handle, C.CUstream(stream)), "cuEventRecord")
	mine.lost.Store(err != nil)
	mine.issued.Store(turn)
	return err
}

// Within runs f on a thread of its own, with the GPU's context current for that time: for what must wait for
// nothing that is queued, as Do would, and would make a context on another GPU where none is current. Once the
// device is closed there is none to be had.
func (g *gpu) Within(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	leave, err := g.visit()
	return errors.Join(err, f(), leave())
}

// visit makes the context current on this thread, until leave is called.
func (g *gpu) visit() (leave func() error, err error) {
	g.alive.RLock() // not for longer: what is done there may last
	defer g.alive.RUnlock()
	table := g.driver.table
	var before C.CUcontext
	if !g.gone {
		err = g.failed(C.call_cuCtxGetCurrent(table, &before), "cuCtxGetCurrent")
		if err == nil {
			err = g.failed(C.call_cuCtxSetCurrent(table, g.context), "cuCtxSetCurrent")
		}
	}
	if g.gone || err != nil {
		return func() error { return nil }, err
	}
	return func() error { return g.failed(C.call_cuCtxSetCurrent(table, before), "cuCtxSetCurrent") }, nil
}

// OpenNCCL finds NCCL, as Find does, and opens it. The handle is dlopen's; it is not to be closed. Where there is
// none the error is ErrNoLibrary.
func (s Sources) OpenNCCL() (handle unsafe.Pointer, found Library, err error) { return s.load(nccl) }
