package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"time"
)

// ResultFormat is the format of result.json that this package writes.
const ResultFormat = 1

// Metrics is what a report measured, by name, such as "loss" or "eval_loss". A
// metric that was not measured is absent.
type Metrics map[string]float64

// names returns the metrics' names, sorted.
func (m Metrics) names() []string { return slices.Sorted(maps.Keys(m)) }

// Result is a report with the keys of Ray Train's result.json (source:
// ray/air/constants.py and ray/tune/result.py), whose readers find here what
// they look for. The metrics are keys beside the others.
type Result struct {
	Format            int     `json:"format"`
	TrainingIteration int     `json:"training_iteration"` // reports so far; a step, where each step reports
	TimeThisIter      float64 `json:"time_this_iter_s"`   // seconds since the report before
	TimeTotal         float64 `json:"time_total_s"`       // seconds since the start
	Timestamp         int64   `json:"timestamp"`          // Unix seconds
	Date              string  `json:"date"`               // 2006-01-02_15-04-05, local time
	Hostname          string  `json:"hostname"`
	PID               int     `json:"pid"`
	Done              bool    `json:"done"`
	Config            any     `json:"config"` // the resolved configuration, or what identifies it
	Metrics           Metrics `json:"-"`
}

// MarshalJSON implements json.Marshaler: the metrics become keys beside the
// others. A metric that is not finite is written as a Value is; one whose name
// is a key of Ray's is an error.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	text, err := json.Marshal(plain(r))
	if err != nil {
		return nil, err
	}
	var taken map[string]json.RawMessage
	if err := json.Unmarshal(text, &taken); err != nil {
		return nil, err
	}
	text = text[:len(text)-1] // the closing brace comes after the metrics
	for _, name := range r.Metrics.names() {
		if _, ok := taken[name]; ok {
			return nil, fmt.Errorf("metric %q has the name of a key that every result has", name)
		}
		key, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(Known(r.Metrics[name]))
		if err != nil {
			return nil, err
		}
		text = fmt.Appendf(text, ",%s:%s", key, value)
	}
	return append(text, '}'), nil
}

// UnmarshalJSON implements json.Unmarshaler. What MarshalJSON wrote as not
// finite is read as NaN; a key that is no number is passed over.
func (r *Result) UnmarshalJSON(text []byte) error {
	type plain Result
	if err := json.Unmarshal(text, (*plain)(r)); err != nil {
		return err
	}
	var all, own map[string]json.RawMessage
	keys, err := json.Marshal(plain{})
	if err = errors.Join(err, json.Unmarshal(keys, &own), json.Unmarshal(text, &all)); err != nil {
		return err
	}
	r.Metrics = Metrics{}
	for name, value := range all {
		var v Value[float64]
		if _, ok := own[name]; ok || json.Unmarshal(value, &v) != nil {
			continue
		}
		number, known := v.Get()
		if !known {
			number = math.NaN()
		}
		r.Metrics[name] = number
	}
	return nil
}

// ReadResult reads result.json. A newer format than ResultFormat is refused.
func (d *Dir) ReadResult() (*Result, error) { return readResult(d.ResultFile()) }

func readResult(path string) (*Result, error) {
	var r Result
	if err := readJSON(path, ResultFormat, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// Results writes result.json, which holds the last report alone.
type Results struct {
	path     string
	hostname string
	config   any
	started  time.Time
	last     time.Time
	now      func() time.Time
}

// CreateResults returns the writer of result.json for a run that started then. config
// is the resolved configuration, marshalled into each report.
func (d *Dir) CreateResults(started time.Time, config any) (*Results, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", d.ResultFile(), err)
	}
	return &Results{path: d.ResultFile(), hostname: hostname, config: config, started: started, last: started, now: time.Now}, nil
}

// Report replaces result.json by a report of these metrics. iteration is Ray's
// training_iteration; done marks the last report. An error leaves the report
// before.
func (r *Results) Report(iteration int, metrics Metrics, done bool) error {
	now := r.now()
	err := writeJSON(r.path, Result{
		Format:            ResultFormat,
		TrainingIteration: iteration,
		TimeThisIter:      now.Sub(r.last).Seconds(),
		TimeTotal:         now.Sub(r.started).Seconds(),
		Timestamp:         now.Unix(),
		Date:              now.Format("2006-01-02_15-04-05"),
		Hostname:          r.hostname,
		PID:               os.Getpid(),
		Done:              done,
		Config:            r.config,
		Metrics:           metrics,
	})
	if err == nil {
		r.last = now
	}
	return err
}
