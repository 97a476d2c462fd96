//go:build cgo && linux

package nccl

// #include "call.h"
import "C"

import (
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/collective"
)

// watch starts the watchdog. Where the communicator breaks, end ends what else depends on it.
func (c *Comm) watch(end func(error)) {
	c.end = end
	go func() {
		defer close(c.ended)
		tick := time.NewTicker(min(max(c.deadline/20, time.Millisecond), 100*time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-c.done:
				return
			case <-c.wake:
			case <-tick.C:
			}
			if err := c.look(); err != nil {
				c.end(err) // all at once: while one of a GPU's is left, the kernels of another may be waited for
				c.abandon()
				return
			}
		}
	}()
}

// look returns why the communicator is broken: by an error that NCCL has of earlier work, or because a
// collective, whose turn in its stream has come, has waited for too long.
func (c *Comm) look() error {
	if err := c.Err(); err != nil {
		return err // before anything is asked of the driver, which may be held up
	}
	if waited, most := c.waited(); waited > most {
		return c.fail(nil, waited, fmt.Errorf("after %v it has not ended, and NCCL does not tell which of ranks %v did not come: %w", waited.Round(time.Millisecond), c.ranks, collective.ErrDeadline))
	}
	if !c.calls.TryLock() {
		return nil // a call is under way, which finds errors itself
	}
	defer c.calls.Unlock()
	if r := C.gofsdp_state(c.library.table, c.handle); r != success && r != inProgress {
		return c.fail(nil, 0, c.refused(r, "ncclCommGetAsyncError", ""))
	}
	return nil
}

// waited is how long the oldest collective that has not ended has had its turn, and how long it may. One that NCCL
// has not taken yet gets more: NCCL connects ranks only when a collective first needs it (NCCL_RUNTIME_CONNECT), in
// which it finds networks, makes memory known to them, and waits for ranks that come later. What holds a call up
// behind a full queue of the GPU's is an older collective, for which the deadline holds.
func (c *Comm) waited() (waited, most time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave()
	if c.under == 0 {
		return 0, c.deadline
	}
	s := &c.flight[c.first]
	switch {
	case !s.begin.Done():
		return 0, c.deadline
	case s.since.IsZero():
		s.since = time.Now()
	}
	if most = c.deadline; !s.launched {
		most = max(c.joining, c.deadline)
	}
	return time.Since(s.since), most
}

// leave takes out what has ended; mu is held.
func (c *Comm) leave() {
	for c.under > 0 {
		s := &c.flight[c.first]
		if !s.launched || !s.end.Done() {
			return
		}
		if c.finished = s.number; !s.op.silent {
			c.finished++
		}
		c.first, c.under = (c.first+1)%flightLen, c.under-1
	}
}
