package report

import (
	"cmp"
	"fmt"
	"image/color"
	"slices"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
)

// whiskers says how every chart of rows is read.
const whiskers = "medians; whiskers from the lowest to the highest"

// charts lists the charts that the set has something for.
func (s *Set) charts() []chart {
	var all []chart
	colours := s.colours()
	for _, precision := range s.precisions() {
		all = append(all, s.training(precision, colours)...)
	}
	all = append(all, s.speed(colours)...)
	all = append(all, s.shares(colours)...)
	all = append(all, s.memory(colours)...)
	for _, r := range s.Results {
		if r.Scenario.Work.Kind == scenario.Collectives {
			all = append(all, collectives(r, colours)...)
		}
	}
	return append(all, s.startup(colours)...)
}

// colours gives every side its own in all charts, the first one gofsdp's.
func (s *Set) colours() map[string]color.Color {
	var sides []string
	for _, r := range s.Results {
		for _, x := range r.Scenario.Sides {
			if !slices.Contains(sides, x.Name) {
				sides = append(sides, x.Name)
			}
		}
	}
	slices.SortStableFunc(sides, func(a, b string) int { return cmp.Compare(boolOf(b == "gofsdp"), boolOf(a == "gofsdp")) })
	colours := map[string]color.Color{}
	for i, name := range sides {
		colours[name] = palette[i%len(palette)]
	}
	return colours
}

func boolOf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// precisions lists those that anything is trained in, in order.
func (s *Set) precisions() []string {
	var all []string
	for _, r := range s.Results {
		if p := r.Scenario.Work.Precision; r.Scenario.Work.Kind == scenario.Steps && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	slices.Sort(all)
	slices.Reverse(all) // f32 before bf16
	return all
}

// grouped makes a group of each scenario of a kind that gives rows.
func (s *Set) grouped(kinds []string, rowsOf func(*scenario.Result) []row) []group {
	var groups []group
	for _, r := range s.Results {
		if !slices.Contains(kinds, r.Scenario.Work.Kind) {
			continue
		}
		if list := rowsOf(r); len(list) > 0 {
			groups = append(groups, group{title: orElse(r.Scenario.Title, r.Scenario.Name), rows: list})
		}
	}
	return groups
}

// measuredRows makes a row of each side and case that has the value, and of each
// that failed; none where no side has it.
func measuredRows(r *scenario.Result, colours map[string]color.Color, unit float64, value func(*measured) bench.Spread, text func(*measured) string) []row {
	var list []row
	some := false
	for _, m := range measurements(r) {
		v := value(&m)
		x := row{label: m.label(), colour: colours[m.side], spread: inUnit(v, unit), text: m.failure}
		switch {
		case v.Count > 0:
			some, x.text = true, text(&m)
		case m.failure == "":
			continue
		}
		list = append(list, x)
	}
	if !some {
		return nil
	}
	return list
}

func inUnit(s bench.Spread, unit float64) bench.Spread {
	return bench.Spread{Median: s.Median * unit, Low: s.Low * unit, High: s.High * unit, Count: s.Count}
}

// training is the chart of the training steps in one precision by the side that
// does them.
func (s *Set) training(precision string, colours map[string]color.Color) []chart {
	groups := s.grouped([]string{scenario.Steps}, func(r *scenario.Result) []row {
		if r.Scenario.Work.Precision != precision || len(r.Scenario.Sides) < 2 {
			return nil
		}
		return measuredRows(r, colours, 100, func(m *measured) bench.Spread { return m.share }, func(m *measured) string {
			return fmt.Sprintf("%s %%, %s tokens/s", number(100*m.share.Median), number(m.tokens.Median))
		})
	})
	if len(groups) == 0 {
		return nil
	}
	return []chart{newRowChart("training-"+precision, "Training step, "+precision, "the model's FLOPs as a share of the peak measured in the same run: "+whiskers,
		rows{groups: groups, axis: "% of the machine's peak"})}
}

// figureRows makes a row of each figure of a measure.
func figureRows(r *scenario.Result, colours map[string]color.Color, measure string, label func(*Figure) string) []row {
	var list []row
	for _, f := range figures(r) {
		if f.Measure != measure {
			continue
		}
		scale, sign := f.unit()
		x := row{label: label(&f), colour: colours[side(f.Of)], spread: inUnit(f.Spread, scale), firm: f.Firm * scale, aim: f.Aim * scale}
		if x.text = f.measured(); f.Spread.Count > 0 {
			x.text = number(f.Spread.Median*scale) + sign
		}
		list = append(list, x)
	}
	return list
}

// speed is the chart of the training steps' ratios.
func (s *Set) speed(colours map[string]color.Color) []chart {
	groups := s.grouped([]string{scenario.Steps}, func(r *scenario.Result) []row {
		return figureRows(r, colours, scenario.BySpeed, func(f *Figure) string { return f.sides(" over ") })
	})
	if len(groups) == 0 {
		return nil
	}
	return []chart{newRowChart("speed", "Training speed as a ratio", "of the first over the second, round by round: "+whiskers,
		rows{groups: groups, axis: "times as fast", dots: true, even: 1, least: leastOf(groups, 1)})}
}

// shares is the chart of what operations and steps reach of their limits.
func (s *Set) shares(colours map[string]color.Color) []chart {
	groups := s.grouped([]string{scenario.Steps, scenario.Operations}, func(r *scenario.Result) []row {
		return figureRows(r, colours, byShare, func(f *Figure) string { return f.Of })
	})
	if len(groups) == 0 {
		return nil
	}
	return []chart{newRowChart("shares", "Share of the limit that was reached", "steps and operations against the limits measured in the same run: "+whiskers,
		rows{groups: groups, axis: "% of the limit"})}
}

// memory is the chart of the peak memory of a rank.
func (s *Set) memory(colours map[string]color.Color) []chart {
	groups := s.grouped([]string{scenario.Steps}, func(r *scenario.Result) []row {
		if len(r.Scenario.Sides) < 2 {
			return nil
		}
		return measuredRows(r, colours, 1e-9, func(m *measured) bench.Spread { return m.peak }, func(m *measured) string {
			return number(m.peak.Median*1e-9) + " GB"
		})
	})
	if len(groups) == 0 {
		return nil
	}
	return []chart{newRowChart("memory", "Peak memory of a rank", "of the greatest rank, after its first step: "+whiskers,
		rows{groups: groups, axis: "GB"})}
}

// startup is the chart of the time until the first step has ended.
func (s *Set) startup(colours map[string]color.Color) []chart {
	groups := s.grouped([]string{scenario.Startup}, func(r *scenario.Result) []row {
		return measuredRows(r, colours, 1, func(m *measured) bench.Spread { return m.seconds }, func(m *measured) string {
			return number(m.seconds.Median) + " s"
		})
	})
	if len(groups) == 0 {
		return nil
	}
	return []chart{newRowChart("startup", "Start-up", "from the command until the first step has ended: "+whiskers,
		rows{groups: groups, axis: "seconds"})}
}
