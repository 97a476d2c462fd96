package device

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// NewRecorder returns d and writes to w, one line a call, what its streams are
// told to do, in the order of the calls: launches (as Format), records, waits
// and syncs. Events are called e1, e2, … in the order of their making. An error
// of w is returned by Close, which also closes d.
func NewRecorder(d Device, w io.Writer) Device { return &recorder{Device: d, w: w} }

type recorder struct {
	Device

	mu     sync.Mutex
	w      io.Writer
	err    error
	events int
}

func (r *recorder) NewStream(name string) Stream {
	return &recordedStream{r.Device.NewStream(name), r, name}
}

func (r *recorder) NewEvent() Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events++
	return &recordedEvent{r.Device.NewEvent(), fmt.Sprintf("e%d", r.events)}
}

func (r *recorder) Close() error {
	err := r.Device.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return errors.Join(err, fmt.Errorf("device: the recorder's transcript: %w", r.err))
	}
	return err
}

type recordedEvent struct {
	Event
	name string
}

type recordedStream struct {
	Stream
	r    *recorder
	name string
}

func (s *recordedStream) Launch(op Op) {
	s.line("launch " + Format(op))
	s.Stream.Launch(op)
}

func (s *recordedStream) Record(e Event) {
	s.line("record " + e.(*recordedEvent).name)
	s.Stream.Record(e.(*recordedEvent).Event)
}

func (s *recordedStream) Wait(e Event) {
	s.line("wait " + e.(*recordedEvent).name)
	s.Stream.Wait(e.(*recordedEvent).Event)
}

func (s *recordedStream) Sync() error {
	s.line("sync")
	return s.Stream.Sync()
}

func (s *recordedStream) line(what string) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if _, err := fmt.Fprintf(s.r.w, "%s: %s\n", s.name, what); s.r.err == nil {
		s.r.err = err
	}
}
