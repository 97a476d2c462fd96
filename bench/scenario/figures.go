package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/bench"
)

// judge computes all figures from the rounds.
func (r *Result) judge() {
	r.Ratios, r.Shares = nil, nil
	for _, ratio := range r.Scenario.Ratios {
		for _, one := range r.expand(ratio) {
			r.Ratios = append(r.Ratios, r.ratio(one))
		}
	}
	for _, share := range r.Scenario.Shares {
		for _, of := range r.names(share.Of) {
			one := share
			one.Of = of
			f := r.share(one)
			if f.Failure == "" || of == share.Of { // of several, some may have no limit, as a barrier
				r.Shares = append(r.Shares, f)
			}
		}
	}
	r.Disagreement = r.disagreement()
}

// split cuts "SIDE/CASE". Without a case it is the only one that the side has.
func (r *Result) split(name string) (side, c string) {
	side, c, cased := strings.Cut(name, "/")
	if !cased {
		switch {
		case r.Scenario.Work.Kind == Startup:
			c = firstStep
		case len(r.Scenario.Work.Cases) == 1:
			c = r.Scenario.Work.Cases[0].Name
		}
	}
	return side, c
}

// names returns what a name stands for: itself, or with "*" one for each case
// that the side had, in its order. A side that never had any stays as it is.
func (r *Result) names(name string) []string {
	side, pattern := r.split(name)
	if !strings.HasSuffix(pattern, "*") {
		return []string{name}
	}
	var all []string
	r.samples(side, func(_ *Run, m *Sample) {
		for _, c := range m.Cases {
			if one := side + "/" + c.Name; caseMatches(pattern, c.Name) && !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	})
	if len(all) == 0 {
		return []string{name}
	}
	return all
}

// expand returns the ratios that one with "*" stands for.
func (r *Result) expand(ratio Ratio) []Ratio {
	side, c := r.split(ratio.Against)
	all := r.names(ratio.Of)
	var list []Ratio
	for _, of := range all {
		one := ratio
		one.Of = of
		if _, name := r.split(of); strings.HasSuffix(c, "*") && !strings.HasSuffix(name, "*") {
			one.Against = side + "/" + name
			if has := r.names(ratio.Against); has[0] != ratio.Against && !slices.Contains(has, one.Against) {
				continue // no case that both have
			}
		}
		if one.Of != one.Against {
			list = append(list, one)
		}
	}
	return list
}

// samples calls f with all that a side measured, round by round.
func (r *Result) samples(side string, f func(*Run, *Sample)) {
	for i := range r.Rounds {
		if run := r.Rounds[i].of(side); run != nil && run.Sample != nil {
			f(run, run.Sample)
		}
	}
}

// of returns a side's run, or nil.
func (r *Round) of(side string) *Run {
	for i := range r.Runs {
		if r.Runs[i].Side == side {
			return &r.Runs[i]
		}
	}
	return nil
}

// failure says why a side has no figures, or nothing.
func (r *Result) failure(side, c string) string {
	why := ""
	for i := range r.Rounds {
		run := r.Rounds[i].of(side)
		switch {
		case run == nil:
			why = side + ": was not run"
		case run.Failure != nil:
			why = cmp.Or(why, side+": "+run.Failure.Reason)
		case run.Sample.find(c) == nil:
			why = fmt.Sprintf("%s: has no case %q", side, c)
		default:
			return ""
		}
	}
	return why
}

// ratio computes one figure.
func (r *Result) ratio(ratio Ratio) RatioFigure {
	f := RatioFigure{Ratio: ratio, Pairs: []float64{}}
	ofSide, ofCase := r.split(ratio.Of)
	againstSide, againstCase := r.split(ratio.Against)
	for i := range r.Rounds {
		of, against := r.Rounds[i].of(ofSide), r.Rounds[i].of(againstSide)
		if of == nil || against == nil || of.Sample == nil || against.Sample == nil {
			continue
		}
		a, b := of.Sample.find(ofCase), against.Sample.find(againstCase)
		if a == nil || b == nil {
			continue
		}
		switch {
		case ratio.By == ByMemory:
			if len(a.Peak) > 0 && len(b.Peak) > 0 && slices.Max(b.Peak) > 0 {
				f.Pairs = append(f.Pairs, float64(slices.Max(a.Peak))/float64(slices.Max(b.Peak)))
			}
		case ofSide == againstSide:
			for t := range a.Seconds {
				f.Pairs = append(f.Pairs, speed(a, a.Seconds[t])/speed(b, b.Seconds[t]))
			}
		default:
			f.Pairs = append(f.Pairs, speed(a, bench.SpreadOf(a.Seconds).Median)/speed(b, bench.SpreadOf(b.Seconds).Median))
		}
	}
	if len(f.Pairs) > 0 {
		f.Spread = bench.SpreadOf(f.Pairs)
		f.Verdict = verdict(f.Spread.Median, ratio.Firm, ratio.Aim, ratio.By == ByMemory)
		return f
	}
	f.Failure = r.failure(ofSide, ofCase)
	if f.Failure != "" && ratio.Firm > 0 {
		f.Verdict = Missed
	}
	f.Failure = cmp.Or(f.Failure, r.failure(againstSide, againstCase))
	if f.Failure == "" {
		f.Failure = "the two sides never ran well in one round"
		if ratio.By == ByMemory {
			f.Failure = "a side did not say what memory it had"
		}
	}
	return f
}

// speed is work a second: tokens where something is trained, else repetitions.
func speed(c *Case, seconds float64) float64 {
	return float64(max(c.Tokens, 1)) / seconds
}

// share computes one figure.
func (r *Result) share(share Share) ShareFigure {
	f := ShareFigure{Share: share, Values: []float64{}}
	side, name := r.split(share.Of)
	r.samples(side, func(run *Run, m *Sample) {
		c := m.find(name)
		if c == nil {
			return
		}
		for t, seconds := range c.Seconds {
			limit := 0.0
			if len(c.Limit) > 0 {
				limit = c.Limit[t]
			} else if peak := r.peak(run.Limits, name); peak > 0 {
				limit = cmp.Or(c.FLOPs, float64(c.Tokens)*r.FLOPsPerToken) / peak
			}
			if limit > 0 {
				f.Values = append(f.Values, limit/seconds)
			}
		}
	})
	if len(f.Values) > 0 {
		f.Spread = bench.SpreadOf(f.Values)
		f.Verdict = verdict(f.Spread.Median, share.Firm, share.Aim, false)
		return f
	}
	f.Failure = r.failure(side, name)
	if f.Failure == "" && r.Device.Kind == gpu && r.Scenario.Work.Kind == Collectives {
		f.Failure = side + ": between GPUs a copy is no limit" // and no target can be missed
		return f
	}
	f.Failure = cmp.Or(f.Failure, side+": knows no limit")
	if share.Firm > 0 {
		f.Verdict = Missed
	}
	return f
}

// peak returns the FLOP/s that the machine had for a case's ranks, which may be
// fewer than those that it was measured with.
func (r *Result) peak(l Limits, name string) float64 {
	w := &r.Scenario.Work
	peak := l.F32
	if w.Precision == "bf16" {
		peak = l.BF16
	}
	for _, c := range w.Cases {
		if c.Name == name {
			peak *= r.Parts(w.ranksOf(c))
		}
	}
	return peak
}

// verdict judges a figure, of which more is better unless less is said to be.
func verdict(x, firm, aim float64, less bool) Verdict {
	if less {
		x, firm, aim = -x, -firm, -aim
	}
	switch {
	case firm == 0:
		return NoTarget
	case aim != 0 && x >= aim:
		return Aimed
	case x >= firm:
		return Firm
	}
	return Missed
}

// disagreement returns the greatest relative difference of two sides' losses
// over all rounds, cases and steps; nil where there is nothing to compare. A side
// that warms up for longer than another is compared where both have steps.
func (r *Result) disagreement() *Disagreement {
	if r.Scenario.Agree == 0 {
		return nil
	}
	var most *Disagreement
	for _, round := range r.Rounds {
		for i, b := range round.Runs {
			for _, a := range round.Runs[:i] {
				if a.Sample == nil || b.Sample == nil {
					continue
				}
				for _, c := range a.Sample.Cases {
					other := b.Sample.find(c.Name)
					if other == nil {
						continue
					}
					for t := range min(len(c.Losses), len(other.Losses)) {
						x, y := c.Losses[t], other.Losses[t]
						relative := 0.0
						if x != y {
							relative = math.Abs(x-y) / max(math.Abs(x), math.Abs(y))
						}
						if most == nil || relative > most.Relative {
							most = &Disagreement{Relative: relative, Step: t + 1, A: a.Side, B: b.Side, Case: c.Name, LossA: x, LossB: y}
						}
					}
				}
			}
		}
	}
	return most
}

// Err returns what is wrong with the result: runs that failed for another reason
// than memory, and losses that disagree. What was measured stays as it is.
func (r *Result) Err() error {
	var errs []error
	var said []string
	for i, round := range r.Rounds {
		for _, run := range round.Runs {
			f := run.Failure
			if f == nil || f.Reason == OutOfMemory || slices.Contains(said, run.Side) {
				continue
			}
			said = append(said, run.Side)
			errs = append(errs, fmt.Errorf("%s: %s %s in round %d:\n%s", r.Scenario.Name, run.Side, f.Reason, i+1, f.Text))
		}
	}
	if d := r.Disagreement; d != nil && d.Relative > r.Scenario.Agree {
		errs = append(errs, fmt.Errorf("%s: the losses of %s and %s disagree at step %d of %s: %v and %v differ by %.2g of the greater, and may by %v; the sides do not do the same work",
			r.Scenario.Name, d.A, d.B, d.Step, d.Case, d.LossA, d.LossB, d.Relative, r.Scenario.Agree))
	}
	return errors.Join(errs...)
}
