package scenario

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/record"
)

// WriteFile writes the result as one JSON file, whole or not at all.
func (r *Result) WriteFile(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return record.WriteFileAtomic(path, append(text, '\n'), 0o644)
}

// WriteSummary writes the figures, a line each.
func (r *Result) WriteSummary(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%s: %s\n", r.Scenario.Name, r.Scenario.Title)
	for _, f := range r.Ratios {
		what := f.Of + " against " + f.Against
		if f.By == ByMemory {
			what += ", memory"
		}
		line(w, what, "×", f.Spread, f.Failure, f.Firm, f.Aim, f.Verdict)
	}
	for _, f := range r.Shares {
		line(w, f.Of+", share of its limit", "", f.Spread, f.Failure, f.Firm, f.Aim, f.Verdict)
	}
	if d := r.Disagreement; d != nil {
		fmt.Fprintf(w, "  losses of %s and %s\tdiffer by %.1e at the most\tmay by %.1e\n", d.A, d.B, d.Relative, r.Scenario.Agree)
	}
	return w.Flush() // which has all earlier errors
}

func line(w io.Writer, what, unit string, s bench.Spread, failure string, firm, aim float64, v Verdict) {
	figure := failure
	if failure == "" {
		figure = fmt.Sprintf("%.3g%s (%.3g–%.3g)", s.Median, unit, s.Low, s.High)
	}
	fmt.Fprintf(w, "  %s\t%s", what, figure)
	if firm != 0 {
		fmt.Fprintf(w, "\tfirm %g", firm)
	}
	if aim != 0 {
		fmt.Fprintf(w, ", aim %g", aim)
	}
	if v != NoTarget {
		fmt.Fprintf(w, "\t%s", map[Verdict]string{Missed: "missed", Firm: "firm reached", Aimed: "aim reached"}[v])
	}
	fmt.Fprintln(w)
}

// summary says in a few words what came of a run.
func (r *Run) summary() string {
	switch {
	case r.Failure != nil && r.Failure.Reason == Failed:
		return Failed + ": " + lastLine(r.Failure.Text)
	case r.Failure != nil:
		return r.Failure.Reason
	case len(r.Sample.Cases) > 4:
		return fmt.Sprintf("%d cases in %.0f s", len(r.Sample.Cases), r.Seconds)
	}
	var parts []string
	for _, c := range r.Sample.Cases {
		text := fmt.Sprintf("%.3g s", bench.SpreadOf(c.Seconds).Median)
		if c.Tokens > 0 {
			text += " a step"
		}
		if len(r.Sample.Cases) > 1 {
			text = c.Name + " " + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// lastLine returns the end of a text, where programs say what was wrong.
func lastLine(text string) string {
	return text[strings.LastIndexByte(text, '\n')+1:]
}
