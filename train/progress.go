package train

import (
	"fmt"
	"io"
	"math"
	"time"
)

// Console prints a run's progress: on a terminal one line that is written
// anew, elsewhere a line every few seconds. The zero value of every field but
// Out is useful.
type Console struct {
	Out      io.Writer
	Terminal bool
	// FLOPsPerToken over PeakFLOPS, both per second, is the share of the
	// machine's peak; 0 leaves it out.
	FLOPsPerToken, PeakFLOPS float64

	began, printed time.Time
	seconds        float64 // of training steps
	tokens         int64
	recent         rate
	open           bool // the terminal's line waits to be overwritten
}

// rate is tokens per second over about the last thirty seconds.
type rate struct{ tokens, seconds float64 }

func (r *rate) add(tokens, seconds float64) {
	keep := math.Exp(-seconds / 30)
	r.tokens, r.seconds = r.tokens*keep+tokens, r.seconds*keep+seconds
}

// Step implements Reporter.
func (c *Console) Step(r StepReport) error {
	now := time.Now()
	if c.began.IsZero() {
		c.began = now
	}
	c.tokens += r.Tokens
	c.seconds += r.Seconds
	c.recent.add(float64(r.Tokens), r.Seconds)
	every := 10 * time.Second
	if c.Terminal {
		every = 200 * time.Millisecond
	}
	last := r.Step == r.Steps
	if now.Sub(c.printed) < every && r.Step > 1 && !last {
		return nil
	}
	c.printed = now
	perSecond := c.recent.tokens / c.recent.seconds
	line := fmt.Sprintf("step %*d/%d  loss %.4f  %s tokens/s", digits(r.Steps), r.Step, r.Steps, r.Loss, count(perSecond))
	if c.PeakFLOPS > 0 {
		line += fmt.Sprintf("  %.0f%% of peak", 100*perSecond*c.FLOPsPerToken/c.PeakFLOPS)
	}
	if last {
		line += "  took " + short(c.seconds)
	} else {
		line += "  left " + short(c.seconds/float64(r.Step)*float64(r.Steps-r.Step))
	}
	return c.print(line, last)
}

// Evaluated implements Reporter.
func (c *Console) Evaluated(step int, e Evaluation) error {
	line := fmt.Sprintf("step %d  held-out loss %.4f", step, e.Loss)
	if !math.IsNaN(e.BitsPerByte) {
		line += fmt.Sprintf("  %.3f bits per byte", e.BitsPerByte)
	}
	return c.print(line, true)
}

// print writes a line; on a terminal one that is not to stay is overwritten by
// the next.
func (c *Console) print(line string, stay bool) error {
	var err error
	switch {
	case !c.Terminal:
		_, err = fmt.Fprintln(c.Out, line)
	case stay:
		_, err = fmt.Fprintf(c.Out, "\r\x1b[K%s\n", line)
	default:
		_, err = fmt.Fprintf(c.Out, "\r\x1b[K%s", line)
	}
	c.open = c.Terminal && !stay
	return err
}

// End ends the line that was to be overwritten, where the run ended early.
func (c *Console) End() error {
	if !c.open {
		return nil
	}
	c.open = false
	_, err := fmt.Fprintln(c.Out)
	return err
}

func digits(n int) int { return len(fmt.Sprint(n)) }

// count shortens a number: 950, 12.3k, 4.56M.
func count(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.2fM", x/1e6)
	case x >= 1e4:
		return fmt.Sprintf("%.1fk", x/1e3)
	}
	return fmt.Sprintf("%.0f", x)
}

// short writes seconds as 45s, 2m05s or 3h07m.
func short(seconds float64) string {
	s := int(math.Round(seconds))
	switch {
	case s >= 3600:
		return fmt.Sprintf("%dh%02dm", s/3600, s%3600/60)
	case s >= 60:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	}
	return fmt.Sprintf("%ds", s)
}
