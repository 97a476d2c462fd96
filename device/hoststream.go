package device

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// QueueLen is how many commands a host stream queues before Launch blocks.
const QueueLen = 1024

// command is one entry of a stream's queue: an operation, or a Record or Wait
// of an event's turn, or with neither a Sync.
type command struct {
	op     Op
	event  *hostEvent
	turn   uint64
	record bool
}

// hostStream is a goroutine that works off a queue.
type hostStream struct {
	name   string
	inner  bool     // the executor is a stream, whose errors name it already
	exec   Executor // nil where it could not be opened
	broken error    // why it could not
	pause  func()   // nil, or what to do before each command
	queue  chan command
	synced chan error  // answers Sync
	closed atomic.Bool // the device's Close has begun
	ended  chan struct{}
	err    error // the first since the last Sync; the goroutine's own

	observer Observer // nil, or who follows the stream
}

func newHostStream(name string) *hostStream {
	return &hostStream{name: name, queue: make(chan command, QueueLen), synced: make(chan error), ended: make(chan struct{})}
}

func (s *hostStream) Launch(op Op) { s.queue <- command{op: op} }

func (s *hostStream) Record(e Event) {
	he := e.(*hostEvent)
	s.queue <- command{event: he, turn: he.recorded.Add(1), record: true}
}

func (s *hostStream) Wait(e Event) {
	he := e.(*hostEvent)
	s.queue <- command{event: he, turn: he.recorded.Load()}
}

func (s *hostStream) Sync() error {
	if s.closed.Load() {
		return fmt.Errorf("stream %s: its device is closed", s.name)
	}
	s.queue <- command{}
	return <-s.synced
}

// run works until the queue is closed and empty.
func (s *hostStream) run() {
	defer close(s.ended)
	for c := range s.queue {
		if s.pause != nil {
			s.pause()
		}
		switch {
		case c.op != nil:
			s.perform(c.op)
		case c.event == nil:
			s.synced <- s.err
			s.err = s.broken
		case c.record:
			c.event.fire(c.turn)
		default:
			c.event.await(c.turn)
		}
	}
}

// execute turns a panic into an error: one with an error of the operation's as it
// is, any other, which is a mistake of the program, with the operation's name
// and the place.
func (s *hostStream) execute(op Op) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error:
			err = fmt.Errorf("stream %s: %s: %w\n%s", s.name, Name(op), p, debug.Stack())
		case error:
			err = fmt.Errorf("stream %s: %w", s.name, p)
		default:
			err = fmt.Errorf("stream %s: %s: %v\n%s", s.name, Name(op), p, debug.Stack())
		}
	}()
	if err = s.exec.Run(op); err != nil && !s.inner {
		err = fmt.Errorf("stream %s: %w", s.name, err)
	}
	return err
}

// IndexError says that an operation met a number in memory (a token id, a
// target, a position, a start) that lies outside of its range.
type IndexError struct {
	Op               string // the operation's name
	Operand          string
	Index            int // element of the operand
	Value, Low, High int32
}

func (e *IndexError) Error() string {
	return fmt.Sprintf("%s: %s[%d] is %d, want %d to %d", e.Op, e.Operand, e.Index, e.Value, e.Low, e.High)
}

// hostEvent counts its Records. A Wait waits for the turn that was the last
// when it was queued.
type hostEvent struct {
	recorded atomic.Uint64

	mu    sync.Mutex
	cond  sync.Cond
	fired uint64
}

func newHostEvent() *hostEvent {
	e := &hostEvent{}
	e.cond.L = &e.mu
	return e
}

func (e *hostEvent) Done() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fired >= e.recorded.Load()
}

func (e *hostEvent) fire(turn uint64) {
	e.mu.Lock()
	e.fired = max(e.fired, turn)
	e.mu.Unlock()
	e.cond.Broadcast()
}

func (e *hostEvent) await(turn uint64) {
	e.mu.Lock()
	for e.fired < turn {
		e.cond.Wait()
	}
	e.mu.Unlock()
}
