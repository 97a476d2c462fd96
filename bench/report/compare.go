package report

import (
	"fmt"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/bench/scenario"
)

// What must hold for a figure to be called slower or faster.
const (
	// level is the greatest adjusted p value.
	level = 0.05
	// leastChange is the least change of the median: what is less is no matter,
	// however sure it is.
	leastChange = 0.01
)

// Change is how one figure differs between two sets.
type Change struct {
	Scenario, Figure string
	Old, New         float64 // medians over the rounds; NaN where there is none
	OldRounds        int
	NewRounds        int
	Change           float64 // New over Old, less 1
	P                float64 // adjusted for the number of comparisons; NaN where none was made
	Verdict          Outcome
	Note             string // why there is nothing to compare
	scale            float64
	unit             string
	smaller          bool // is better
}

// Outcome is what a comparison found.
type Outcome string

// The outcomes.
const (
	Slower     Outcome = "slower" // or, of memory, more
	Faster     Outcome = "faster" // or, of memory, less
	Same       Outcome = "same"   // as far as can be told
	TooFew     Outcome = "too few rounds"
	OnlyOld    Outcome = "only old"
	OnlyNew    Outcome = "only new"
	OtherWork  Outcome = "other work"
	Unmeasured Outcome = "not measured"
	Fails      Outcome = "fails now" // the side whose figure it is, on the same work
)

// Comparison is what has changed between two sets.
type Comparison struct {
	Changes  []Change
	Warnings []string
	limited  string // what the numbers of rounds cannot show
}

// Compare finds the figures that have become worse or better from one set to
// another. It compares ratios and shares, never seconds, which change with the
// machine's day; and a round counts once, with its median, since the steps of
// one run share its luck.
//
// The test is Mann–Whitney's, exact, adjusted for the number of figures by
// Benjamini and Hochberg. Of five rounds a side the least p value is 1/126: one
// figure alone can be found among six at most, and 5 % slower with 2 % of noise
// is, six times of ten; among more figures, several must have changed together.
// With ten rounds a side it is found nineteen times of twenty among 20 figures,
// with fifteen always.
func Compare(older, newer *Set) *Comparison {
	c := new(Comparison)
	if a, b := older.machine(), newer.machine(); a != b {
		c.warn("the sets are of different machines, %s and %s: their ratios may differ for that reason", a, b)
	}
	before, after := byName(older), byName(newer)
	var tested []int
	var ps []float64
	for _, r := range slices.Concat(older.Results, newer.Results) {
		name := r.Scenario.Name
		old, now := before[name], after[name]
		if old != nil && now != nil && r != old {
			continue // seen already
		}
		same := old != nil && now != nil && sameWork(&old.Scenario.Work, &now.Scenario.Work)
		for _, pair := range pairUp(old, now) {
			change := pair.change(old, now)
			switch {
			case change.Verdict == Fails && !same:
				change.Verdict = OtherWork
			case change.Verdict != "":
			case !same:
				change.Verdict = OtherWork
			case leastP(change.OldRounds, change.NewRounds) > level:
				change.Verdict = TooFew
			default:
				tested = append(tested, len(c.Changes))
				ps = append(ps, rankSum(byRound(old, pair.old), byRound(now, pair.now)))
			}
			c.Changes = append(c.Changes, change)
		}
	}
	for i, p := range adjusted(ps) {
		x := &c.Changes[tested[i]]
		x.P = p
		x.judge()
	}
	c.limit(tested)
	return c
}

func (c *Comparison) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

// Worse counts the figures that have become worse, or cannot be had any more since
// their side fails.
func (c *Comparison) Worse() int {
	n := 0
	for i := range c.Changes {
		if v := c.Changes[i].Verdict; v == Slower || v == Fails {
			n++
		}
	}
	return n
}

// judge gives the verdict by P and Change.
func (x *Change) judge() {
	switch {
	case !(x.P <= level) || math.Abs(x.Change) < leastChange:
		x.Verdict = Same
	case (x.Change < 0) != x.smaller:
		x.Verdict = Slower
	default:
		x.Verdict = Faster
	}
}

// limit says how many figures must change together to be found, where one alone
// could not.
func (c *Comparison) limit(tested []int) {
	least := 0.0
	for _, i := range tested {
		x := &c.Changes[i]
		least = max(least, leastP(x.OldRounds, x.NewRounds))
	}
	// By Benjamini and Hochberg the k-th least p value may be level·k/m.
	if k := int(math.Ceil(least * float64(len(tested)) / level)); k > 1 {
		c.limited = fmt.Sprintf("With so few rounds a change is found where at least %d of the %d figures show one; measure more rounds to find fewer.", k, len(tested))
	}
}

