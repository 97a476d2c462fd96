package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// State is how a part ended.
type State string

// The states.
const (
	OK     State = "ok"
	Failed State = "failed"
	NotRun State = "not run" // for the reason that is given; never as good as OK
)

// Part is a piece of the check that can be run alone.
type Part struct {
	Name string
	// Claim is what is true where the part is OK.
	Claim string
	// Within is the longest that it may take.
	Within time.Duration

	run func(ctx context.Context, c *check) error
}

// Outcome is what came of a part.
type Outcome struct {
	Name    string  `json:"name"`
	Claim   string  `json:"claim"`
	State   State   `json:"state"`
	Reason  string  `json:"reason,omitempty"` // why it failed or was not run
	Seconds float64 `json:"seconds"`
	Tables  []Table `json:"tables,omitempty"`
	// Figures are numbers that goals are judged by, by name: FLOP/s, ratios.
	Figures map[string]float64 `json:"figures,omitempty"`
}

// Table is figures as they are shown. A cell is a string, a float64 in the unit of
// its column, or nil where there is no figure.
type Table struct {
	Title   string   `json:"title"`
	Columns []Column `json:"columns"`
	Rows    [][]any  `json:"rows"`
	Note    string   `json:"note,omitempty"`
}

// Column names what stands in a table's column.
type Column struct {
	Name string `json:"name"`
	Unit Unit   `json:"unit,omitempty"`
}

// Unit is what a number counts.
type Unit string

// The units; Text is no number, Share is from 0 to 1, Times is a ratio.
const (
	Text   Unit = ""
	Count  Unit = "count"
	Second Unit = "s"
	Byte   Unit = "bytes"
	FLOPS  Unit = "FLOP/s"
	Rate   Unit = "bytes/s"
	Tokens Unit = "tokens/s"
	Share  Unit = "share"
	Times  Unit = "x"
	Error  Unit = "relative"
)

// check is a part that runs.
type check struct {
	*Machine
	Sizes
	outcome  *Outcome
	failures []string
}

// table adds a table, to which rows may be added as long as the part runs.
func (c *check) table(title string, columns ...Column) *Table {
	c.outcome.Tables = append(c.outcome.Tables, Table{Title: title, Columns: columns, Rows: [][]any{}})
	return &c.outcome.Tables[len(c.outcome.Tables)-1]
}

// add adds a row. What is no number to JSON becomes a text.
func (t *Table) add(cells ...any) {
	for i, x := range cells {
		if f, ok := x.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
			cells[i] = fmt.Sprint(f)
		}
	}
	t.Rows = append(t.Rows, cells)
}

// figure notes a number that goals are judged by.
func (c *check) figure(name string, x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return // no goal is reached by it
	}
	if c.outcome.Figures == nil {
		c.outcome.Figures = map[string]float64{}
	}
	c.outcome.Figures[name] = x
}

// fail notes what is wrong; the part goes on, to show what else is.
func (c *check) fail(format string, args ...any) {
	c.failures = append(c.failures, fmt.Sprintf(format, args...))
}

// lacking is why a part cannot be run on this machine.
type lacking struct{ why string }

func (l lacking) Error() string { return l.why }

func lacks(format string, args ...any) error { return lacking{fmt.Sprintf(format, args...)} }

// mostReasons bounds what is told of failures.
const mostReasons = 10

// Run runs the part in this process. A panic is a failure like any other.
func (p Part) Run(ctx context.Context, m *Machine, s Sizes) (o Outcome) {
	o = Outcome{Name: p.Name, Claim: p.Claim}
	began := time.Now()
	c := &check{Machine: m, Sizes: s, outcome: &o}
	err := func() (err error) {
		defer func() {
			if x := recover(); x != nil {
				err = fmt.Errorf("panic: %v", x)
			}
		}()
		return p.run(ctx, c)
	}()
	o.Seconds = time.Since(began).Seconds()
	var l lacking
	if errors.As(err, &l) && len(c.failures) == 0 {
		o.State, o.Reason = NotRun, l.why
		return o
	}
	if err != nil {
		c.fail("%v", err)
	}
	if o.State = OK; len(c.failures) > 0 {
		o.State = Failed
		if more := len(c.failures) - mostReasons; more > 0 {
			c.failures = append(c.failures[:mostReasons], fmt.Sprintf("and %d more", more))
		}
		o.Reason = strings.Join(c.failures, "\n")
	}
	return o
}

// Choose returns the parts of these names, in the order of all. The name of several, such as training of
// training-0.5b and training-1.5b, stands for each.
func Choose(all []Part, names []string) (chosen []Part, err error) {
	wanted := func(p Part, name string) bool { return p.Name == name || strings.HasPrefix(p.Name, name+"-") }
	var known []string
	for _, p := range all {
		known = append(known, p.Name)
		for _, name := range names {
			if wanted(p, name) {
				chosen = append(chosen, p)
				break
			}
		}
	}
	var errs []error
	for _, name := range names {
		found := false
		for _, p := range all {
			found = found || wanted(p, name)
		}
		if !found {
			errs = append(errs, fmt.Errorf("there is no part %q; the parts are %s", name, strings.Join(known, ", ")))
		}
	}
	return chosen, errors.Join(errs...)
}

// loaderPart is what all others need.
var loaderPart = Part{"loader", "the driver, cuBLAS and NCCL are found, and at least one GPU can be used", 90 * time.Second, loader}

// Parts are all parts of a check of these sizes, in the order in which they run.
func Parts(s Sizes) []Part {
	const short, long, longest = 90 * time.Second, 4 * time.Minute, 6 * time.Minute
	parts := []Part{
		loaderPart,
		{"compiled", "the driver compiles every kernel for this GPU", long, compiles},
		{"kernels", "every operation on the GPU equals its Go reference within the bounds of its formats, in f32 and bf16, at odd sizes", long, kernels},
		{"gemm", "products of cuBLAS at the models' shapes are right, in f32 without TF32 and in bf16", short, gemm},
		{"shares", "every operation of a training step runs at the models' shapes, each measured against its limit", short, shares},
		{"graphs", "a CUDA graph computes what its operations do", short, graphs},
		{"nccl", "NCCL's collectives on one GPU are right", short, oneGPU},
		{"nccl-all", "NCCL's collectives over all GPUs of this machine are right", long, allGPUs},
		{"engine", "training steps on the GPU are those on the CPU, in bf16, with and without graphs", long, engine},
		{"engine-all", "training steps over all GPUs, sharded over NCCL, are those of the same sequences on the CPU", long, engineOfAll},
		{"memory", "what the plan and the measured rows say a GPU's memory holds is what the driver counts, to 5 %", short, memory},
		{"witness", "an independent binding of the driver (gorgonia.org/cu) sees the same device and the same copies", short, witness},
		{"sustained", "a large product of cuBLAS is sustained: the yardstick of speed", s.Sustained + short, sustained},
	}
	for _, m := range s.Models {
		parts = append(parts, Part{"training-" + m.Name, "training in bf16 runs at the shape of " + m.Model, long, training(m)})
	}
	for _, m := range slices.Backward(s.Models) { // the largest first: it is what speed is judged by, if time runs out
		parts = append(parts, Part{"pytorch-" + m.Name, "training in bf16 is compared with PyTorch (FSDP2, SDPA, torch.compile) on the same GPU, in turns, and the losses agree", longest, pytorch(m)})
	}
	return parts
}
