package record

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// FlightFormat is the format of a flight recorder's file that this package
// writes.
const FlightFormat = 1

// Flight is what a rank's flight recorder held when the run failed: the last
// operations of each of its streams.
type Flight struct {
	Format  int              `json:"format"`
	Rank    int              `json:"rank"`
	World   int              `json:"world"` // ranks
	Steps   int              `json:"steps"` // optimizer steps done
	Time    time.Time        `json:"time"`
	Reason  string           `json:"reason"`
	Groups  map[string][]int `json:"groups,omitempty"` // the ranks of its group, itself among them, by axis
	Streams []FlightStream   `json:"streams"`
	Unseen  bool             `json:"unseen,omitempty"` // its device does not show what it is at: of its streams nothing is here
}

// FlightStream is a stream, with those operations that ended last, the one
// under way and those that were next, in the order of launches.
type FlightStream struct {
	Name     string            `json:"name"`
	Launched int64             `json:"launched"` // operations in all
	Queued   int64             `json:"queued"`   // of them, those that had not begun
	Ops      []FlightOperation `json:"operations"`
}

// FlightOperation is one operation of a stream.
type FlightOperation struct {
	Number     int64  `json:"number"` // on the stream, from 0
	Program    string `json:"program"`
	Step       int    `json:"step"` // of the program, from 0
	Unit       string `json:"unit"`
	Cut        string `json:"cut"`
	Operation  string `json:"operation"`            // "MatMul", "all-gather of block 3 weights"
	Group      string `json:"group,omitempty"`      // of a collective: what it does, and the axis: "gather within"
	Collective int64  `json:"collective,omitempty"` // of a collective: its number in the group, from 0, alike on all ranks
	Bytes      int64  `json:"bytes"`
	State      string `json:"state"`               // one of the Flight constants
	WaitsFor   string `json:"waits_for,omitempty"` // of one that waits: the streams that it comes after
	// A collective has several parts. The first waits for the others to come, the
	// last for them to be done. Part is the last that has begun, 0 for none.
	Part   int       `json:"part"`
	Parts  int       `json:"parts"`
	Queued time.Time `json:"queued"`
	Begun  time.Time `json:"begun,omitzero"`
	Ended  time.Time `json:"ended,omitzero"`
}

// The states of an operation. A queued operation that is the next of its stream
// waits.
const (
	FlightQueued   = "queued"
	FlightWaiting  = "waiting"
	FlightUnderWay = "under way"
	FlightDone     = "done"
	FlightFailed   = "failed"
	FlightSkipped  = "skipped" // since an earlier one failed
)

// FlightFile returns the path of a rank's flight recorder. It is there only
// where the rank saw the run fail.
func (d *Dir) FlightFile(rank int) string {
	return filepath.Join(d.LogsDir(), fmt.Sprintf("flight-rank-%03d.json", rank))
}

// WriteFlight writes a rank's flight recorder.
func (d *Dir) WriteFlight(f *Flight) error {
	f.Format = FlightFormat
	return writeJSON(d.FlightFile(f.Rank), f)
}

// ReadFlights reads all flight recorders that the run left, by rank. A newer
// format than FlightFormat is refused.
func (d *Dir) ReadFlights() ([]*Flight, error) {
	files, err := filepath.Glob(filepath.Join(d.LogsDir(), "flight-rank-*.json"))
	if err != nil {
		return nil, err
	}
	var all []*Flight
	for _, file := range files {
		f := &Flight{}
		if err := readJSON(file, FlightFormat, f); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *Flight) int { return a.Rank - b.Rank })
	return all, nil
}

// at returns where the stream stands: its operation under way, else the last
// that failed, else the one that waits; nil where it has nothing to do.
func (s *FlightStream) at() *FlightOperation {
	for _, state := range []string{FlightUnderWay, FlightFailed, FlightWaiting} {
		for i := len(s.Ops) - 1; i >= 0; i-- {
			if s.Ops[i].State == state {
				return &s.Ops[i]
			}
		}
	}
	return nil
}

// At says in a few words where the rank stood, such as "waiting in all-gather of
// block 3 weights, number 412, for 10.0 s". Of several streams it speaks of the
// one with the oldest collective, since the others mostly wait for that; else of
// one that runs an operation.
func (f *Flight) At() string {
	var best *FlightOperation
	rank := func(o *FlightOperation) int {
		switch {
		case o.State == FlightWaiting:
			return 2
		case o.Group == "":
			return 1
		}
		return 0
	}
	for i := range f.Streams {
		o := f.Streams[i].at()
		if o == nil {
			continue
		}
		if best == nil || rank(o) < rank(best) || rank(o) == rank(best) && o.Begun.Before(best.Begun) {
			best = o
		}
	}
	switch {
	case best == nil && f.Unseen:
		return "where its GPU stood is not known"
	case best == nil:
		return f.idle()
	}
	return best.stands() + best.since(f.Time)
}

// idle says what a rank did last that waits for nothing.
func (f *Flight) idle() string {
	var last FlightOperation
	for _, s := range f.Streams {
		if n := len(s.Ops); n > 0 && s.Ops[n-1].Ended.After(last.Ended) {
			last = s.Ops[n-1]
		}
	}
	switch {
	case last.Program == "":
		return "before its first operation"
	case last.State == FlightSkipped:
		return "giving up " + last.Program
	}
	return fmt.Sprintf("between programs, since %s ended%s", last.Program, seconds(f.Time.Sub(last.Ended), ", for "))
}

// stands says what state an operation is in.
func (o *FlightOperation) stands() string {
	name := o.Operation
	if o.Group != "" {
		name += fmt.Sprintf(", number %d", o.Collective)
	} else {
		name += fmt.Sprintf(" of %s, %s", o.Unit, o.Cut)
	}
	switch {
	case o.State == FlightUnderWay && o.Group != "":
		return "waiting in " + name
	case o.State == FlightUnderWay:
		return "in " + name
	case o.State == FlightFailed:
		return "failed in " + name
	case o.WaitsFor != "":
		return "before " + name + ", which waits for stream " + o.WaitsFor
	}
	return "before " + name
}

// since says for how long it has been so at a time.
func (o *FlightOperation) since(now time.Time) string {
	switch o.State {
	case FlightUnderWay:
		return seconds(now.Sub(o.Begun), ", for ")
	case FlightFailed:
		return seconds(o.Ended.Sub(o.Begun), ", after ")
	}
	return ""
}

// seconds writes a duration behind a word: seconds, or milliseconds below one.
func seconds(d time.Duration, word string) string {
	if d < time.Second {
		return fmt.Sprintf("%s%d ms", word, d.Milliseconds())
	}
	return fmt.Sprintf("%s%.1f s", word, d.Seconds())
}

// came reports whether the rank had begun a collective that another is in: the
// same number of its group, or a later one.
func (f *Flight) came(o *FlightOperation, setUp bool) bool {
	for _, s := range f.Streams {
		if (s.Name == flightSetUp) != setUp {
			continue
		}
		for _, own := range s.Ops {
			if own.Group == o.Group && own.Collective >= o.Collective && !own.Begun.IsZero() {
				return true
			}
		}
	}
	return false
}

// flightSetUp is the stream of collectives that are agreed on before the first
// runs. They have numbers of their own.
const flightSetUp = "set-up"

// axis is the direction of a collective's group.
func (o *FlightOperation) axis() string {
	return o.Group[strings.LastIndexByte(o.Group, ' ')+1:]
}
