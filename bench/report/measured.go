package report

import (
	"cmp"
	"slices"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
)

// measured is what all runs of a side gave for one case. A run counts with its
// median, so that all runs count alike.
type measured struct {
	side, name string // of the case
	only       bool   // the side's only case
	seconds    bench.Spread
	limit      bench.Spread // the seconds that the side says were the least
	tokens     bench.Spread // a second
	share      bench.Spread // of the peak, or of what the side says
	peak       bench.Spread // bytes of the greatest rank
	failure    string       // why no run gave anything
}

// label is "SIDE/CASE", or "SIDE".
func (m *measured) label() string {
	if m.only || m.name == "" {
		return m.side
	}
	return m.side + "/" + m.name
}

// measurements lists what was measured, sides and cases in the scenario's order.
func measurements(r *scenario.Result) []measured {
	var all []measured
	for _, s := range r.Scenario.Sides {
		all = append(all, ofSide(r, s.Name)...)
	}
	return all
}

// ofSide lists the cases of a side, or its failure.
func ofSide(r *scenario.Result, side string) []measured {
	type readings struct{ seconds, limit, tokens, share, peak []float64 }
	var names []string
	read := map[string]*readings{}
	failure := "not run"
	for _, round := range r.Rounds {
		for _, run := range round.Runs {
			if run.Side != side {
				continue
			}
			if run.Failure != nil {
				failure = run.Failure.Reason
			}
			if run.Sample == nil {
				continue
			}
			for i := range run.Sample.Cases {
				c := &run.Sample.Cases[i]
				if len(c.Seconds) == 0 {
					continue
				}
				if read[c.Name] == nil {
					names, read[c.Name] = append(names, c.Name), new(readings)
				}
				x, seconds := read[c.Name], median(c.Seconds)
				x.seconds = append(x.seconds, seconds)
				if len(c.Limit) > 0 {
					x.limit = append(x.limit, median(c.Limit))
				}
				if c.Tokens > 0 {
					x.tokens = append(x.tokens, float64(c.Tokens)/seconds)
				}
				if share := shareOf(r, &run, c); share > 0 {
					x.share = append(x.share, share)
				}
				if len(c.Peak) > 0 {
					x.peak = append(x.peak, float64(slices.Max(c.Peak)))
				}
			}
		}
	}
	if len(names) == 0 {
		return []measured{{side: side, failure: failure}}
	}
	var all []measured
	for _, name := range names {
		x := read[name]
		all = append(all, measured{
			side: side, name: name, only: len(names) == 1, seconds: bench.SpreadOf(x.seconds), limit: bench.SpreadOf(x.limit),
			tokens: bench.SpreadOf(x.tokens), share: bench.SpreadOf(x.share), peak: bench.SpreadOf(x.peak),
		})
	}
	return all
}

// shareOf is the part of the limit that a case reached: of what the side says,
// else of the machine's peak with the cores of the case's ranks. It is 0 where
// neither is known.
func shareOf(r *scenario.Result, run *scenario.Run, c *scenario.Case) float64 {
	if len(c.Limit) > 0 && len(c.Limit) == len(c.Seconds) {
		shares := make([]float64, len(c.Seconds))
		for i := range shares {
			shares[i] = c.Limit[i] / c.Seconds[i]
		}
		return median(shares)
	}
	work := &r.Scenario.Work
	peak := run.Limits.F32
	if work.Precision == "bf16" {
		peak = run.Limits.BF16
	}
	for _, s := range work.Cases {
		if s.Name == c.Name && s.Ranks != 0 {
			peak *= r.Parts(s.Ranks)
		}
	}
	flops := cmp.Or(c.FLOPs, r.FLOPsPerToken*float64(c.Tokens))
	if flops == 0 || peak == 0 {
		return 0
	}
	return flops / peak / median(c.Seconds)
}

// machineLimits are the spreads of the machine's limits over all runs.
func machineLimits(r *scenario.Result) (f32, bf16, copied bench.Spread) {
	var a, b, c []float64
	for _, round := range r.Rounds {
		for _, run := range round.Runs {
			a, b, c = append(a, run.Limits.F32), append(b, run.Limits.BF16), append(c, run.Limits.Copy)
		}
	}
	return bench.SpreadOf(a), bench.SpreadOf(b), bench.SpreadOf(c)
}

// measuredTable is the table of what the sides of a scenario gave.
func measuredTable(r *scenario.Result) string {
	all := measurements(r)
	head, seconds := []string{"side", ">seconds"}, 1.0
	short := r.Scenario.Work.Kind == scenario.Collectives || r.Scenario.Work.Kind == scenario.Operations
	if short {
		head[1], seconds = ">ms", 1e3
	}
	type column struct {
		head  string
		unit  float64
		value func(*measured) bench.Spread
	}
	var columns []column
	share := "% of peak"
	if r.Scenario.Work.Kind != scenario.Steps {
		share = "% of limit"
	}
	for _, c := range []column{
		{"tokens/s", 1, func(m *measured) bench.Spread { return m.tokens }},
		{share, 100, func(m *measured) bench.Spread { return m.share }},
		{"peak GB a rank", 1e-9, func(m *measured) bench.Spread { return m.peak }},
	} {
		if slices.ContainsFunc(all, func(m measured) bool { return c.value(&m).Count > 0 }) {
			columns, head = append(columns, c), append(head, ">"+c.head)
		}
	}
	t := newTable(head...)
	for i := range all {
		m := &all[i]
		cells := []string{m.label(), orElse(m.failure, scaled(m.seconds, seconds))}
		for _, c := range columns {
			cells = append(cells, scaled(c.value(m), c.unit))
		}
		t.row(cells...)
	}
	return t.String()
}
