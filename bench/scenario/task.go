package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// TaskFormat is the format of tasks and samples.
const TaskFormat = 1

// Task is the file that tells a side its work, as JSON. All sides of a scenario
// get the same one, but for Out.
type Task struct {
	Format int  `json:"format"`
	Work   Work `json:"work"`

	// Device is what computes: cpu, cuda or sim; empty is auto: GPUs where
	// there are.
	Device string `json:"device,omitempty"`

	// Of training steps:
	//
	// Start is a Hugging Face directory with config.json and fp32 weights, which
	// all sides train from.
	Start string `json:"start,omitempty"`
	// Tokens is a file of int32, little-endian, rows of Work.Length+1: inputs are
	// all but the last token of a row, targets all but the first. Every row is one
	// document and every target counts. Rows are in the order step, micro-batch,
	// rank, sequence; where they are used up, they are used again from the first.
	// A case with other numbers of ranks or micro-batches takes rows in the same
	// order.
	Tokens    string    `json:"tokens,omitempty"`
	Optimizer Optimizer `json:"optimizer,omitzero"`

	// Out is the file that the side writes its Sample to, whole or not at all.
	Out string `json:"out"`
}

// Optimizer is AdamW as PyTorch's, with the gradient's norm clipped. Norms and
// biases do not decay.
type Optimizer struct {
	LR          float64 `json:"lr"` // of every step
	Beta1       float64 `json:"beta1"`
	Beta2       float64 `json:"beta2"`
	Eps         float64 `json:"eps"`
	WeightDecay float64 `json:"weight_decay"`
	Clip        float64 `json:"clip"`
}

// ReadTask reads a task, as a side that is gofsdp does. All mistakes that can be
// seen before the model and the files are opened are in the error, each a line of
// its own with file and key.
func ReadTask(path string) (*Task, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t := new(Task)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(t); err != nil {
		return nil, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "json: "))
	}
	var mistakes []error
	wrong := func(key, format string, args ...any) {
		mistakes = append(mistakes, fmt.Errorf("%s: %s: %w", path, key, fmt.Errorf(format, args...)))
	}
	if t.Format != TaskFormat {
		wrong("format", "is %d; this is gofsdp of format %d", t.Format, TaskFormat)
	}
	if dir, err := os.Stat(filepath.Dir(t.Out)); t.Out == "" || err != nil || !dir.IsDir() {
		wrong("out", "is %q; name a file to write to, in a directory that is there", t.Out)
	}
	if devices := []string{"", "auto", "cpu", "cuda", "sim"}; !slices.Contains(devices, t.Device) {
		wrong("device", "is %q; write one of %s, or leave it out", t.Device, strings.Join(devices[1:], ", "))
	}
	if t.Work.Kind == Startup {
		wrong("work.kind", "is %s, which is a command of its own, without a task", Startup)
	} else {
		t.Work.check(wrong)
	}
	if t.Work.Kind == Steps {
		t.Optimizer.check(wrong)
	}
	return t, errors.Join(mistakes...)
}

// check tells what is wrong with the optimizer. Its numbers are computed with as
// fp32, so what counts is what they are then.
func (o *Optimizer) check(wrong func(key, format string, args ...any)) {
	for _, x := range []struct {
		key   string
		value float64
		right bool
		want  string
	}{
		{"lr", o.LR, o.LR > 0, "more than 0"},
		{"beta1", o.Beta1, o.Beta1 >= 0 && float32(o.Beta1) < 1, "from 0 to below 1"},
		{"beta2", o.Beta2, o.Beta2 >= 0 && float32(o.Beta2) < 1, "from 0 to below 1"},
		{"eps", o.Eps, float32(o.Eps) > 0, "more than 0"},
		{"weight_decay", o.WeightDecay, o.WeightDecay >= 0, "at least 0"},
		{"clip", o.Clip, o.Clip >= 0, "at least 0, which clips nothing"},
	} {
		if !x.right {
			wrong("optimizer."+x.key, "is %g; write a number, %s", x.value, x.want)
		}
	}
}

// Sample is what one run of a side measured.
type Sample struct {
	Format   int               `json:"format"`
	Versions map[string]string `json:"versions"` // of what it is made of: "gofsdp", "torch", "python"
	Cases    []Case            `json:"cases"`
}

// Case is what was measured of one case, once for each timed step or repetition.
// What ranks do together lasts until the slowest of them is done.
type Case struct {
	Name    string    `json:"name"` // of StepCase; of a collective "all-gather 4 MB"; of an operation its name; of a start-up "first step"
	Seconds []float64 `json:"seconds"`
	// Limit is the least seconds that each of Seconds could have been at the
	// machine's limits at that time; empty where the side does not know them.
	Limit []float64 `json:"limit_seconds,omitempty"`
	// Tokens is what one of Seconds is for, over all ranks, and FLOPs their
	// model's (gofsdp's DESIGN.md, Numbers); 0 where it is no training.
	Tokens int64   `json:"tokens,omitempty"`
	FLOPs  float64 `json:"flops,omitempty"` // 0: the runner counts them from the model
	// Losses are means over the step's targets, also those of the steps that are
	// not timed.
	Losses []float64 `json:"losses,omitempty"`
	// Peak is the greatest resident memory of each rank's process from the end of
	// the first step to the last, in bytes: VmHWM after a reset through
	// /proc/self/clear_refs. On a GPU it is what the process has taken of the GPU's
	// memory: of a peer what its allocator has reserved, of gofsdp what the driver
	// counts from before the weights are there, so also what NCCL takes for steps.
	Peak []int64 `json:"peak_bytes,omitempty"`
}
