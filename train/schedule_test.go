package train

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/record"
)

func TestLearningRatesFollowTheirSchedule(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Settings
		at   map[int]float64 // of 100 steps
	}{
		{"cosine", Settings{LR: 1, MinLR: 0.2, Warmup: 20, Schedule: "cosine"}, map[int]float64{0: 0.05, 9: 0.5, 19: 1, 20: 1, 60: 0.6, 99: 0.2 + 0.8*(1+math.Cos(math.Pi*79/80))/2}},
		{"linear", Settings{LR: 1, Schedule: "linear"}, map[int]float64{0: 1, 50: 0.5, 75: 0.25}},
		{"constant", Settings{LR: 1, MinLR: 0.5, Warmup: 2, Schedule: "constant"}, map[int]float64{0: 0.5, 1: 1, 99: 1}},
		{"wsd", Settings{LR: 1, MinLR: 0, Warmup: 10, DecaySteps: 40, Schedule: "wsd"}, map[int]float64{9: 1, 59: 1, 60: 1, 80: 0.5, 99: 0.025}},
		{"wsd with a warm-up that leaves less than a fifth", Settings{LR: 1, Warmup: 90, Schedule: "wsd"}, map[int]float64{89: 1, 90: 1, 95: 0.5, 99: 0.1}},
		{"wsd with a fifth of decay", Settings{LR: 1, Schedule: "wsd"}, map[int]float64{79: 1, 80: 1, 90: 0.5}},
	} {
		for step, want := range c.at {
			if got := c.s.Rate(step, 100); math.Abs(got-want) > 1e-12 {
				t.Errorf("%s: the rate of step %d is %v, want %v", c.name, step, got, want)
			}
		}
	}
}

func TestRatesRiseOnceAndThenOnlyFall(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		steps := 1 + r.IntN(60)
		s := Settings{LR: 1, MinLR: r.Float64(), Warmup: r.IntN(steps + 1), Schedule: []string{"cosine", "linear", "constant", "wsd"}[r.IntN(4)]}
		s.DecaySteps = r.IntN(steps - s.Warmup + 1)
		last := 0.0
		for step := range steps {
			rate := s.Rate(step, steps)
			switch {
			case !(rate > 0 && rate <= 1):
				t.Fatalf("%+v: step %d of %d has the rate %v", s, step, steps, rate)
			case step < s.Warmup && rate <= last:
				t.Fatalf("%+v: the warm-up falls from %v to %v at step %d of %d", s, last, rate, step, steps)
			case step >= s.Warmup && rate < s.MinLR:
				t.Fatalf("%+v: the rate %v of step %d of %d is below the least", s, rate, step, steps)
			case step > s.Warmup && rate > last:
				t.Fatalf("%+v: the rate rises from %v to %v at step %d of %d", s, last, rate, step, steps)
			case step == s.Warmup && rate != 1:
				t.Fatalf("%+v: after the warm-up the rate of step %d of %d is %v", s, step, steps, rate)
			}
			last = rate
		}
	}
}

func TestAMicroBatchDividesTheBatch(t *testing.T) {
	for _, c := range []struct{ batch, micro, length, want int }{
		{8, 0, 512, 4}, {8, 0, 1 << 20, 1}, {7, 0, 512, 1}, {6, 0, 512, 3}, {8, 2, 16, 2}, {3, 0, 16, 3},
	} {
		if got := (Settings{Batch: c.batch, MicroBatch: c.micro}).Micro(c.length); got != c.want {
			t.Errorf("batch %d of %d tokens: micro-batches of %d, want %d", c.batch, c.length, got, c.want)
		}
	}
}

func TestAMicroBatchThatNoDeviceHoldsIsRefusedBeforeItIsPlanned(t *testing.T) {
	src, err := model.Resolve("tiny")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		micro, length, rows int
		want                string
	}{
		"many sequences":                {100_000_000, 32, 0, "train.micro_batch: "},
		"a product beyond 64 bits":      {math.MaxInt, 2048, 0, "train.micro_batch: "},
		"one sequence that is too long": {1, 3_000_000, 0, "data.sequence_length: a sequence of 3000000 tokens has more than the 1048576 that can be planned; take shorter ones"},
		"one of several, by default":    {0, 3_000_000, 0, "data.sequence_length: a sequence of 3000000 tokens "},
		"the loss in too many pieces":   {16, 2048, 1, "train.head_rows: "},
		"the loss a row at a time":      {2, 2048, 1, ""},
		"as few pieces as one can ask":  {16, 2048, 1 << 30, ""},
	} {
		s := Settings{Batch: max(c.micro, 1), MicroBatch: c.micro, HeadRows: c.rows, Precision: "f32", Recompute: "none"}
		began := time.Now()
		shape := src.Config
		shape.MaxPositions = max(shape.MaxPositions, c.length)
		_, err := s.NewPlan(shape, c.length)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && time.Since(began) > 10*time.Second {
			t.Errorf("%s: refused after %v", name, time.Since(began))
		}
	}
}

