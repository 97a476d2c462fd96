package report

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
)

// synthetic is a set with so many ratios of as many rounds, normal about 1.5
// with 2 % of noise; the first one is changed by that factor.
func synthetic(random *rand.Rand, ratios, rounds int, change float64) *Set {
	r := &scenario.Result{Scenario: scenario.Scenario{Name: "s", Sides: []scenario.Side{{Name: "gofsdp"}}, Work: scenario.Work{Kind: scenario.Steps}}}
	for range rounds {
		r.Rounds = append(r.Rounds, scenario.Round{Runs: []scenario.Run{{Side: "gofsdp", Sample: new(scenario.Sample)}}})
	}
	for i := range ratios {
		x := 1.5
		if i == 0 {
			x *= change
		}
		f := scenario.RatioFigure{Ratio: scenario.Ratio{Of: "gofsdp", Against: fmt.Sprintf("peer %d", i), By: scenario.BySpeed}}
		for range rounds {
			f.Pairs = append(f.Pairs, x*(1+0.02*random.NormFloat64()))
		}
		f.Spread = bench.SpreadOf(f.Pairs)
		r.Ratios = append(r.Ratios, f)
	}
	return &Set{Results: []*scenario.Result{r}}
}

// found counts, of so many seeds, those in which a comparison finds anything
// slower or faster, and those in which it finds the first figure slower.
func found(seeds, ratios, rounds int, change float64) (some, first int) {
	for seed := range seeds {
		random := rand.New(rand.NewPCG(uint64(seed), 7))
		c := Compare(synthetic(random, ratios, rounds, 1), synthetic(random, ratios, rounds, change))
		something := false
		for _, x := range c.Changes {
			something = something || x.Verdict == Slower || x.Verdict == Faster
		}
		if something {
			some++
		}
		if c.Changes[0].Verdict == Slower {
			first++
		}
	}
	return some, first
}

func TestAPlantedSlowDownIsFound(t *testing.T) {
	for _, c := range []struct {
		ratios, rounds int
		least, most    int // of 100 seeds
	}{
		// What Compare's comment says, and what 100 seeds may differ from it.
		{20, 15, 99, 100},
		{20, 10, 88, 99},
		{6, 5, 45, 75},
		{7, 5, 0, 10}, // one alone cannot be found, and is only by company of chance
	} {
		if _, n := found(100, c.ratios, c.rounds, 0.95); n < c.least || n > c.most {
			t.Errorf("of 5 %% slower among %d figures of %d rounds: found with %d of 100 seeds, want %d to %d", c.ratios, c.rounds, n, c.least, c.most)
		}
	}
}

// The level is 5 % for any false alarm; with 1,000 seeds four standard
// deviations more are 7.8 %.
func TestWhereNothingHasChangedNothingIsFound(t *testing.T) {
	for _, rounds := range []int{5, 10} {
		n, _ := found(1000, 6, rounds, 1)
		t.Logf("%d rounds: %d of 1000", rounds, n)
		if n > 78 {
			t.Errorf("with %d rounds %d of 1000 seeds show a change, want at most 78", rounds, n)
		}
	}
}

// only returns the one change of a figure.
func only(t *testing.T, c *Comparison, figure string) Change {
	t.Helper()
	i := slices.IndexFunc(c.Changes, func(x Change) bool { return x.Figure == figure })
	if i < 0 {
		t.Fatalf("there is no %q in\n%s", figure, c.Table())
	}
	return c.Changes[i]
}

func TestTheDirectionDependsOnWhatIsMeasured(t *testing.T) {
	for _, c := range []struct {
		by     string
		change float64
		want   Outcome
	}{
		{scenario.BySpeed, 0.9, Slower},
		{scenario.BySpeed, 1.1, Faster},
		{scenario.ByMemory, 0.9, Faster},
		{scenario.ByMemory, 1.1, Slower},
		{scenario.BySpeed, 1, Same},
	} {
		random := rand.New(rand.NewPCG(3, 3))
		older, newer := synthetic(random, 1, 15, 1), synthetic(random, 1, 15, c.change)
		older.Results[0].Ratios[0].By, newer.Results[0].Ratios[0].By = c.by, c.by
		if got := Compare(older, newer).Changes[0]; got.Verdict != c.want {
			t.Errorf("%s that is %g of what it was: %s, want %s (%+v)", c.by, c.change, got.Verdict, c.want, got)
		}
	}
}

func TestAChangeBelowOnePercentIsNoMatter(t *testing.T) {
	older, newer := synthetic(rand.New(rand.NewPCG(1, 1)), 1, 15, 1), synthetic(rand.New(rand.NewPCG(1, 1)), 1, 15, 1)
	for i := range 15 {
		older.Results[0].Ratios[0].Pairs[i] = 1 + 1e-5*float64(i)
		newer.Results[0].Ratios[0].Pairs[i] = 0.992 + 1e-5*float64(i)
	}
	if x := Compare(older, newer).Changes[0]; x.Verdict != Same || x.P > 1e-6 {
		t.Errorf("%+v, want the same, however sure", x)
	}
}

