package scenario

import (
	"time"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/record"
)

// Format is the format of results.
const Format = 1

// Result is what a scenario gave on a machine: every run as it was, and the
// figures that come of them.
type Result struct {
	Format   int          `json:"format"`
	Time     time.Time    `json:"time"`
	Host     record.Host  `json:"host"`
	Build    record.Build `json:"build"`
	Device   bench.Device `json:"device"`
	Command  []string     `json:"command"` // that made this result
	Scenario Scenario     `json:"scenario"`
	// FLOPsPerToken and Parameters are the model's, 0 where nothing is trained.
	FLOPsPerToken float64 `json:"flops_per_token,omitempty"`
	Parameters    int64   `json:"parameters,omitempty"`

	Rounds []Round `json:"rounds"`

	Ratios []RatioFigure `json:"ratios,omitempty"`
	Shares []ShareFigure `json:"shares,omitempty"`
	// Disagreement is the greatest relative difference of losses that was seen,
	// and where; absent where losses are not compared.
	Disagreement *Disagreement `json:"disagreement,omitempty"`
}

// Round is one turn of every side, in the order in which they ran.
type Round struct {
	Runs []Run `json:"runs"`
}

// Run is one run of a side. It has a Sample or a Failure.
type Run struct {
	Side    string   `json:"side"`
	Seconds float64  `json:"seconds"` // of the whole command
	Limits  Limits   `json:"limits"`  // means of a reading before and one after
	Sample  *Sample  `json:"sample,omitempty"`
	Failure *Failure `json:"failure,omitempty"`
}

// Limits are the machine's, with all cores that the work may use: Ranks ×
// Threads, as far as there are so many; or as many GPUs as Ranks, of which one was
// measured.
type Limits struct {
	F32  float64 `json:"f32_flops"`
	BF16 float64 `json:"bf16_flops"`
	Copy float64 `json:"copy_bytes"`
}

// Parts returns the part of a run's Limits that so many of the work's ranks have: by
// their cores, or a GPU each.
func (r *Result) Parts(ranks int) float64 {
	w := &r.Scenario.Work
	parts := func(ranks int) float64 {
		if r.Device.Kind == gpu {
			return float64(max(ranks, 1))
		}
		return float64(min(max(ranks, 1)*max(w.Threads, 1), max(r.Device.Threads, 1)))
	}
	return parts(ranks) / parts(w.Ranks)
}

// gpu is the kind of a device that is a GPU.
const gpu = "cuda"

// The reasons of a Failure.
const (
	OutOfMemory = "out of memory" // killed for it, or it said so
	TimedOut    = "timed out"
	Failed      = "failed"
)

// Failure is why a run gave nothing. A side that ran out of memory or time is not
// run again in later rounds: they have the same failure.
type Failure struct {
	Reason string `json:"reason"`
	Text   string `json:"text"` // the last lines that the command wrote to standard error
}

// Verdict is how a figure stands to its targets.
type Verdict string

// The verdicts.
const (
	NoTarget Verdict = ""
	Missed   Verdict = "missed"
	Firm     Verdict = "firm"
	Aimed    Verdict = "aim"
)

// RatioFigure is a Ratio, for one case, with what came of it. Pairs are by
// round, of the medians of the two runs; where both cases are of one side they
// are by timed step. By memory a run counts with the greatest of its ranks.
type RatioFigure struct {
	Ratio
	Pairs   []float64    `json:"pairs"`
	Spread  bench.Spread `json:"spread"`
	Verdict Verdict      `json:"verdict,omitempty"` // of the median
	Failure string       `json:"failure,omitempty"` // why there are no pairs: "FSDP2 eager: out of memory"
}

// ShareFigure is a Share, for one case, with what came of it by timed step.
type ShareFigure struct {
	Share
	Values  []float64    `json:"values"`
	Spread  bench.Spread `json:"spread"`
	Verdict Verdict      `json:"verdict,omitempty"`
	Failure string       `json:"failure,omitempty"`
}

// Disagreement is the greatest relative difference between two sides' losses.
type Disagreement struct {
	Relative float64 `json:"relative"`
	Step     int     `json:"step"` // counted from 1
	A        string  `json:"a"`
	B        string  `json:"b"`
	Case     string  `json:"case"`
	LossA    float64 `json:"a_loss"`
	LossB    float64 `json:"b_loss"`
}
