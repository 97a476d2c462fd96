package record

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// FlightReport says where the ranks of a failed run stood: first what each gave
// as the reason, the earliest first; then each collective in which ranks waited,
// with those that had not come to it, the oldest first; then a table of all
// streams. flights are those of ReadFlights, at least one.
func FlightReport(flights []*Flight) string {
	var out strings.Builder
	missing := missingRanks(flights)
	fmt.Fprintf(&out, "%d of %d ranks left a flight recorder", len(flights), flights[0].World)
	if len(missing) > 0 {
		fmt.Fprintf(&out, "; not %s", ranksNamed(missing))
	}
	out.WriteString("\n\n")
	reportReasons(&out, flights)
	if slices.ContainsFunc(flights, func(f *Flight) bool { return f.Unseen }) {
		out.WriteString("What GPUs were at is not to be seen; where it is known, the reason names it.\n")
	}
	reportMeetings(&out, flights)
	reportStreams(&out, flights)
	return out.String()
}

// missingRanks are those without a flight recorder.
func missingRanks(flights []*Flight) (ranks []int) {
	for r := range flights[0].World {
		if flightOf(flights, r) == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

func flightOf(flights []*Flight, rank int) *Flight {
	for _, f := range flights {
		if f.Rank == rank {
			return f
		}
	}
	return nil
}

// ranksText writes sorted ranks shortly: "0, 2-5".
func ranksText(ranks []int) string {
	var parts []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		part := strconv.Itoa(ranks[i])
		if j > i {
			part += "-" + strconv.Itoa(ranks[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

func ranksNamed(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + ranksText(ranks)
	}
	return "ranks " + ranksText(ranks)
}

// reportReasons writes each reason once, by the first who gave it.
func reportReasons(out *strings.Builder, flights []*Flight) {
	byTime := slices.Clone(flights)
	slices.SortStableFunc(byTime, func(a, b *Flight) int { return a.Time.Compare(b.Time) })
	all := map[string][]int{}
	for _, f := range flights {
		all[f.Reason] = append(all[f.Reason], f.Rank)
	}
	for _, f := range byTime {
		if ranks, ok := all[f.Reason]; ok {
			delete(all, f.Reason)
			line, _, _ := strings.Cut(f.Reason, "\n")
			fmt.Fprintf(out, "%s, after step %d: %s\n", ranksNamed(ranks), f.Steps, line)
		}
	}
}

// meeting is a collective in which ranks waited.
type meeting struct {
	op      *FlightOperation // of the one who waited longest
	ranks   []int            // who waited
	missing []int            // who had not come
	longest time.Duration
}

// reportMeetings writes in which collectives ranks waited, and for whom.
func reportMeetings(out *strings.Builder, flights []*Flight) {
	for i, m := range meetings(flights) {
		if i == 0 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(out, "%s, number %d (%s): %s waited%s", m.op.Operation, m.op.Collective, m.op.Group, ranksNamed(m.ranks), seconds(m.longest, " for "))
		if len(m.missing) == 0 {
			out.WriteString("; all had come\n")
			continue
		}
		out.WriteString(", and these had not come:\n")
		for _, r := range m.missing {
			at := "left no flight recorder: it was killed, stopped or cut off"
			if f := flightOf(flights, r); f != nil {
				at = fmt.Sprintf("after step %d, %s", f.Steps, f.At())
			}
			fmt.Fprintf(out, "  rank %d: %s\n", r, at)
		}
	}
}

// meetings finds them; those where somebody is missing come first.
func meetings(flights []*Flight) (all []*meeting) {
	found := map[string]*meeting{}
	for _, f := range flights {
		for i := range f.Streams {
			s := &f.Streams[i]
			o := s.at()
			if o == nil || o.Group == "" || o.State == FlightWaiting {
				continue
			}
			waited := o.Ended.Sub(o.Begun)
			if o.State == FlightUnderWay {
				waited = f.Time.Sub(o.Begun)
			}
			group := f.Groups[o.axis()]
			key := fmt.Sprint(s.Name == flightSetUp, o.Group, group, o.Collective)
			m := found[key]
			if m == nil {
				m = &meeting{}
				for _, r := range group {
					if other := flightOf(flights, r); other == nil || !other.came(o, s.Name == flightSetUp) {
						m.missing = append(m.missing, r)
					}
				}
				found[key] = m
				all = append(all, m)
			}
			m.ranks = append(m.ranks, f.Rank)
			if m.op == nil || waited > m.longest {
				m.op, m.longest = o, waited
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *meeting) int {
		return cmp.Or(cmp.Compare(min(len(b.missing), 1), min(len(a.missing), 1)), a.op.Begun.Compare(b.op.Begun))
	})
	return all
}

// reportStreams writes the table: a line for the ranks that stood alike.
func reportStreams(out *strings.Builder, flights []*Flight) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nstream\trank\tstep\tstood\n")
	var names []string
	for _, f := range flights {
		for _, s := range f.Streams {
			if !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
		}
	}
	for _, name := range names {
		type place struct {
			steps int
			at    string
		}
		var places []place
		stands := name != flightSetUp // that is over for all, mostly
		ranks := map[place][]int{}
		for _, f := range flights {
			p := place{f.Steps, "has not begun"}
			for i := range f.Streams {
				if s := &f.Streams[i]; s.Name == name {
					p.at = s.stands()
					stands = stands || s.at() != nil
				}
			}
			if ranks[p] == nil {
				places = append(places, p)
			}
			ranks[p] = append(ranks[p], f.Rank)
		}
		if !stands {
			continue
		}
		for _, p := range places {
			fmt.Fprintf(table, "%s\t%s\t%d\t%s\n", name, ranksText(ranks[p]), p.steps, p.at)
			name = ""
		}
	}
	table.Flush() // to a builder, which takes all
}

// stands says where the stream stood.
func (s *FlightStream) stands() string {
	if o := s.at(); o != nil {
		return fmt.Sprintf("%s (%s, step %d)", o.stands(), o.Program, o.Step)
	}
	if n := len(s.Ops); n > 0 {
		return "at the end of " + s.Ops[n-1].Program
	}
	return "has not begun"
}
