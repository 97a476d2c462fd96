package launcher

import (
	"sync/atomic"
	"time"
)

// timing divides a deadline: so much silence is a loss, then grace is left to
// end well, before the rest goes to killing.
type timing struct{ every, silence, grace time.Duration }

func timingOf(deadline time.Duration) timing {
	return timing{every: deadline / 20, silence: deadline * 7 / 10, grace: deadline * 2 / 10}
}

// pulse is when somebody was last heard. While what it said is being passed on,
// it is not silent: then the one who waits is the reader.
type pulse struct {
	last atomic.Int64 // since began
	busy atomic.Int32
}

var began = time.Now()

func newPulse() *pulse {
	p := &pulse{}
	p.beat()
	return p
}

func (p *pulse) beat() { p.last.Store(int64(time.Since(began))) }

// during counts as heard while f runs.
func (p *pulse) during(f func()) {
	p.busy.Add(1)
	f()
	p.beat()
	p.busy.Add(-1)
}

func (p *pulse) silence() time.Duration {
	if p.busy.Load() > 0 {
		return 0
	}
	return time.Since(began) - time.Duration(p.last.Load())
}

// wakefulness notices that this very process did not run for a while.
type wakefulness struct {
	timing
	last time.Time
}

// tick is called at every event, which come at least each t.every. It returns
// how long the process slept if that is a loss, and whether others may be
// judged: after a shorter sleep they were not heard for want of ears, and get
// until the next event.
func (w *wakefulness) tick() (slept time.Duration, judge bool) {
	now := time.Now()
	gap := now.Sub(w.last)
	w.last = now
	if gap > w.silence {
		return gap, false
	}
	return 0, gap < 3*w.every
}

// send writes what comes from queue until it is closed, a write fails or done is
// closed, and a beat each time that nothing was written for every.
func send[M any](done <-chan struct{}, queue <-chan M, every time.Duration, beat M, write func(M) error) error {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		m := beat
		select {
		case <-done:
			return nil
		case next, more := <-queue:
			if !more {
				return nil
			}
			m = next
		case <-ticks.C:
		}
		if err := write(m); err != nil {
			return err
		}
	}
}
