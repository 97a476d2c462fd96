package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// TraceFormat is the format of a trace's file that this package writes.
const TraceFormat = 1

// Trace is what ranks did over some steps: a JSON object in Chrome's trace event
// format, for Perfetto and chrome://tracing, with what is known besides. In
// events a process is a rank, and a thread is one of its streams.
// The format is that of "Trace Event Format" by the Chromium project.
type Trace struct {
	Format int          `json:"format"`
	Unit   string       `json:"displayTimeUnit"` // of the viewer: "ms"
	Clock  string       `json:"clock"`           // TraceClock
	World  int          `json:"world"`           // ranks of the run
	Ranks  []TraceRank  `json:"ranks"`           // those that left a part
	Events []TraceEvent `json:"traceEvents"`
}

// TraceClock says in a trace's file what its times are worth.
const TraceClock = "Times are microseconds since the origin. Each rank read its machine's wall clock once, as its process began, and went on by the machine's monotonic clock: " +
	"ranks of one machine have one time, those of several differ by as much as the machines' clocks."

// TraceRank is a rank's part of a trace.
type TraceRank struct {
	Rank   int         `json:"rank"`
	Origin time.Time   `json:"origin"` // of the times of the file's events
	Steps  []TraceStep `json:"steps"`  // those that ended
}

// TraceStep is where the time of a step went. All but Seconds are shares of it
// that add up to one; each but Compute is time in which the stream that computes
// had nothing to run.
type TraceStep struct {
	Step    int     `json:"step"` // counted from 1
	Seconds float64 `json:"seconds"`
	Compute float64 `json:"compute"` // it runs an operation that is no collective
	Gather  float64 `json:"gather"`  // it waits for a gather
	Reduce  float64 `json:"reduce"`  // it waits for a reduction of gradients
	Agree   float64 `json:"agree"`   // it is in a collective of its own, by which ranks agree
	Host    float64 `json:"host"`    // the loop has launched nothing
	Start   float64 `json:"start"`   // what it waited for is there and it has yet to begin
}

// The phases of an event.
const (
	TraceComplete = "X" // an operation, with a begin and a duration
	TraceMeta     = "M" // the name or place of a rank or stream
	TraceFlowFrom = "s" // an arrow's beginning
	TraceFlowTo   = "f" // its end
)

// TraceEvent is one of a trace's events.
type TraceEvent struct {
	Name     string          `json:"name"`
	Category string          `json:"cat,omitempty"`
	Phase    string          `json:"ph"`
	At       Micros          `json:"ts"`
	Duration *Micros         `json:"dur,omitempty"` // of a complete one
	Rank     int             `json:"pid"`
	Stream   int             `json:"tid"`
	Flow     int64           `json:"id,omitempty"` // which arrow
	Binds    string          `json:"bp,omitempty"` // "e": to the event in which the arrow ends
	Args     json.RawMessage `json:"args,omitempty"`
}

// Micros is a duration that is written in microseconds, to the nanosecond.
type Micros time.Duration

// MarshalJSON implements json.Marshaler.
func (m Micros) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(m)/1e3, 'f', 3, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Micros) UnmarshalJSON(text []byte) error {
	us, err := strconv.ParseFloat(string(text), 64)
	*m = Micros(math.Round(us * 1e3))
	return err
}

// TraceFile returns the path of the run's trace. It is there only where one was
// asked for.
func (d *Dir) TraceFile() string { return filepath.Join(d.path, "trace.json") }

// TracePart returns the path of a rank's part of the trace, until MergeTrace.
func (d *Dir) TracePart(rank int) string {
	return filepath.Join(d.traceDir(), fmt.Sprintf("rank-%03d.json", rank))
}

func (d *Dir) traceDir() string { return filepath.Join(d.path, "trace") }

// WriteTracePart writes a rank's part of the trace, which is a trace itself.
func (d *Dir) WriteTracePart(t *Trace) error {
	if err := os.MkdirAll(d.traceDir(), 0o777); err != nil {
		return explain(err)
	}
	return writeTrace(d.TracePart(t.Ranks[0].Rank), t)
}

// MergeTrace makes the run's trace of the parts that its ranks have left, takes
// the parts away and returns the trace without its events; nil where no rank has
// left one. The times of all count from the earliest of the parts.
func (d *Dir) MergeTrace() (*Trace, error) {
	files, err := filepath.Glob(filepath.Join(d.traceDir(), "rank-*.json"))
	if err != nil || len(files) == 0 {
		return nil, err
	}
	var parts []*Trace
	for _, file := range files {
		part := &Trace{}
		if err := readJSON(file, TraceFormat, part); err != nil {
			return nil, err
		}
		if len(part.Ranks) != 1 {
			return nil, fmt.Errorf("reading %s: it is of %d ranks, not the part of one", file, len(part.Ranks))
		}
		parts = append(parts, part)
	}
	slices.SortFunc(parts, func(a, b *Trace) int { return a.Ranks[0].Rank - b.Ranks[0].Rank })
	all := mergeTraces(parts)
	if err := writeTrace(d.TraceFile(), all); err != nil {
		return nil, err
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			return nil, err
		}
	}
	all.Events = nil
	// What else is there, such as the rest of a process that was killed, stays.
	if err := os.Remove(d.traceDir()); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return all, nil
}

func mergeTraces(parts []*Trace) *Trace {
	all := &Trace{World: parts[0].World}
	origin := parts[0].Ranks[0].Origin
	for _, p := range parts {
		if p.Ranks[0].Origin.Before(origin) {
			origin = p.Ranks[0].Origin
		}
	}
	for _, p := range parts {
		later := Micros(p.Ranks[0].Origin.Sub(origin))
		for _, e := range p.Events {
			if e.Phase != TraceMeta {
				e.At += later
			}
			all.Events = append(all.Events, e)
		}
		p.Ranks[0].Origin = origin
		all.Ranks = append(all.Ranks, p.Ranks[0])
	}
	return all
}

// ReadTrace reads the run's trace. A newer format than TraceFormat is refused.
func (d *Dir) ReadTrace() (*Trace, error) {
	t := &Trace{}
	return t, readJSON(d.TraceFile(), TraceFormat, t)
}

// writeTrace writes an event a line.
func writeTrace(path string, t *Trace) error {
	head := *t
	head.Format, head.Unit, head.Clock, head.Events = TraceFormat, "ms", TraceClock, []TraceEvent{}
	text, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	text = text[:len(text)-len("]}")] // the events are the last key
	for i, e := range t.Events {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, '\n'), line...)
	}
	return WriteFileAtomic(path, append(text, "\n]}\n"...), 0o666)
}

// Mean returns where the time of the rank's steps went, all of them together, with
// the mean of their seconds. Its number is the first's.
func (r TraceRank) Mean() (mean TraceStep) {
	for i, s := range r.Steps {
		if i == 0 {
			mean.Step = s.Step
		}
		mean.Seconds += s.Seconds
		for to, share := range map[*float64]float64{
			&mean.Compute: s.Compute, &mean.Gather: s.Gather, &mean.Reduce: s.Reduce,
			&mean.Agree: s.Agree, &mean.Host: s.Host, &mean.Start: s.Start,
		} {
			*to += share * s.Seconds
		}
	}
	if mean.Seconds > 0 {
		for _, share := range []*float64{&mean.Compute, &mean.Gather, &mean.Reduce, &mean.Agree, &mean.Host, &mean.Start} {
			*share /= mean.Seconds
		}
		mean.Seconds /= float64(len(r.Steps))
	}
	return mean
}
