//go:build sim && cgo && linux

package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// stream is a queue of operations. Each operation is a goroutine that waits for
// the one before; capture turns them into nodes of a graph instead.
type stream struct {
	ctx      *context
	handle   uintptr
	name     string
	priority int
	tail     <-chan struct{} // closed when the newest operation has ended

	capture *capture
	front   []int // while capturing: the nodes that the next one follows
}

// closed is what is done already.
var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Priorities of streams, lowest and highest, as cuCtxGetStreamPriorityRange gives
// them on devices of compute capability 8.0 and above.
const (
	priorityLeast    = 0
	priorityGreatest = -5
)

// newStream is cuStreamCreateWithPriority.
func (c *context) newStream(flags, priority int) (*stream, error) {
	if flags&^1 != 0 {
		return nil, refuse(InvalidValue, "flags %#x of a stream: CU_STREAM_DEFAULT is 0, CU_STREAM_NON_BLOCKING 1", flags)
	}
	s := &stream{ctx: c, handle: c.m.handle(kindStream), tail: closed}
	s.priority = min(max(priority, priorityGreatest), priorityLeast) // "it will be clamped"
	s.name = fmt.Sprintf("stream %d", number(s.handle))
	c.m.streams[s.handle] = s
	maps.DeleteFunc(c.last, func(old *stream, done <-chan struct{}) bool {
		return c.m.streams[old.handle] == nil && isDone(done)
	})
	return s, nil
}

// stream returns the stream of a handle.
func (c *context) stream(handle uintptr) (*stream, error) {
	switch handle {
	case 0, 1:
		return nil, refuse(NotSupported, "the legacy default stream: make one with cuStreamCreateWithPriority")
	case 2:
		return nil, refuse(NotSupported, "the default stream per thread: make one with cuStreamCreateWithPriority")
	}
	return find(c.m.streams, kindStream, handle)
}

// destroyStream is cuStreamDestroy: what is queued still runs.
func (c *context) destroyStream(s *stream) error {
	if s.capture != nil {
		return s.capture.violated("%s is destroyed", s.name)
	}
	delete(c.m.streams, s.handle)
	return nil
}

// submit adds an operation: to the queue or, while capturing, to the graph. What
// it does is called once the operations before it have ended.
func (s *stream) submit(call string, do func() error) error {
	if s.capture != nil {
		return s.capture.add(s, call, do)
	}
	s.enqueue(call, do)
	return nil
}

// enqueue starts an operation that follows what is in the stream, and others.
func (s *stream) enqueue(call string, do func() error, after ...<-chan struct{}) {
	m, before, done := s.ctx.m, s.tail, make(chan struct{})
	pause := m.pause()
	s.tail = done
	s.ctx.last[s] = done
	m.working.Go(func() {
		defer close(done)
		<-before
		for _, other := range after {
			<-other
		}
		time.Sleep(pause)
		m.begin()
		if s.ctx.fault.Load() != nil {
			return // a broken context does nothing any more
		}
		if err := do(); err != nil {
			s.ctx.failed(s.name, call, err)
		}
	})
}

// isDone tells whether something has ended.
func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// query is cuStreamQuery.
func (s *stream) query() error {
	if s.capture != nil {
		return s.capture.violated("%s is queried", s.name)
	}
	if err := s.ctx.m.safe("cuStreamQuery"); err != nil {
		return err
	}
	if !isDone(s.tail) {
		return refuse(NotReady, "%s has work to do", s.name)
	}
	return s.ctx.broken()
}

// synchronize is cuStreamSynchronize.
func (s *stream) synchronize() error {
	if s.capture != nil {
		return s.capture.violated("%s is waited for", s.name)
	}
	if err := s.ctx.m.safe("cuStreamSynchronize"); err != nil {
		return err
	}
	s.ctx.wait(s.tail)
	return s.ctx.broken()
}

// event marks a place in a stream.
type event struct {
	ctx    *context
	handle uintptr
	name   string
	timed  bool
	last   *mark    // where it was recorded last, nil before that
	in     *capture // or the capture that it was recorded in last, and after which nodes
	front  []int
}

// mark is one record of an event.
type mark struct {
	done <-chan struct{}
	at   time.Time // once done
}

// Flags of events: enum CUevent_flags.
const (
	eventBlockingSync  = 1
	eventDisableTiming = 2
	eventInterprocess  = 4
)

