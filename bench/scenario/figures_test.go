package scenario

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// made returns a result of two sides with the cases plain and other, two rounds
// of three steps each. The peer is half as fast in the first round, a third in
// the second.
func made() *Result {
	mine := func(plain, other []float64) *Sample {
		return &Sample{Cases: []Case{
			{Name: "plain", Seconds: plain, Tokens: 100, Losses: []float64{8, 4, 2}, Peak: []int64{30, 20}},
			{Name: "other", Seconds: other, Tokens: 400, Losses: []float64{8, 4, 2}, Peak: []int64{60, 10}},
		}}
	}
	theirs := func(plain []float64) *Sample {
		return &Sample{Cases: []Case{{Name: "plain", Seconds: plain, Tokens: 100, Losses: []float64{8, 4, 2.5}, Peak: []int64{50, 60}}}}
	}
	limits := Limits{F32: 1000, BF16: 4000, Copy: 1}
	r := &Result{
		FLOPsPerToken: 5,
		Scenario: Scenario{Name: "made", Agree: 0.3, Work: Work{
			Kind: Steps, Precision: "f32", Ranks: 2, Threads: 1, Timed: 3,
			Cases: []StepCase{{Name: "plain"}, {Name: "other", Ranks: 1}},
		}, Sides: []Side{{Name: "mine"}, {Name: "theirs"}}},
		Rounds: []Round{
			{Runs: []Run{
				{Side: "mine", Limits: limits, Sample: mine([]float64{1, 2, 4}, []float64{4, 8, 8})},
				{Side: "theirs", Limits: limits, Sample: theirs([]float64{4, 1, 5})},
			}},
			{Runs: []Run{
				{Side: "theirs", Limits: limits, Sample: theirs([]float64{6, 6, 6})},
				{Side: "mine", Limits: limits, Sample: mine([]float64{2, 2, 2}, []float64{4, 4, 16})},
			}},
		},
	}
	r.Device.Threads = 2
	return r
}

func near(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Abs(x-y) <= 1e-12*math.Abs(y) })
}

func TestARatioIsOfTheMediansOfARound(t *testing.T) {
	for what, c := range map[string]struct {
		ratio   Ratio
		pairs   []float64
		median  float64
		verdict Verdict
	}{
		// medians 2 and 4, then 2 and 6, for equal tokens
		"of two sides":           {Ratio{Of: "mine/plain", Against: "theirs/plain", By: BySpeed, Firm: 2, Aim: 2.6}, []float64{2, 3}, 2.5, Firm},
		"at its aim":             {Ratio{Of: "mine/plain", Against: "theirs/plain", By: BySpeed, Firm: 2, Aim: 2.5}, []float64{2, 3}, 2.5, Aimed},
		"below its target":       {Ratio{Of: "mine/plain", Against: "theirs/plain", By: BySpeed, Firm: 2.6}, []float64{2, 3}, 2.5, Missed},
		"without a target":       {Ratio{Of: "theirs/plain", Against: "mine/plain", By: BySpeed}, []float64{0.5, 1. / 3}, (0.5 + 1./3) / 2, NoTarget},
		"of other tokens":        {Ratio{Of: "mine/other", Against: "theirs/plain", By: BySpeed}, []float64{(400. / 8) / (100. / 4), (400. / 4) / (100. / 6)}, 4, NoTarget},
		"of one side, by step":   {Ratio{Of: "mine/other", Against: "mine/plain", By: BySpeed}, []float64{1, 1, 2, 2, 2, 0.5}, 1.5, NoTarget},
		"of memory, the most":    {Ratio{Of: "mine/plain", Against: "theirs/plain", By: ByMemory, Firm: 0.5}, []float64{0.5, 0.5}, 0.5, Firm},
		"of memory, at its aim":  {Ratio{Of: "mine/plain", Against: "theirs/plain", By: ByMemory, Firm: 0.6, Aim: 0.5}, []float64{0.5, 0.5}, 0.5, Aimed},
		"of memory, above":       {Ratio{Of: "mine/other", Against: "theirs/plain", By: ByMemory, Firm: 0.9}, []float64{1, 1}, 1, Missed},
		"of memory, of one side": {Ratio{Of: "mine/other", Against: "mine/plain", By: ByMemory}, []float64{2, 2}, 2, NoTarget},
	} {
		r := made()
		r.Scenario.Ratios = []Ratio{c.ratio}
		r.judge()
		f := r.Ratios[0]
		if !near(f.Pairs, c.pairs) || math.Abs(f.Spread.Median-c.median) > 1e-12 || f.Verdict != c.verdict || f.Failure != "" {
			t.Errorf("%s: pairs %v, median %v, verdict %q, failure %q; want %v, %v, %q and none",
				what, f.Pairs, f.Spread.Median, f.Verdict, f.Failure, c.pairs, c.median, c.verdict)
		}
	}
}