// figurePair is one figure in both sets; nil where it is not there.
type figurePair struct{ old, now *Figure }

// pairUp pairs the figures of two results, those of the older one first.
func pairUp(old, now *scenario.Result) []figurePair {
	var pairs []figurePair
	index := map[string]int{}
	if old != nil {
		for _, f := range figures(old) {
			index[f.Name()] = len(pairs)
			pairs = append(pairs, figurePair{old: &f})
		}
	}
	if now != nil {
		for _, f := range figures(now) {
			if i, known := index[f.Name()]; known {
				pairs[i].now = &f
				continue
			}
			pairs = append(pairs, figurePair{now: &f})
		}
	}
	return pairs
}

// change is the pair with its medians, and with a verdict where there is
// nothing to compare.
func (p figurePair) change(old, now *scenario.Result) Change {
	f := p.old
	if f == nil {
		f = p.now
	}
	x := Change{Scenario: f.Scenario, Figure: f.Name(), Old: math.NaN(), New: math.NaN(), Change: math.NaN(), P: math.NaN()}
	x.scale, x.unit = f.unit()
	x.smaller = f.smaller()
	if values := byRound(old, p.old); len(values) > 0 {
		x.Old, x.OldRounds = median(values), len(values)
	} else if p.old != nil {
		x.Note = p.old.Failure
	}
	if values := byRound(now, p.now); len(values) > 0 {
		x.New, x.NewRounds = median(values), len(values)
	} else if p.now != nil {
		x.Note = p.now.Failure
	}
	switch {
	case x.OldRounds > 0 && x.NewRounds > 0:
		x.Change, x.Note = x.New/x.Old-1, ""
	case x.OldRounds > 0 && p.now != nil && p.now.fails():
		x.Verdict = Fails
	case x.OldRounds > 0:
		x.Verdict = OnlyOld
	case x.NewRounds > 0:
		x.Verdict = OnlyNew
	default:
		x.Verdict = Unmeasured
	}
	return x
}

// byRound returns a value for each round of a figure: the median of those that
// the round gave. Values are in the order of rounds, alike many in each.
func byRound(r *scenario.Result, f *Figure) []float64 {
	if r == nil || f == nil || len(f.Values) == 0 {
		return nil
	}
	rounds := 0
	for _, round := range r.Rounds {
		if slices.ContainsFunc(round.Runs, func(run scenario.Run) bool { return run.Side == side(f.Of) && run.Sample != nil }) {
			rounds++
		}
	}
	n := len(f.Values)
	if rounds == 0 || n <= rounds {
		return f.Values
	}
	values := make([]float64, rounds)
	for i := range values {
		values[i] = median(f.Values[i*n/rounds : (i+1)*n/rounds])
	}
	return values
}

func byName(s *Set) map[string]*scenario.Result {
	m := map[string]*scenario.Result{}
	for _, r := range s.Results {
		m[r.Scenario.Name] = r
	}
	return m
}

// sameWork says whether figures of both can be compared: how often the work is
// done, and what else was done in turns with it, may differ.
func sameWork(a, b *scenario.Work) bool {
	type key struct {
		kind, model, precision            string
		length, sequences, ranks, threads int
	}
	of := func(w *scenario.Work) key {
		return key{w.Kind, w.Model, w.Precision, w.Length, w.Sequences, w.Ranks, w.Threads}
	}
	return of(a) == of(b)
}

// Table is the comparison as a table, with what it cannot show below.
func (c *Comparison) Table() string {
	t := newTable("scenario", "figure", ">old", ">new", ">change %", ">p", "verdict")
	for i := range c.Changes {
		x := &c.Changes[i]
		cells := []string{x.Scenario, x.Figure, x.value(x.Old), x.value(x.New), none, none, string(x.Verdict)}
		if !math.IsNaN(x.Change) {
			cells[4] = fmt.Sprintf("%+.1f", 100*x.Change)
		}
		if !math.IsNaN(x.P) {
			cells[5] = fmt.Sprintf("%.2g", x.P)
		}
		if x.Note != "" {
			cells[6] += ": " + x.Note
		}
		t.row(cells...)
	}
	text := t.String()
	if c.limited != "" {
		text += "\n" + c.limited + "\n"
	}
	return text
}

// value writes a median in the figure's unit.
func (x *Change) value(v float64) string {
	if math.IsNaN(v) {
		return none
	}
	return number(v*x.scale) + x.unit
}