// newEvent is cuEventCreate.
func (c *context) newEvent(flags int) (*event, error) {
	switch {
	case flags&^(eventBlockingSync|eventDisableTiming|eventInterprocess) != 0:
		return nil, refuse(InvalidValue, "flags %#x of an event", flags)
	case flags&eventInterprocess != 0 && flags&eventDisableTiming == 0:
		return nil, refuse(InvalidValue, "CU_EVENT_INTERPROCESS wants CU_EVENT_DISABLE_TIMING")
	case flags&eventInterprocess != 0:
		return nil, refuse(NotSupported, "events between processes")
	}
	e := &event{ctx: c, handle: c.m.handle(kindEvent), timed: flags&eventDisableTiming == 0}
	e.name = fmt.Sprintf("event %d", number(e.handle))
	c.m.events[e.handle] = e
	return e, nil
}

// record is cuEventRecord.
func (e *event) record(s *stream) error {
	if e.ctx != s.ctx {
		return refuse(InvalidHandle, "%s of device %d is recorded in %s of device %d", e.name, e.ctx.device.number, s.name, s.ctx.device.number)
	}
	if s.capture != nil {
		if err := s.capture.usable(); err != nil {
			return err
		}
		e.last, e.in, e.front = nil, s.capture, slices.Clone(s.front)
		return nil
	}
	now := &mark{}
	s.enqueue("cuEventRecord", func() error { now.at = time.Now(); return nil })
	now.done = s.tail
	e.last, e.in, e.front = now, nil, nil
	return nil
}

// wait is cuStreamWaitEvent: the stream waits for what the event holds now. One
// that was never recorded holds nothing.
func (e *event) wait(s *stream, flags int) error {
	switch {
	case flags == 1 && s.capture != nil:
		return refuse(NotSupported, "CU_EVENT_WAIT_EXTERNAL while capturing")
	case flags&^1 != 0:
		return refuse(InvalidValue, "flags %#x of a wait", flags)
	case e.in != nil:
		return e.in.join(s, e)
	case s.capture != nil && e.last != nil:
		err := refuse(StreamCaptureIsolation, "%s, which captures, waits for %s, which was recorded outside", s.name, e.name)
		return s.capture.breaks(err)
	case s.capture != nil:
		return s.capture.usable()
	case e.last != nil:
		s.enqueue("cuStreamWaitEvent", func() error { return nil }, e.last.done)
	}
	return nil
}

// recorded refuses what cannot be done with an event of a capture, or beside one.
func (e *event) recorded(call string) error {
	if e.in != nil {
		err := refuse(CapturedEvent, "%s was recorded in a stream that captured", e.name)
		if e.in.graph != nil {
			return e.in.breaks(err)
		}
		return err
	}
	return e.ctx.m.safe(call)
}

// query is cuEventQuery.
func (e *event) query() error {
	if err := e.recorded("cuEventQuery"); err != nil {
		return err
	}
	if e.last != nil && !isDone(e.last.done) {
		return refuse(NotReady, "%s has not been reached", e.name)
	}
	return e.ctx.broken()
}

// synchronize is cuEventSynchronize, called in a context.
func (e *event) synchronize(c *context) error {
	if err := e.recorded("cuEventSynchronize"); err != nil {
		return err
	}
	if e.last != nil {
		c.wait(e.last.done)
	}
	return e.ctx.broken()
}

// elapsed is cuEventElapsedTime, in milliseconds.
func elapsed(from, to *event) (float32, error) {
	for _, e := range []*event{from, to} {
		switch {
		case e.in != nil:
			return 0, refuse(CapturedEvent, "%s was recorded in a stream that captured", e.name)
		case !e.timed:
			return 0, refuse(InvalidHandle, "%s was made with CU_EVENT_DISABLE_TIMING", e.name)
		case e.last == nil:
			return 0, refuse(InvalidHandle, "%s has not been recorded", e.name)
		}
	}
	switch {
	case from.ctx != to.ctx:
		return 0, refuse(InvalidHandle, "%s and %s are of different devices", from.name, to.name)
	case !isDone(from.last.done) || !isDone(to.last.done):
		return 0, refuse(NotReady, "%s or %s has not been reached", from.name, to.name)
	}
	return float32(to.last.at.Sub(from.last.at).Seconds() * 1e3), nil
}
