package train

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
)

// Window is the steps of a run that are traced, counted from 1 and both among
// them. The zero value is none.
type Window struct{ First, Last int }

// Where a window begins of which only the length is given, behind the steps in
// which memory is touched for the first time; how long it is where not even that
// is given; and how long it may be, since a rank writes all of it at once.
const (
	traceFirst  = 3
	traceLength = 3
	traceMost   = 100
)

// DefaultWindow is that of a user who names none.
var DefaultWindow = Window{traceFirst, traceFirst + traceLength - 1}

// ParseWindow reads a window: FIRST-LAST, or a number of steps, which begin with
// the third; nothing is none.
func ParseWindow(text string) (w Window, err error) {
	if text == "" {
		return w, nil
	}
	first, last, both := strings.Cut(text, "-")
	w.First, w.Last = number(first), number(last)
	if !both {
		w = Window{traceFirst, number(first) + traceFirst - 1}
	}
	switch n := w.Last - w.First + 1; {
	case w.First < 1 || w.Last < 1 || !both && number(first) < 1:
		err = fmt.Errorf("%q is neither a number of steps nor the first and the last of them, counted from 1, such as %v", text, DefaultWindow)
	case n < 1:
		err = fmt.Errorf("%s: the last step is before the first", text)
	case n > traceMost:
		err = fmt.Errorf("%s: %d steps are more than the %d that a trace holds", text, n, traceMost)
	}
	return w, err
}

// number reads a positive number; 0 is none.
func number(text string) int {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// String returns the window as ParseWindow reads it.
func (w Window) String() string {
	if w == (Window{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", w.First, w.Last)
}

// CheckTrace refuses a window of which the run has no step, and any where devices
// cannot be observed.
func (r *Run) CheckTrace(w Window) error {
	if w != (Window{}) && r.apart {
		return fmt.Errorf("run.trace: what a GPU does is not timed yet; leave it out, or trace a run on CPUs (scaling.device: cpu)")
	}
	if steps := r.Work.Train.StepsOver(r.Data.Train); w.First > steps {
		return fmt.Errorf("run.trace: %v begins with step %d of a run of %d; name earlier ones, such as 1-%d", w, w.First, steps, steps)
	}
	return nil
}

// TraceSteps makes Train keep, in a window of steps, all operations of the rank's
// streams and the phases of the loop. When the window has passed, or the run ends
// in it, however, write is called with this rank's part, once.
func (r *Run) TraceSteps(w Window, write func(*record.Trace)) {
	if w == (Window{}) {
		r.trace = nil
		return
	}
	r.trace = &trace{window: w, flight: r.flight, write: func(t *trace) {
		write(tracePart(r.Plan.Rank, r.Plan.Mesh.Size(), t.steps, t.phases, t.flight.Traced()))
	}}
}

// trace follows a rank's run through a window of steps. One goroutine uses it. A
// nil one does nothing.
type trace struct {
	window Window
	flight *fsdp.Flight
	write  func(*trace)
	on     bool

	steps  []span // of the window; the last has no end while it runs
	phases []span // one after the other
}

// span is a step or a phase.
type span struct {
	name       string // of a phase
	step       int
	begun, end time.Time
}

// begin says that a step begins.
func (t *trace) begin(step int) {
	if t == nil {
		return
	}
	if step == t.window.First {
		t.on = true
		t.flight.Trace()
	}
	if t.on {
		t.steps = append(t.steps, span{step: step, begun: time.Now()})
	}
}

// phase says what the loop does from now on.
func (t *trace) phase(name string) {
	if t == nil || !t.on {
		return
	}
	now := time.Now()
	t.pause(now)
	t.phases = append(t.phases, span{name: name, step: t.steps[len(t.steps)-1].step, begun: now})
}

// pause ends the phase.
func (t *trace) pause(now time.Time) {
	if n := len(t.phases); n > 0 && t.phases[n-1].end.IsZero() {
		t.phases[n-1].end = now
	}
}

// end says that the step has ended, and what follows is not of it.
func (t *trace) end() {
	if t == nil || !t.on {
		return
	}
	t.phase("report")
	t.steps[len(t.steps)-1].end = t.phases[len(t.phases)-1].begun
}

// reported says that all have been told of a step, of so many of the run.
func (t *trace) reported(step, of int) {
	if t != nil && (step == t.window.Last || step == of) {
		t.close()
	}
}

// close ends the trace, wherever the run is.
func (t *trace) close() {
	if t == nil || !t.on {
		return
	}
	t.on = false
	t.pause(time.Now())
	t.write(t)
}
