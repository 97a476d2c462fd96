package main

import (
	"fmt"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

// traceFlag stands for run.trace. Its value may be left out.
type traceFlag string

// steps is what looks like a value of the flag where one may follow.
var steps = regexp.MustCompile(`^[0-9][0-9-]*$`)

// Decode implements kong.MapperValue.
func (f *traceFlag) Decode(ctx *kong.DecodeContext) error {
	next := ctx.Scan.Peek()
	if next.Type != kong.FlagValueToken && !(next.Type == kong.UntypedToken && steps.MatchString(next.String())) {
		*f = traceFlag(train.DefaultWindow.String())
		return nil
	}
	if *f = traceFlag(ctx.Scan.Pop().String()); *f == "" {
		return fmt.Errorf("no steps are named; say --trace alone for %v", train.DefaultWindow)
	}
	return nil
}

// assignments returns what the flag sets.
func (f traceFlag) assignments() []assignment {
	if f == "" {
		return nil
	}
	return []assignment{{"--trace", "run.trace=" + string(f)}}
}

// window returns the steps to be traced, which have been checked.
func window(r config.Run) train.Window {
	w, err := train.ParseWindow(r.Trace)
	if err != nil {
		panic(err)
	}
	return w
}

// trace gives a run that is about to train its trace, where one is asked for. What
// hinders it from being written ends no run: it is said.
func (f *flight) trace(r *train.Run, of config.Run) {
	r.TraceSteps(window(of), func(t *record.Trace) {
		if err := f.dir.WriteTracePart(t); err != nil {
			fmt.Fprintf(f.app.out, "no trace of rank %d: %s\n", f.rank, plain(err.Error()))
		}
	})
}

// traced makes one trace of what ranks have left, where one is asked for, and
// says where the time of its steps went.
func (j *job) traced() {
	w := window(j.cfg.Run)
	if w == (train.Window{}) {
		return
	}
	t, err := j.dir.MergeTrace()
	switch {
	case err != nil:
		j.printf("no trace: %s\n", plain(err.Error()))
	case t == nil:
		j.printf("no trace: the run ended before step %d\n", w.First)
	default:
		j.printf("%s", traceTable(t, j.dir.TraceFile()))
	}
}

// traceTable shows where the time of a trace's steps went, by rank.
func traceTable(t *record.Trace, path string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "trace of %s", train.Number(t.World, "rank"))
	if n := len(t.Ranks); n < t.World {
		fmt.Fprintf(&out, ", of which %d left one", n)
	}
	fmt.Fprintf(&out, ": %s (open it at ui.perfetto.dev)\n", path)
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "rank\tsteps\tseconds a step\tcomputing\tfor gathers\tfor reductions\tagreeing\thost\tstarting\t\n")
	for _, r := range t.Ranks {
		s := r.Mean()
		fmt.Fprintf(w, "%d\t%d\t%.4g\t", r.Rank, len(r.Steps), s.Seconds)
		for _, share := range []float64{s.Compute, s.Gather, s.Reduce, s.Agree, s.Host, s.Start} {
			fmt.Fprintf(w, "%.1f%%\t", 100*share)
		}
		fmt.Fprintf(w, "\n")
	}
	w.Flush()
	return out.String()
}
