package train

import (
	"errors"
	"math"
	"time"

	"github.com/gofsdp/gofsdp/record"
)

// columns are those of progress.csv, whose other metrics stay empty in a line.
var columns = []string{"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "time_total_s", "eval_loss", "eval_bits_per_byte"}

// Recorder writes a run's metrics into its directory: progress.csv and
// TensorBoard's events with each step, result.json at most once a second and
// at the end.
type Recorder struct {
	progress *record.Progress
	events   *record.Events
	results  *record.Results

	began, reported time.Time
	tokens          int64
	step            int
	last            record.Metrics
}

// NewRecorder creates the files in dir. config goes into result.json.
func NewRecorder(dir *record.Dir, began time.Time, config any) (*Recorder, error) {
	r := &Recorder{began: began, last: record.Metrics{}}
	var err error
	if r.progress, err = dir.CreateProgress(columns...); err != nil {
		return nil, err
	}
	if r.events, err = dir.CreateEvents(); err != nil {
		return nil, errors.Join(err, r.progress.Close())
	}
	if r.results, err = dir.CreateResults(began, config); err != nil {
		return nil, errors.Join(err, r.progress.Close(), r.events.Close())
	}
	return r, nil
}

// Step implements Reporter.
func (r *Recorder) Step(s StepReport) error {
	r.tokens += s.Tokens
	r.step = s.Step
	return r.write(record.Metrics{
		"loss": s.Loss, "grad_norm": s.Norm, "lr": s.LR, "tokens": float64(r.tokens), "tokens_per_second": float64(s.Tokens) / s.Seconds,
	}, s.Step == s.Steps)
}

// Evaluated implements Reporter.
func (r *Recorder) Evaluated(step int, e Evaluation) error {
	m := record.Metrics{"eval_loss": e.Loss}
	if !math.IsNaN(e.BitsPerByte) {
		m["eval_bits_per_byte"] = e.BitsPerByte
	}
	return r.write(m, true)
}

func (r *Recorder) write(m record.Metrics, now bool) error {
	t := time.Now()
	if err := r.events.Scalars(int64(r.step), t, m); err != nil {
		return err
	}
	for k, v := range m {
		r.last[k] = v
	}
	m["step"], m["time_total_s"] = float64(r.step), t.Sub(r.began).Seconds()
	if err := r.progress.Append(m); err != nil {
		return err
	}
	if !now && t.Sub(r.reported) < time.Second {
		return nil
	}
	r.reported = t
	return r.results.Report(r.step, r.last, false)
}

// Close writes the last result, marked done, and makes all files durable.
func (r *Recorder) Close() error {
	return errors.Join(r.results.Report(r.step, r.last, true), r.progress.Close(), r.events.Close())
}

// Reporters tells each of them, in order.
type Reporters []Reporter

// Step implements Reporter.
func (rs Reporters) Step(s StepReport) error {
	for _, r := range rs {
		if err := r.Step(s); err != nil {
			return err
		}
	}
	return nil
}

// Evaluated implements Reporter.
func (rs Reporters) Evaluated(step int, e Evaluation) error {
	for _, r := range rs {
		if err := r.Evaluated(step, e); err != nil {
			return err
		}
	}
	return nil
}
