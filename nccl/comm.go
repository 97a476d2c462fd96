//go:build cgo && linux

package nccl

// #include "call.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// slotBytes is the room for the text by which a rank says what it binds.
const slotBytes = 256

// flightLen is how many collectives that have not ended are watched, the oldest ones.
const flightLen = 64

// Comm is a rank's end of a group that NCCL connects. It implements collective.Comm.
type Comm struct {
	library  *Library
	device   Device
	name     string
	where    string // in messages
	ranks    []int  // by place
	place    int
	deadline time.Duration
	joining  time.Duration // the most that NCCL is given to connect ranks

	slots, host, cell device.Buffer
	texts             [2]*C.char // the network's name and this one's, which NCCL may keep

	binding  sync.Mutex // held while ranks agree on what they bind
	stream   device.Stream
	agreeing []device.Op

	calls sync.Mutex // held in calls of NCCL's

	mu               sync.Mutex // of all that follows
	handle           C.ncclComm_t
	err              error // why it is broken
	held             bool  // NCCL does not let go of it
	flight           [flightLen]started
	first, under     int // the oldest one's place in flight, and how many there are
	issued, finished int // collectives

	end         func(error) // ends the other groups
	wake        chan struct{}
	done, ended chan struct{} // the watchdog is to end, and has ended
}

// started is a collective that has not ended.
type started struct {
	op         *operation
	number     int
	begin, end device.Event
	launched   bool      // NCCL has taken it, and end is recorded
	since      time.Time // when its turn in the stream had come, or NCCL has taken it since, as the watchdog saw it
}

// Rank implements collective.Comm.
func (c *Comm) Rank() int { return c.place }

// Size implements collective.Comm.
func (c *Comm) Size() int { return len(c.ranks) }

// Abort implements collective.Comm, for this rank alone: NCCL does not tell the others.
func (c *Comm) Abort(reason error) { _ = c.fail(nil, 0, reason) }

