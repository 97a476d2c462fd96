package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// RunFormat is the format of run.json that this package writes. It reads this
// and all older ones.
const RunFormat = 1

// Run is run.json: what ran, where, on what data, and how it ended. Whoever
// knows a value fills it in; what stays empty is recorded as not known.
type Run struct {
	Format     int               `json:"format"`
	Gofsdp     Build             `json:"gofsdp"`
	Command    []string          `json:"command"` // the command line, program first
	Started    time.Time         `json:"started"`
	Ended      Value[time.Time]  `json:"ended"`
	Outcome    Outcome           `json:"outcome"`
	Host       Host              `json:"host"`
	Device     Value[string]     `json:"device"`      // what computed, on every rank: "cpu", "cuda", or "sim" of simulated GPUs
	ISA        Value[string]     `json:"isa"`         // the instruction set level that computed, on every rank
	Threads    Value[int]        `json:"threads"`     // threads that computed, all ranks of the host together
	Mesh       Value[string]     `json:"mesh"`        // ranks across nodes and within one, such as "2x4"
	Strategy   Value[string]     `json:"strategy"`    // what the ranks sharded
	Attempts   []Attempt         `json:"attempts"`    // the starts of its processes; empty while attempts.json is there
	ConfigHash Value[string]     `json:"config_hash"` // of config.yaml, as Hash gives it
	Model      Model             `json:"model"`
	Data       Data              `json:"data"`
	Seeds      map[string]uint64 `json:"seeds"` // by use
	Figures    Figures           `json:"figures"`
}

// Model is which model was trained.
type Model struct {
	Family     Value[string] `json:"family"`     // such as "qwen2"
	Source     Value[string] `json:"source"`     // the directory, shape or name it came from
	Parameters Value[int64]  `json:"parameters"` // a tied matrix counted once
}

// Data is what the model was trained and measured on.
type Data struct {
	Fingerprint      Value[string] `json:"fingerprint"` // of the tokens, with the tokenizer
	Documents        Value[int64]  `json:"documents"`   // for training
	Tokens           Value[int64]  `json:"tokens"`      // for training
	HeldOutDocuments Value[int64]  `json:"held_out_documents"`
	HeldOutTokens    Value[int64]  `json:"held_out_tokens"`
}

// Figures is what came out.
type Figures struct {
	Steps               Value[int64]   `json:"steps"`   // optimizer steps
	Tokens              Value[int64]   `json:"tokens"`  // seen in training
	Seconds             Value[float64] `json:"seconds"` // of the training steps alone, without evaluations
	TokensPerSecond     Value[float64] `json:"tokens_per_second"`
	ShareOfPeak         Value[float64] `json:"share_of_peak"`          // of PeakFLOPS, 0 to 1
	PeakFLOPS           Value[float64] `json:"peak_flops"`             // measured in this run, a second
	Loss                Value[float64] `json:"loss"`                   // of the last step, nats a token
	HeldOutLoss         Value[float64] `json:"held_out_loss"`          // nats a token
	BitsPerByte         Value[float64] `json:"bits_per_byte"`          // of the held-out text
	BaselineBitsPerByte Value[float64] `json:"baseline_bits_per_byte"` // of the byte model, on the same text
	PeakMemory          Value[int64]   `json:"peak_memory_bytes"`      // of the process
}

// State says how a run ended, or that it has not.
type State string

// The states of a run. One that was killed stays Running: nobody was left to
// write.
const (
	Running     State = "running"
	Succeeded   State = "succeeded"
	Failed      State = "failed"
	Interrupted State = "interrupted"
)

// Outcome is how a run ended.
type Outcome struct {
	State    State      `json:"state"`
	ExitCode Value[int] `json:"exit_code"`
	Reason   string     `json:"reason,omitempty"` // the error, one line
}

// OutcomeOf returns the outcome of a process that ends with that exit code: 0 is
// success, 130 (Ctrl-C) and 143 (SIGTERM) are interruptions, others failures.
func OutcomeOf(code int, reason string) Outcome {
	o := Outcome{State: Failed, ExitCode: Known(code), Reason: reason}
	switch code {
	case 0:
		o.State = Succeeded
	case 130, 143:
		o.State = Interrupted
	}
	return o
}

// notEnded is why it is not known how something ended.
const notEnded = "it has not ended"

// NewRun returns the record of a run that starts now in this process, with
// everything that can be known of the program and the host.
func NewRun() *Run {
	return &Run{
		Format:   RunFormat,
		Gofsdp:   ThisBuild(),
		Command:  append([]string(nil), os.Args...),
		Started:  time.Now(),
		Ended:    Unknown[time.Time](notEnded),
		Outcome:  Outcome{State: Running, ExitCode: Unknown[int](notEnded)},
		Host:     ThisHost(),
		Attempts: []Attempt{},
		Seeds:    map[string]uint64{},
	}
}

// End notes how and when the run ended, and with it an attempt under way.
func (r *Run) End(o Outcome) {
	r.Ended = Known(time.Now())
	r.Outcome = o
	if n := len(r.Attempts); n > 0 && r.Attempts[n-1].Outcome.State == Running {
		r.Attempts[n-1].End(o)
	}
}

// WriteRun writes run.json, in place of an earlier one.
func (d *Dir) WriteRun(r *Run) error { return writeJSON(d.RunFile(), r) }

// ReadRun reads run.json, and attempts.json where there is one: its attempts are
// the newer ones. A newer format of either is refused.
func (d *Dir) ReadRun() (*Run, error) {
	r, err := LoadRun(d.RunFile())
	if err != nil {
		return nil, err
	}
	switch list, err := loadAttempts(d.AttemptsFile()); {
	case err == nil:
		r.Attempts = list
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	return r, nil
}

// LoadRun reads a record from a file. Its attempts are those of a run that has
// ended.
func LoadRun(path string) (*Run, error) {
	var r Run
	if err := readJSON(path, RunFormat, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// writeJSON writes v, indented, as one atomic file.
func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return WriteFileAtomic(path, append(text, '\n'), 0o666)
}

// readJSON reads a file of a numbered format into v, where the number is at most
// newest. Keys that are not known are of a later program with the same format,
// and are passed over.
func readJSON(path string, newest int, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var head struct {
		Format int `json:"format"`
	}
	err = json.Unmarshal(text, &head)
	switch {
	case err != nil:
	case head.Format > newest:
		err = fmt.Errorf("it has format %d, this program reads up to %d: use a newer gofsdp", head.Format, newest)
	case head.Format < 1:
		err = errors.New("it has no format number: not a file of gofsdp's")
	default:
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}
