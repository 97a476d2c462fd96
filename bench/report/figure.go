package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
)

// byShare is the measure of a figure that is a share of a limit; that of the
// others is scenario.BySpeed or scenario.ByMemory.
const byShare = "share"

// Figure is a ratio or a share, as it is shown and compared.
type Figure struct {
	Scenario string
	Measure  string // scenario.BySpeed, scenario.ByMemory or byShare
	Limit    string // of a share: "peak" or "limit"
	Of       string // "SIDE" or "SIDE/CASE"
	Against  string // the same; empty of a share
	Values   []float64
	Spread   bench.Spread
	Firm     float64
	Aim      float64
	Verdict  scenario.Verdict
	Failure  string // why there are no values
	Why      string

	alike int // of those that it stands for as the worst, see condense; 0: only itself
	fell  int // of those the ones that miss
}

// figures lists those of a result, ratios first.
func figures(r *scenario.Result) []Figure {
	var all []Figure
	for _, f := range r.Ratios {
		all = append(all, Figure{
			Scenario: r.Scenario.Name, Measure: f.By, Of: f.Of, Against: f.Against, Values: f.Pairs, Spread: f.Spread,
			Firm: f.Firm, Aim: f.Aim, Verdict: f.Verdict, Failure: f.Failure, Why: f.Why,
		})
	}
	limit := "limit"
	if r.Scenario.Work.Kind == scenario.Steps {
		limit = "peak"
	}
	for _, f := range r.Shares {
		all = append(all, Figure{
			Scenario: r.Scenario.Name, Measure: byShare, Limit: limit, Of: f.Of, Values: f.Values, Spread: f.Spread,
			Firm: f.Firm, Aim: f.Aim, Verdict: f.Verdict, Failure: f.Failure, Why: f.Why,
		})
	}
	return all
}

// Name says what the figure is: "speed of gofsdp over FSDP2 eager".
func (f *Figure) Name() string {
	switch f.Measure {
	case byShare:
		return fmt.Sprintf("share of %s of %s", f.Limit, f.Of)
	case scenario.ByMemory:
		return "memory of " + f.sides(" to ")
	}
	return "speed of " + f.sides(" over ")
}

// sides names what a ratio is of, the case once where both have it, or the side
// where it is the same: "gofsdp over gloo, all-gather 4 MB".
func (f *Figure) sides(between string) string {
	a, caseA, _ := strings.Cut(f.Of, "/")
	b, caseB, _ := strings.Cut(f.Against, "/")
	switch {
	case caseA != "" && caseA == caseB:
		return a + between + b + ", " + caseA
	case caseB != "" && a == b:
		return f.Of + between + caseB
	}
	return f.Of + between + f.Against
}

// fails says that there is no figure since its side fails; not that of a ratio's
// other side.
func (f *Figure) fails() bool {
	for _, reason := range []string{scenario.Failed, scenario.TimedOut, scenario.OutOfMemory} {
		if f.Failure == side(f.Of)+": "+reason {
			return true
		}
	}
	return false
}

// smaller says that less is better.
func (f *Figure) smaller() bool { return f.Measure == scenario.ByMemory }

// unit is what the figure is written in: times its own, and the sign behind it.
func (f *Figure) unit() (float64, string) {
	if f.Measure == byShare {
		return 100, " %"
	}
	return 1, " ×"
}

// measured is the median with its spread, or why there is none.
func (f *Figure) measured() string {
	if f.Spread.Count == 0 {
		return orElse(f.Failure, "not measured")
	}
	scale, sign := f.unit()
	return scaled(f.Spread, scale) + sign
}

// target writes what is to be reached.
func (f *Figure) target(x float64) string {
	if x == 0 {
		return none
	}
	scale, sign := f.unit()
	bound := "≥ "
	if f.smaller() {
		bound = "≤ "
	}
	return bound + strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", x*scale), "0"), ".") + sign
}

// verdict is that of the results, in a column of a table.
func (f *Figure) verdict() string {
	word := string(f.Verdict)
	switch {
	case f.Verdict == scenario.NoTarget && (f.Firm != 0 || f.Aim != 0):
		return "not measured"
	case f.Verdict == scenario.NoTarget:
		return "shown"
	case f.fell > 0:
		return fmt.Sprintf("%s (%d of %d)", word, f.fell, f.alike)
	}
	return word
}

// condense puts figures that differ by their case alone, and have one target,
// into one: the worst of them stands for all. What was not measured stands for
// itself.
func condense(all []Figure) []Figure {
	type group struct {
		scenario, measure, of, against string
		firm, aim                      float64
		failed                         string
	}
	index := map[group]int{}
	var kept []Figure
	for _, f := range all {
		g := group{f.Scenario, f.Measure, side(f.Of), side(f.Against), f.Firm, f.Aim, ""}
		if f.Spread.Count == 0 {
			g.failed = f.Name()
		}
		f.alike, f.fell = 1, 0
		if f.Verdict == scenario.Missed {
			f.fell = 1
		}
		i, known := index[g]
		if !known {
			index[g] = len(kept)
			kept = append(kept, f)
			continue
		}
		k := &kept[i]
		alike, fell := k.alike+1, k.fell+f.fell
		if (f.Spread.Median < k.Spread.Median) != f.smaller() {
			*k = f
		}
		k.alike, k.fell = alike, fell
	}
	for i := range kept {
		if kept[i].alike == 1 {
			kept[i].alike, kept[i].fell = 0, 0
		}
	}
	return kept
}

// Summary is the table of all figures of a set that are compared with
// something, those of many cases by their worst.
func (s *Set) Summary() string {
	return s.tableOf(func(*scenario.Result, *Figure) bool { return true })
}

// Judged is the part of the summary that has targets, and the start-up, which
// has none.
func (s *Set) Judged() string {
	return s.tableOf(func(r *scenario.Result, f *Figure) bool {
		return f.Firm != 0 || r.Scenario.Work.Kind == scenario.Startup
	})
}

func (s *Set) tableOf(shown func(*scenario.Result, *Figure) bool) string {
	t := newTable("scenario", "figure", ">median (low–high)", ">pairs", ">firm", ">aim", "verdict")
	for _, r := range s.Results {
		for _, f := range condense(figures(r)) {
			if !shown(r, &f) {
				continue
			}
			name := f.Name()
			if f.alike > 1 {
				name += fmt.Sprintf(", the worst of %d", f.alike)
			}
			t.row(f.Scenario, name, f.measured(), fmt.Sprint(f.Spread.Count), f.target(f.Firm), f.target(f.Aim), f.verdict())
		}
	}
	return t.String()
}

// figureTable is the table of the figures of one scenario, "" where it has none.
// What is said beside figures has a column where there is anything.
func figureTable(r *scenario.Result) string {
	all := figures(r)
	head := []string{"figure", ">median (low–high)", ">pairs", ">firm", ">aim", "verdict"}
	noted := slices.ContainsFunc(all, func(f Figure) bool { return f.Why != "" })
	if noted {
		head = append(head, "note")
	}
	t := newTable(head...)
	for _, f := range all {
		cells := []string{f.Name(), f.measured(), fmt.Sprint(f.Spread.Count), f.target(f.Firm), f.target(f.Aim), f.verdict()}
		if noted {
			cells = append(cells, strings.TrimSpace(f.Why))
		}
		t.row(cells...)
	}
	if t.empty() {
		return ""
	}
	return t.String()
}

// side is the first part of "SIDE/CASE".
func side(name string) string {
	before, _, _ := strings.Cut(name, "/")
	return before
}

// orElse is text, or what stands where there is none.
func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