func TestAStarStandsForEachCase(t *testing.T) {
	for what, c := range map[string]struct {
		of, against string
		want        []string
	}{
		"on both sides, for those that both have": {"mine/*", "theirs/*", []string{"mine/plain over theirs/plain"}},
		"against one case":                        {"mine/*", "theirs/plain", []string{"mine/plain over theirs/plain", "mine/other over theirs/plain"}},
		"for those that begin so":                 {"mine/o*", "mine/plain", []string{"mine/other over mine/plain"}},
		"but never against itself":                {"mine/*", "mine/plain", []string{"mine/other over mine/plain"}},
		"unless a side never had any":             {"mine/*", "none/*", []string{"mine/plain over none/plain", "mine/other over none/other"}},
	} {
		r := made()
		r.Scenario.Ratios = []Ratio{{Of: c.of, Against: c.against, By: BySpeed}}
		r.judge()
		var got []string
		for _, f := range r.Ratios {
			got = append(got, f.Of+" over "+f.Against)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("a star %s: %v, want %v", what, got, c.want)
		}
	}
}

func TestAShareIsOfTheLimitOfItsTime(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*Result)
		of     string
		values []float64
	}{
		// 100 tokens of 5 FLOPs at 1000 FLOP/s take half a second.
		"of the machine's peak":               {nil, "mine/plain", []float64{0.5, 0.25, 0.125, 0.25, 0.25, 0.25}},
		"of the peak in bf16":                 {func(r *Result) { r.Scenario.Work.Precision = "bf16" }, "theirs/plain", []float64{1. / 32, 1. / 8, 1. / 40, 1. / 48, 1. / 48, 1. / 48}},
		"of half the peak, on half the cores": {nil, "mine/other", []float64{1, 0.5, 0.5, 1, 1, 0.25}},
		"of what the side says": {func(r *Result) {
			for i, j := range []int{0, 1} {
				c := &r.Rounds[i].Runs[j].Sample.Cases[0]
				c.Limit = []float64{0.5, 0.5, 1}
			}
		}, "mine/plain", []float64{0.5, 0.25, 0.25, 0.25, 0.25, 0.5}},
		"of the FLOPs that the side counts": {func(r *Result) {
			for i, j := range []int{0, 1} {
				r.Rounds[i].Runs[j].Sample.Cases[0].FLOPs = 1000
			}
		}, "mine/plain", []float64{1, 0.5, 0.25, 0.5, 0.5, 0.5}},
	} {
		r := made()
		if c.change != nil {
			c.change(r)
		}
		r.Scenario.Shares = []Share{{Of: c.of, Firm: 0.2, Aim: 0.3}}
		r.judge()
		if f := r.Shares[0]; !near(f.Values, c.values) || f.Spread.Count != len(c.values) || f.Verdict == NoTarget {
			t.Errorf("%s: %+v, want values %v and a verdict", what, f, c.values)
		}
	}
}

func TestACaseWithoutALimitHasNoShareAmongOthers(t *testing.T) {
	r := made()
	r.Scenario.Work.Kind, r.FLOPsPerToken = Collectives, 0
	for i, j := range []int{0, 1} {
		r.Rounds[i].Runs[j].Sample.Cases[0].Limit = []float64{0.5, 0.5, 0.5}
	}
	r.Scenario.Shares = []Share{{Of: "mine/*"}, {Of: "mine/other", Firm: 1}}
	r.judge()
	if len(r.Shares) != 2 || r.Shares[0].Of != "mine/plain" || r.Shares[1].Failure != "mine: knows no limit" || r.Shares[1].Verdict != Missed {
		t.Errorf("the shares are %+v", r.Shares)
	}
}

func TestAFigureWithoutPairsSaysWhy(t *testing.T) {
	out := func(r *Result, side string) {
		for i := range r.Rounds {
			run := r.Rounds[i].of(side)
			run.Sample, run.Failure = nil, &Failure{Reason: OutOfMemory}
		}
	}
	ratio := Ratio{Of: "mine/plain", Against: "theirs/plain", By: BySpeed, Firm: 1.5}

	r := made()
	out(r, "theirs")
	r.Scenario.Ratios = []Ratio{ratio, {Of: "mine/plain", Against: "theirs/nothing", By: BySpeed}, {Of: "mine/other", Against: "none/other", By: BySpeed}}
	r.judge()
	for i, want := range []string{"theirs: out of memory", "theirs: out of memory", "none: was not run"} {
		if f := r.Ratios[i]; f.Failure != want || f.Verdict != NoTarget || f.Pairs == nil || len(f.Pairs) > 0 {
			t.Errorf("%+v, want the failure %q and no verdict", f, want)
		}
	}

	r = made()
	out(r, "mine")
	r.Scenario.Ratios = []Ratio{ratio}
	r.judge()
	if f := r.Ratios[0]; f.Failure != "mine: out of memory" || f.Verdict != Missed {
		t.Errorf("%+v, want mine to have missed its target", f)
	}

	r = made()
	r.Rounds[0].of("mine").Sample = nil
	r.Rounds[0].of("mine").Failure = &Failure{Reason: Failed, Text: "it broke"}
	r.Scenario.Ratios = []Ratio{ratio}
	r.judge()
	if f := r.Ratios[0]; f.Failure != "" || !near(f.Pairs, []float64{3}) {
		t.Errorf("%+v, want the pair of the round that was well", f)
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "made: mine failed in round 1:\nit broke") {
		t.Errorf("the error is %v", err)
	}
}