func TestFiguresThatCannotBeComparedAreListedWithTheReason(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	older, newer := synthetic(random, 5, 15, 1), synthetic(random, 5, 15, 1)
	before, after := older.Results[0], newer.Results[0]
	before.Ratios = before.Ratios[:4] // peer 4 is new
	after.Ratios = after.Ratios[1:]   // and peer 0 is gone
	after.Ratios[0].Pairs, after.Ratios[0].Failure = nil, "peer 1: out of memory"
	before.Ratios[2].Pairs, before.Ratios[2].Failure = nil, "peer 2: out of memory"
	after.Ratios[1].Pairs, after.Ratios[1].Failure = nil, "peer 2: out of memory"
	before.Ratios[3].Pairs, after.Ratios[2].Pairs = before.Ratios[3].Pairs[:3], after.Ratios[2].Pairs[:3]
	c := Compare(older, newer)
	for peer, want := range map[int]Outcome{0: OnlyOld, 1: OnlyOld, 2: Unmeasured, 3: TooFew, 4: OnlyNew} {
		if x := only(t, c, fmt.Sprintf("speed of gofsdp over peer %d", peer)); x.Verdict != want {
			t.Errorf("peer %d: %s, want %s", peer, x.Verdict, want)
		}
	}
	for _, want := range []string{"only old: peer 1: out of memory", "not measured: peer 2: out of memory"} {
		if !strings.Contains(c.Table(), want) {
			t.Errorf("the table does not say %q:\n%s", want, c.Table())
		}
	}
	if c.Worse() != 0 {
		t.Errorf("%d are slower", c.Worse())
	}
}

func TestASideThatFailsNowHasBecomeWorse(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	for failure, want := range map[string]Outcome{
		"gofsdp: failed": Fails, "gofsdp: timed out": Fails, "gofsdp: out of memory": Fails,
		"peer 0: failed": OnlyOld, "gofsdp: was not run": OnlyOld, "": OnlyOld,
	} {
		older, newer := synthetic(random, 1, 15, 1), synthetic(random, 1, 15, 1)
		now := &newer.Results[0].Ratios[0]
		now.Pairs, now.Failure = nil, failure
		c := Compare(older, newer)
		worse := 0
		if want == Fails {
			worse = 1
		}
		if got := c.Changes[0].Verdict; got != want || c.Worse() != worse {
			t.Errorf("%q: %s and %d worse, want %s", failure, got, c.Worse(), want)
		}
		if newer.Results[0].Scenario.Work.Length = 1024; Compare(older, newer).Worse() != 0 {
			t.Errorf("%q is worse at other work", failure)
		}
	}
}

func TestOtherWorkIsNotCompared(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	older, newer := synthetic(random, 1, 15, 1), synthetic(random, 1, 15, 0.5)
	newer.Results[0].Scenario.Work.Length = 1024
	if x := Compare(older, newer).Changes[0]; x.Verdict != OtherWork {
		t.Errorf("%+v, want other work", x)
	}
	newer.Results[0].Scenario.Work.Length = older.Results[0].Scenario.Work.Length
	newer.Results[0].Scenario.Work.Timed = 7
	if x := Compare(older, newer).Changes[0]; x.Verdict != Slower {
		t.Errorf("%+v, want slower: how often the work is done is no matter", x)
	}
}

// Steps of one run share its luck: taken for as many measurements as there are
// steps, two rounds against two others would be a discovery.
func TestARoundCountsOnce(t *testing.T) {
	older, newer := synthetic(rand.New(rand.NewPCG(1, 1)), 1, 2, 1), synthetic(rand.New(rand.NewPCG(1, 1)), 1, 2, 1)
	for i, s := range []*Set{older, newer} {
		f := scenario.ShareFigure{Share: scenario.Share{Of: "gofsdp"}}
		for round := range 2 {
			for step := range 10 {
				f.Values = append(f.Values, 0.8-0.1*float64(i)+0.01*float64(round)+0.001*float64(step))
			}
		}
		s.Results[0].Shares = []scenario.ShareFigure{f}
	}
	x := only(t, Compare(older, newer), "share of peak of gofsdp")
	if x.Verdict != TooFew || x.OldRounds != 2 {
		t.Errorf("%+v, want too few rounds", x)
	}
}

func TestTheTableSaysWhatSoFewRoundsCannotShow(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	few := Compare(synthetic(random, 20, 5, 1), synthetic(random, 20, 5, 1)).Table()
	if want := "at least 4 of the 20 figures"; !strings.Contains(few, want) { // 4·0.05/20 is above 1/126
		t.Errorf("the table does not say %q:\n%s", want, few)
	}
	if many := Compare(synthetic(random, 20, 15, 1), synthetic(random, 20, 15, 1)).Table(); strings.Contains(many, "at least") {
		t.Errorf("with 15 rounds any one can be found:\n%s", many)
	}
}

func TestSetsOfOtherMachinesAreComparedWithAWarning(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 6))
	older, newer := synthetic(random, 1, 5, 1), synthetic(random, 1, 5, 1)
	if c := Compare(older, newer); len(c.Warnings) > 0 {
		t.Errorf("of one machine: %q", c.Warnings)
	}
	newer.Results[0].Device.Name = "Example 9000"
	if c := Compare(older, newer); len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "Example 9000, 0 CPUs") {
		t.Errorf("of two machines: %q", c.Warnings)
	}
}
