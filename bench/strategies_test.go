package bench

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

// littleStrategies is a run of up to four ranks that reference devices do in a
// second.
func littleStrategies(t *testing.T, ranks ...int) StepSettings {
	s, err := ShortStrategies(fsdp.RecomputeNone, ranks...)
	if err != nil {
		t.Fatal(err)
	}
	l := little(t)
	s.Model, s.Length, s.Sequences, s.Reading = l.Model, l.Length, l.Sequences, l.Reading
	return s
}

func TestEachStrategyIsMeasuredOnEachMeshWhereItDiffers(t *testing.T) {
	s := littleStrategies(t, 2, 4)
	w, err := s.Results(together(t, s.Meshes(), s.Measure))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range w.Steps {
		got = append(got, x.Mesh+" "+x.Strategy)
		if n := s.Rounds * s.Steps; x.Step.Seconds.Count != n || x.Speedup.Count != n || x.OverNoShard.Count != n || x.ArenaBytes <= 0 || x.Step.Cores.Low <= 0 {
			t.Errorf("%s: %+v, want %d readings", got[len(got)-1], x, n)
		}
		if x.Speedup.Low <= 0 || x.Strategy == "no_shard" && x.OverNoShard.Low != 1 {
			t.Errorf("%s: %+v", got[len(got)-1], x)
		}
	}
	want := []string{
		"1x1 no_shard",
		"1x2 no_shard", "1x2 shard_optimizer", "1x2 shard_grad_op", "1x2 full_shard",
		"1x4 no_shard", "1x4 shard_optimizer", "1x4 shard_grad_op", "1x4 full_shard",
		"2x2 no_shard", "2x2 shard_optimizer", "2x2 shard_grad_op", "2x2 full_shard", "2x2 hybrid_shard", "2x2 hybrid_full_shard",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if full, plain := w.Steps[8].ArenaBytes, w.Steps[5].ArenaBytes; full >= plain {
		t.Errorf("a rank of four takes %d bytes by full_shard and %d by no_shard", full, plain)
	}
}

func TestAStepIsOfTheSlowestRankAndOfAllRanksPeaks(t *testing.T) {
	s := littleStrategies(t, 2)
	s.Threads, s.Rounds, s.Steps = 3, 1, 2
	rows, flops := float64(2*16), mustResolve(t, s.Model).FLOPsPerToken(16)
	pair := func(a, b Reading) []Reading { return []Reading{a, b} }
	reported := [][]Sample{{{Case: 0, Bytes: 7, Readings: pair(Reading{2, 10, 1}, Reading{4, 10, 1})}}, nil}
	for i := 1; i <= 4; i++ {
		reported[0] = append(reported[0], Sample{Case: i, Bytes: 5, Readings: pair(Reading{float64(i), 10, 0.5}, Reading{8, 10, 1})})
		reported[1] = append(reported[1], Sample{Case: i, Bytes: 6, Readings: pair(Reading{1, 30, 0.5}, Reading{4, 20, 1})})
	}
	w, err := s.Results(reported)
	if err != nil {
		t.Fatal(err)
	}
	if w.Threads != 3 || w.FLOPsPerToken != flops || w.Steps[0].ArenaBytes != 7 || w.Steps[0].Speedup != (Spread{1, 1, 1, 2}) {
		t.Errorf("%+v", w)
	}
	x := w.Steps[2] // shard_optimizer: 2 s and 8 s, with peaks of 40 and 30
	both := func(a, b float64) Spread { return Spread{(a + b) / 2, math.Min(a, b), math.Max(a, b), 2} }
	rate := func(seconds float64) float64 { return 2 * rows / seconds }
	want := RankedStep{
		Ranks: 2, Mesh: "1x2", Strategy: "shard_optimizer", ArenaBytes: 5,
		Step: Step{
			Seconds: both(2, 8), Tokens: both(rate(2), rate(8)), Peak: both(40, 30),
			Share: both(rate(2)*flops/40, rate(8)*flops/30),
			// The second rank's half of one second is a quarter of two.
			Cores:   both((0.5+0.25)/2, (1+0.5)/2),
			OnCores: both(rate(2)*flops/0.375/40, rate(8)*flops/0.75/40),
		},
		Speedup: both(2, 1), OverNoShard: both(2, 1),
	}
	if diff := cmp.Diff(want, x, cmp.Comparer(near)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := s.Results([][]Sample{reported[0], reported[1][1:]}); err == nil {
		t.Error("a case that a rank has not reported is no error")
	}
}

func TestStrategiesThatCannotBeMeasuredAreRefused(t *testing.T) {
	ok := littleStrategies(t, 2)
	if err := ok.Check(device.Info{Memory: 1 << 30}); err != nil {
		t.Error(err)
	}
	for sentence, change := range map[string]func(*StepSettings) int64{
		"a model that is not there":           func(s *StepSettings) int64 { s.Model = "no-such-model-here"; return 0 },
		"sequences longer than the positions": func(s *StepSettings) int64 { s.Length = 65; return 0 },
		"more sequences than can be planned":  func(s *StepSettings) int64 { s.Sequences = 1 << 40; return 0 },
		"more than the memory of all ranks": func(s *StepSettings) int64 {
			plan, err := fsdp.NewPlan(s.options(mustResolve(t, s.Model), s.Cases[1], 0))
			if err != nil {
				t.Fatal(err)
			}
			return 2*plan.Bytes() - 1
		},
	} {
		s := littleStrategies(t, 2)
		if memory := change(&s); s.Check(device.Info{Memory: memory}) == nil {
			t.Errorf("%s: not refused", sentence)
		}
	}
}

func TestADeviceThatCannotTellItsPeakIsNoMeasureForSteps(t *testing.T) {
	s := littleStrategies(t, 2)
	dev := device.NewReference()
	defer dev.Close()
	if err := s.Measure(t.Context(), &Member{Device: dev}); err == nil {
		t.Error("no error")
	}
}