func TestLossesThatDisagreeAreNamedWithStepAndValues(t *testing.T) {
	r := made() // 2 and 2.5 at step 3: a fifth of the greater
	r.judge()
	d := r.Disagreement
	if d == nil || math.Abs(d.Relative-0.2) > 1e-15 || d.Step != 3 || d.A != "mine" || d.B != "theirs" || d.Case != "plain" || d.LossA != 2 || d.LossB != 2.5 {
		t.Fatalf("the disagreement is %+v", d)
	}
	if err := r.Err(); err != nil {
		t.Errorf("a difference of 0.2 is refused where 0.3 is allowed: %v", err)
	}
	r.Scenario.Agree = 0.19
	const want = "made: the losses of mine and theirs disagree at step 3 of plain: 2 and 2.5 differ by 0.2 of the greater, and may by 0.19"
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
	r.Scenario.Agree = 0
	if r.judge(); r.Disagreement != nil || r.Err() != nil {
		t.Errorf("losses that are not compared give %+v and %v", r.Disagreement, r.Err())
	}
}

func TestASampleOfOtherWorkIsRefused(t *testing.T) {
	s := &Scenario{Agree: 0.1, Work: Work{
		Kind: Steps, Length: 8, Sequences: 2, Ranks: 2, Warm: 1, Timed: 2,
		Cases: []StepCase{{Name: "a"}, {Name: "b", Ranks: 1, MicroBatches: 3}},
	}}
	good := func() *Sample {
		return &Sample{Format: TaskFormat, Cases: []Case{
			{Name: "a", Seconds: []float64{1, 1}, Tokens: 32, Losses: []float64{1, 1, 1}},
			{Name: "b", Seconds: []float64{1, 1}, Tokens: 48, Losses: []float64{1, 1, 1}, Limit: []float64{1, 1}},
		}}
	}
	if err := good().fit(s); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Sample){
		"it has format 2, want 1":                      func(m *Sample) { m.Format = 2 },
		"it has no cases":                              func(m *Sample) { m.Cases = nil },
		`it has no case "b"`:                           func(m *Sample) { m.Cases = m.Cases[:1] },
		`there is no case "c" in the task`:             func(m *Sample) { m.Cases[0].Name = "c" },
		`case "b" is there twice`:                      func(m *Sample) { m.Cases[0].Name = "b" },
		`case "a" has 1 times, want 2`:                 func(m *Sample) { m.Cases[0].Seconds = []float64{1} },
		`case "b" has 1 limits for 2 times`:            func(m *Sample) { m.Cases[1].Limit = []float64{1} },
		`case "a" has times or limits that are not`:    func(m *Sample) { m.Cases[0].Seconds[1] = 0 },
		`case "b" has times or limits that are not`:    func(m *Sample) { m.Cases[1].Limit[1] = math.Inf(1) },
		`case "b" trained on 32 tokens a step, want 4`: func(m *Sample) { m.Cases[1].Tokens = 32 },
		`case "a" has 2 losses, want one of each of 3`: func(m *Sample) { m.Cases[0].Losses = []float64{1, 1} },
	} {
		m := good()
		change(m)
		if err := m.fit(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
}

func TestTheSummaryHasALineForEachFigure(t *testing.T) {
	r := made()
	r.Scenario.Title = "Two sides"
	r.Scenario.Ratios = []Ratio{
		{Of: "mine/plain", Against: "theirs/plain", By: BySpeed, Firm: 2, Aim: 3},
		{Of: "mine/plain", Against: "theirs/plain", By: ByMemory},
		{Of: "mine/plain", Against: "none/plain", By: BySpeed, Firm: 2},
	}
	r.Scenario.Shares = []Share{{Of: "mine/plain", Firm: 0.3}}
	r.judge()
	var out strings.Builder
	if err := r.WriteSummary(&out); err != nil {
		t.Fatal(err)
	}
	const want = `
made: Two sides
  mine/plain against theirs/plain          2.5× (2–3)                       firm 2, aim 3  firm reached
  mine/plain against theirs/plain, memory  0.5× (0.5–0.5)
  mine/plain against none/plain            none: was not run                firm 2
  mine/plain, share of its limit           0.25 (0.125–0.5)                 firm 0.3  missed
  losses of mine and theirs                differ by 2.0e-01 at the most    may by 3.0e-01
`
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if squeeze(out.String()) != squeeze(want) {
		t.Errorf("it is\n%s\nwant\n%s", out.String(), want)
	}
}