// Err returns why the communicator is broken, nil where it is not. It implements cuda.Failure.
func (c *Comm) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail breaks the communicator, unless it is broken. It returns the error that broke it. An operation that is
// not named is the oldest that is under way, if one is.
func (c *Comm) fail(o *operation, waited time.Duration, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if o == nil && c.under > 0 {
		o = c.flight[c.first].op
	}
	if o != nil {
		c.err = &collective.Error{Rank: c.ranks[c.place], Kind: o.kind, Name: o.name, Number: c.finished, Waited: waited, Err: err}
	} else {
		c.err = fmt.Errorf("%s: %w", c.where, err)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return c.err
}

// Bind implements collective.Comm. What ranks bind is compared by an all-gather, which also connects them before
// the first step.
func (c *Comm) Bind(op collective.Op) ([]device.Op, error) {
	o, err := c.bound(op)
	if err != nil {
		return nil, err
	}
	c.binding.Lock()
	defer c.binding.Unlock()
	slot := func(r int) []byte { return c.host.Host[r*slotBytes : (r+1)*slotBytes] }
	clear(slot(c.place))
	copy(slot(c.place), o.about)
	for _, step := range c.agreeing {
		c.stream.Launch(step)
	}
	if err := c.stream.Sync(); err != nil {
		return nil, fmt.Errorf("%s: to bind %s: %w", c.where, o.about, err)
	}
	for place, r := range c.ranks {
		if theirs := C.GoString((*C.char)(unsafe.Pointer(&slot(place)[0]))); theirs != o.about {
			return nil, c.fail(o, 0, fmt.Errorf("rank %d has bound %s where this rank has %s: their plans differ", r, theirs, o.about))
		}
	}
	return []device.Op{o}, nil
}

// agreement returns the operations that give every rank the texts of all.
func (c *Comm) agreement() []device.Op {
	const words = slotBytes / 4
	n := int64(len(c.ranks)) * words
	host, there := c.host.In(device.I32, 0, n), c.slots.In(device.I32, 0, n)
	at := int64(c.place) * words
	own := there.Slice(at, words)
	gather := &operation{comm: c, kind: "all-gather", name: "what ranks bind", silent: true}
	gather.calls = []C.gofsdp_collective{call(C.ALL_GATHER, own, there, words, 0)}
	return []device.Op{
		&device.Copy{Src: host.Slice(at, words), Dst: own, N: words},
		gather,
		&device.Copy{Src: there, Dst: host, N: int(n)},
	}
}

// Close leaves the group, once nothing is under way: all ranks must, or the deadline passes. It is to be called
// before the device's. A communicator that is broken is left at once. Where NCCL does not let go of it, the error
// is errHeld, and its memory stays: the process has to end.
func (c *Comm) Close() error {
	if c.end != nil {
		close(c.done)
		<-c.ended
	}
	var err error
	if c.Err() == nil {
		err = c.finish()
	}
	return errors.Join(err, c.depart())
}

// depart aborts what there is still, and gives the memory back.
func (c *Comm) depart() error {
	c.abandon()
	c.mu.Lock()
	held := c.held
	c.mu.Unlock()
	if held {
		return fmt.Errorf("%s: %w", c.where, errHeld)
	}
	return c.release()
}

// errHeld is a communicator that stays.
var errHeld = errors.New("NCCL was told to abort the communicator and has not done so within the deadline, as it may where a peer has not aborted its end; this process has to end")

// finish lets NCCL complete what is under way, and gives the communicator back.
func (c *Comm) finish() error {
	table := c.library.table
	step := func(call string, r C.ncclResult_t) error {
		for began := time.Now(); r == inProgress; r = C.gofsdp_settle(table, c.handle) {
			if err := c.Err(); err != nil {
				return err
			}
			if time.Since(began) > c.deadline {
				return fmt.Errorf("%s: %s: not ended after %v: %w", c.where, call, c.deadline, collective.ErrDeadline)
			}
		}
		if r != success {
			return c.refused(r, call, "")
		}
		return nil
	}
	var r C.ncclResult_t
	err := c.device.Do(func() error { r = C.call_ncclCommFinalize(table, c.handle); return nil })
	if err == nil {
		err = step("ncclCommFinalize", r)
	}
	if err == nil {
		// It waits, also where other calls do not (blocking = 0), but after Finalize for nobody else.
		err = c.device.Do(func() error { r = C.call_ncclCommDestroy(table, c.take()); return nil })
	}
	if err == nil && r != success { // nothing may be asked of it any more
		err = c.library.failure(r, "ncclCommDestroy", c.where, nil)
	}
	return err
}

// take returns the handle, and leaves none.
func (c *Comm) take() C.ncclComm_t {
	c.mu.Lock()
	defer c.mu.Unlock()
	handle := c.handle
	c.handle = nil
	return handle
}

// patience is how long a call of NCCL's on another thread is waited for before a communicator is aborted.
const patience = time.Second

// abandon aborts the communicator, where there is one still: its kernels end, and what they have written is
// nothing to rely on. It goes by no other thread: that of the device may be held up by the GPU, whose queue is
// full of what waits for a collective. A call there gets patience; one that does not wait for others (blocking
// = 0) may be aborted from here all the same.
//
// ncclCommAbort itself waits, whatever the communicator's blocking says (ncclAsyncLaunch in NCCL's group.cc):
// its kernels are told at once, but its memory it frees when nothing on the GPU runs, and its threads when they
// are done with their peers, which may be never (NCCL's issue 863). So it is left to itself after the deadline.
func (c *Comm) abandon() {
	locked := c.calls.TryLock()
	for began := time.Now(); !locked && time.Since(began) < patience; locked = c.calls.TryLock() {
		time.Sleep(time.Millisecond)
	}
	handle := c.take()
	if locked {
		c.calls.Unlock() // without a handle there are no more calls
	}
	if handle == nil {
		return
	}
	aborted := make(chan struct{})
	go func() {
		defer close(aborted)
		// Its result changes nothing: the handle is gone. On a thread without the context it would make one on GPU
		// 0, of half a GB, where another rank may have no room for it.
		_ = c.device.Within(func() error { C.call_ncclCommAbort(c.library.table, handle); return nil })
	}()
	select {
	case <-aborted:
	case <-time.After(c.deadline):
		c.mu.Lock()
		defer c.mu.Unlock()
		c.held = true
	}
}