func TestOneThingIsNotWrittenAsMany(t *testing.T) {
	for n, want := range map[int]string{0: "0 steps", 1: "1 step", 2: "2 steps"} {
		if got := Number(n, "step"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got, want := Number(2, "micro-batch"), "2 micro-batches"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSettingsThatContradictEachOtherAreAllNamed(t *testing.T) {
	s := Settings{Batch: 8, MicroBatch: 3, Steps: 10, Warmup: 12, DecaySteps: 1, LR: 1, MinLR: 2, Precision: "f32"}
	// 0.99999999 is 1 in fp32, and 1e-50 is 0.
	s.Optimizer = fsdp.Optimizer{Beta1: 1, Beta2: 0.99999999, Eps: 1e-50, Stochastic: true}
	var keys []string
	for _, err := range s.Check() {
		key, _, _ := strings.Cut(err.Error(), ":")
		keys = append(keys, key)
	}
	want := "train.micro_batch train.warmup train.min_lr train.decay_steps train.optimizer.beta1 train.optimizer.beta2 train.optimizer.eps train.optimizer.stochastic_rounding"
	if got := strings.Join(keys, " "); got != want {
		t.Errorf("found %s\nwant  %s", got, want)
	}
}

func TestHeldOutFiguresAreThoseOfTheLastWeightsAndAllText(t *testing.T) {
	for name, c := range map[string]struct {
		sum  Summary
		want bool
	}{
		"the whole text after the last step":     {Summary{Steps: 9, Seconds: 1, Evaluated: 9, HeldOut: Evaluation{2, 5, 1.5}}, true},
		"the whole text, steps before the end":   {Summary{Steps: 9, Seconds: 1, Evaluated: 5, HeldOut: Evaluation{2, 5, 1.5}, Interrupted: true}, false},
		"a part of the text":                     {Summary{Steps: 9, Seconds: 1, Evaluated: 9, HeldOut: Evaluation{2, 5, math.NaN()}, Interrupted: true}, false},
		"nothing":                                {Summary{Steps: 9, Seconds: 1}, false},
		"a part, of weights that are not finite": {Summary{Steps: 9, Seconds: 1, Evaluated: 9, HeldOut: Evaluation{math.NaN(), 5, math.NaN()}}, true},
	} {
		var rec record.Run
		c.sum.Figures(&rec, 1, 0)
		if _, got := rec.Figures.HeldOutLoss.Get(); got != c.want {
			t.Errorf("%s: a held-out loss is recorded: %v", name, got)
		}
	}
}

func TestDrawsFollowTheDistribution(t *testing.T) {
	logits := []float32{0, 1, 2, float32(math.Inf(-1))}
	c := chooser{temperature: 1, topP: 1, seed: 3}
	var counts [4]int
	const n = 20000
	for range n {
		counts[c.choose(logits)]++
	}
	sum := 1 + math.E + math.E*math.E
	for i, p := range []float64{1 / sum, math.E / sum, math.E * math.E / sum, 0} {
		if got := float64(counts[i]) / n; math.Abs(got-p) > 0.012 {
			t.Errorf("token %d was drawn with frequency %.3f, its probability is %.3f", i, got, p)
		}
	}
	greedy, narrow := chooser{}, chooser{temperature: 1, topP: 0.6}
	for range 100 {
		if greedy.choose(logits) != 2 || narrow.choose(logits) != 2 {
			t.Fatal("the likeliest token was not taken")
		}
	}
	again := chooser{temperature: 1, topP: 1, seed: 3}
	other := chooser{temperature: 1, topP: 1, seed: 3}
	for i := range 50 {
		if again.choose(logits) != other.choose(logits) {
			t.Fatalf("draw %d of one seed differs", i)
		}
	}
}

func TestTheNucleusIsThatOfTheWholeVocabularySorted(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		logits := make([]float32, 2+r.IntN(500))
		for i := range logits {
			logits[i] = float32(r.NormFloat64() * 6)
		}
		logits[0] = logits[1] // equals count too
		c := chooser{temperature: 0.2 + r.Float64(), topP: []float64{0, 0.3, 0.9, 0.95, 0.999, 1}[r.IntN(6)], seed: r.Uint64()}
		best := float64(slices.Max(logits))
		order, probs, sum := make([]int, len(logits)), make([]float64, len(logits)), 0.0
		for i, l := range logits {
			order[i], probs[i] = i, math.Exp((float64(l)-best)/c.temperature)
			sum += probs[i]
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(probs[b], probs[a]) })
		nucleus, mass := map[int32]bool{}, 0.0
		for i, id := range order {
			if i > 0 && mass >= c.topP*sum {
				break
			}
			nucleus[int32(id)] = true
			mass += probs[id]
		}
		for range 20 {
			if id := c.choose(logits); !nucleus[id] {
				t.Fatalf("top_p %v: token %d was drawn, which is none of the likeliest %d", c.topP, id, len(nucleus))
			}
		}
		if len(c.ids) < len(nucleus) {
			t.Fatalf("top_p %v: %d of the %d tokens of the nucleus could be drawn", c.topP, len(c.ids), len(nucleus))
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, 151936)
	for i := range logits {
		logits[i] = float32(r.NormFloat64() * 3)
	}
	c := chooser{temperature: 0.8, topP: 0.95, seed: 1}
	for b.Loop() {
		c.choose(logits)
	}
}

func TestProgressOnATerminalIsOneLine(t *testing.T) {
	var b strings.Builder
	c := Console{Out: &b, Terminal: true, FLOPsPerToken: 1e9, PeakFLOPS: 1e13}
	for step := 1; step <= 3; step++ {
		if err := c.Step(StepReport{Step: step, Steps: 3, Loss: 5.25 / float64(step), Tokens: 5000, Seconds: 1}); err != nil {
			t.Fatal(err)
		}
		c.printed = time.Time{}
	}
	if err := c.Evaluated(3, Evaluation{Loss: 4, BitsPerByte: 2}); err != nil {
		t.Fatal(err)
	}
	want := "\r\x1b[Kstep 1/3  loss 5.2500  5000 tokens/s  50% of peak  left 2s" +
		"\r\x1b[Kstep 2/3  loss 2.6250  5000 tokens/s  50% of peak  left 1s" +
		"\r\x1b[Kstep 3/3  loss 1.7500  5000 tokens/s  50% of peak  took 3s\n" +
		"\r\x1b[Kstep 3  held-out loss 4.0000  2.000 bits per byte\n"
	if b.String() != want {
		t.Errorf("printed %q\nwant    %q", b.String(), want)
	}
}

func TestALineThatWaitsToBeOverwrittenIsEndedWithTheRun(t *testing.T) {
	var b strings.Builder
	c := Console{Out: &b, Terminal: true}
	if err := errors.Join(c.Step(StepReport{Step: 1, Steps: 9, Tokens: 10, Seconds: 1}), c.End(), c.End()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(b.String(), "left 8s\n") {
		t.Errorf("printed %q", b.String())
	}
}

func TestProgressElsewhereIsALineNowAndThen(t *testing.T) {
	var b strings.Builder
	c := Console{Out: &b}
	for step := 1; step <= 50; step++ {
		if err := c.Step(StepReport{Step: step, Steps: 50, Loss: 1, Tokens: 10, Seconds: 0.001}); err != nil {
			t.Fatal(err)
		}
	}
	if lines := strings.Count(b.String(), "\n"); lines != 2 {
		t.Errorf("%d lines for 50 fast steps, want the first and the last:\n%s", lines, b.String())
	}
	if strings.ContainsAny(b.String(), "\r\x1b") {
		t.Error("control characters outside of a terminal")
	}
}

func ExampleBytes() {
	for _, n := range []int64{12, 2048, 1023999, 1<<20 - 512, 5 << 20, 12345678901} {
		fmt.Println(Bytes(n))
	}
	// Output:
	// 12 B
	// 2 KiB
	// 1000 KiB
	// 1024 KiB
	// 5 MiB
	// 11.5 GiB
}
