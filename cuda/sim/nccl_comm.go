//go:build sim && cgo && linux

package sim

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// comm is one rank's end of a communicator.
type comm struct {
	m        *Machine
	ctx      *context
	rank     int
	ranks    int
	handle   uintptr
	name     string
	blocking bool

	// Under the machine's mutex.
	polls     int             // answers "in progress" that are to come
	then      func() error    // what is done after them
	finalized bool            // ncclCommFinalize has been called
	tail      <-chan struct{} // closed when its newest collective has ended

	stopped  chan struct{} // closed when it has been aborted or destroyed
	stop     sync.Once
	answered chan struct{} // closed when the hub has answered hello
	turn     chan struct{} // the hub says that a collective begins
	known    chan struct{} // closed when it is ready, or has failed
	meeting  sync.Mutex    // held in a collective

	mu     sync.Mutex // of what follows
	answer news       // the hub's, to hello
	line   *line      // nil before it has one
	joined bool       // all ranks have
	over   bool       // a rank has left
	async  NCCLResult
	why    string // async is not Success
}

// enter joins: it returns when the hub has taken the rank in, or refused it.
func (c *comm) enter(own *hub, who hello) error {
	conn, err := own.reach(who.ID)
	if err != nil {
		return err
	}
	l := newLine(conn)
	c.mu.Lock()
	c.line = l
	c.mu.Unlock()
	if isDone(c.stopped) {
		l.close()
	}
	c.m.nccl.listening.Go(func() { c.ended(l.listen(c.hear)) })
	if err = l.say(sayHello, who); err == nil {
		select {
		case <-c.answered:
			return c.admitted()
		case <-l.ended:
			err = errEnded
		case <-time.After(greeting):
			err = errors.New("no answer")
		}
	}
	if isDone(c.answered) { // and then the end, where it is a refusal
		return c.admitted()
	}
	return deny(NCCLRemoteError, "%s: who made the unique id does not answer: %v", c.name, err)
}

// admitted returns why the hub has refused it, nil where it has not.
func (c *comm) admitted() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.answer; n.Result != NCCLSuccess {
		return deny(n.Result, "%s: %s", c.name, n.Why)
	}
	return nil
}

// hear is what a hub says.
func (c *comm) hear(kind byte, words []byte) error {
	switch kind {
	case sayWelcome:
		n, err := understood[news](words)
		if err != nil {
			return err
		}
		c.tell(n)
		c.mu.Lock()
		defer c.mu.Unlock()
		if !isDone(c.answered) {
			c.answer = n
			close(c.answered)
			return nil
		}
	case sayReady:
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.joined {
			c.joined = true
			c.know()
			return nil
		}
	case sayGo:
		select {
		case c.turn <- struct{}{}:
			return nil
		default:
		}
	case sayNews:
		n, err := understood[news](words)
		if err == nil {
			c.tell(n)
		}
		return err
	case sayOver:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.over = true
		return nil
	}
	return fmt.Errorf("a frame of kind %d, which is out of place", kind)
}

// tell takes news to heart.
func (c *comm) tell(n news) {
	if n.Fault {
		c.m.report(&Fault{Device: c.ctx.device.number, Stream: c.name, Call: "what ranks do together", Err: errors.New(n.Why)})
	}
	c.fault(n.Result, n.Why)
}

// ended is the end of the connection. What comes after a rank has left is no news: nothing more can be done.
func (c *comm) ended(err error) {
	c.mu.Lock()
	over := c.over
	c.mu.Unlock()
	if !over && !isDone(c.stopped) {
		c.fault(NCCLRemoteError, fmt.Sprintf("the connection to who made the unique id has ended: %v", err))
	}
}

// state is how it is.
func (c *comm) state() NCCLResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.async == NCCLSuccess && !c.joined {
		return NCCLInProgress
	}
	return c.async
}

// reason is why it has failed.
func (c *comm) reason() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// fault gives it an error, which stays.
func (c *comm) fault(r NCCLResult, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.async == NCCLSuccess && r != NCCLSuccess {
		c.async, c.why = r, why
		c.know()
	}
}

// know ends the wait of who waits for all to join; mu is held.
func (c *comm) know() {
	if !isDone(c.known) {
		close(c.known)
	}
}

// end makes everything that waits for others stop waiting. The machine's mutex is not held.
func (c *comm) end() {
	c.stop.Do(func() {
		close(c.stopped)
		c.mu.Lock()
		l := c.line
		c.mu.Unlock()
		if l != nil {
			l.leave()
		}
	})
}

// share is what a rank brings to a collective.
type share struct {
	task
	send, recv span // of no allocation where this rank sends or receives nothing
}

// meet is a rank's part of a collective, in its stream. Where the others do not come, or fail, it lasts until the
// communicator is ended.
func (c *comm) meet(s *share) error {
	c.meeting.Lock()
	defer c.meeting.Unlock()
	var unwritten error
	for _, part := range []*span{&s.send, &s.recv} {
		if part.allocation == nil {
			continue
		}
		if _, err := part.bytes(); err != nil {
			return err // who does not come for that leaves the others waiting
		}
		if at := part.unwritten(); at >= 0 && part == &s.send {
			unwritten = &unnoticed{fmt.Sprintf("byte %d of %v goes to other ranks, and nobody has written it", at, part.allocation)}
		}
	}
	var gone *refusal
	switch err := c.exchange(s); {
	case errors.As(err, &gone):
		return err
	case err != nil:
		<-c.stopped // what an aborted collective leaves is nothing to rely on
		return nil
	}
	if s.recv.allocation != nil {
		s.recv.mark()
	}
	return unwritten
}

// exchange sends what the rank has to send, and receives what it is to receive.
func (c *comm) exchange(s *share) error {
	if isDone(c.stopped) {
		return net.ErrClosed
	}
	if err := c.line.say(sayTask, s.task); err != nil {
		return err
	}
	select {
	case <-c.turn:
	case <-c.stopped:
		return net.ErrClosed
	}
	for step := range s.steps(c.ranks) {
		if isDone(c.stopped) {
			return net.ErrClosed
		}
		if step.sends(c.rank) {
			b, err := s.send.bytes()
			if err == nil {
				err = c.line.send(b[step.sendAt:][:step.n])
			}
			if err != nil {
				return err
			}
		}
		if step.receives(c.rank) {
			b, err := s.recv.bytes()
			if err == nil {
				err = c.line.receive(b[step.recvAt:][:step.n])
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
