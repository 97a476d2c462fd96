package gpucheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

// The sides of the comparison.
const (
	ours   = "gofsdp"
	theirs = "PyTorch, compiled"
)

// needed says whether PyTorch and what the peer stands on are there, and what they are.
const needed = `
import os, shutil, sys
import numpy, safetensors, torch, transformers
if not torch.cuda.is_available():
    sys.exit("its PyTorch %s sees no GPU" % torch.__version__)
if shutil.which(os.environ.get("CXX", "g++")) is None:
    sys.exit("torch.compile needs a C++ compiler, and there is none")
try:  # Triton compiles its access to the driver, by a C compiler and Python's headers, as the first it does
    import triton
    triton.runtime.driver.active.get_current_target()
except Exception as e:
    sys.exit("torch.compile needs Triton with a C compiler and Python's headers: " + " ".join(str(e).split()))
print("PyTorch", torch.__version__, "transformers", transformers.__version__)
`

// pytorch compares a shape with the peer, in turns.
func pytorch(s Shape) func(context.Context, *check) error {
	return func(ctx context.Context, c *check) error {
		peer := filepath.Join(c.Tools, "bench", "peers", "fsdp2.py")
		if _, err := os.Stat(peer); err != nil {
			return lacks("%s is not there", peer)
		}
		python, versions, err := c.python(ctx)
		if err != nil {
			return err
		}
		sequences, _, err := s.fit(c.first().Memory)
		if err != nil {
			return err
		}
		return c.compare(ctx, s, sequences, python, versions)
	}
}

// python returns the first Python that can run the peer, and what it has.
func (c *check) python(ctx context.Context) (path, versions string, err error) {
	if len(c.Pythons) == 0 {
		return "", "", lacks("there is no Python; GOFSDP_PYTHON names one that has PyTorch")
	}
	var why []string
	for _, path := range c.Pythons {
		said, err := c.start(ctx, nil, path, "-c", needed)
		if err == nil {
			return path, said, nil
		}
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		why = append(why, fmt.Sprintf("%s: %s", path, lastLines(said, 1)))
	}
	return "", "", lacks("no Python can run the peer; GOFSDP_PYTHON names one that can (%s)", strings.Join(why, "; "))
}

// compare runs the scenario.
func (c *check) compare(ctx context.Context, s Shape, sequences int, python, versions string) (err error) {
	x := c.scenario(s, sequences)
	r := &scenario.Runner{
		Open: func(int) (device.Device, error) {
			d, err := c.open(cuda.Options{})
			if err != nil {
				return nil, err
			}
			m, err := onStream(d, c.Sizes)
			if err != nil {
				return nil, err
			}
			return m, nil
		},
		Gofsdp: c.Gofsdp, Python: python, Dir: c.Tools, Within: 3 * time.Minute, // torch.compile begins with nothing
		Command: []string{"gofsdp", "gpu-check"}, Log: c.Log, Say: func(format string, args ...any) { fmt.Fprintf(c.Log, format+"\n", args...) },
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	result, err := r.Run(ctx, x)
	if err != nil {
		return err
	}
	t := c.table(s.title(sequences), Column{"round", Count}, Column{"side", Text}, Column{"tokens a second", Tokens}, Column{"FLOP/s of the model", FLOPS}, Column{"last loss", Text})
	t.Note = fmt.Sprintf("%s. Both begin with the same weights and see the same tokens; each line is the median of %d steps of a run, runs in turns.", versions, c.Timed)
	for round, done := range result.Rounds {
		for _, run := range done.Runs {
			switch f := run.Failure; {
			case f != nil && run.Side == theirs && f.Reason == scenario.OutOfMemory:
				return lacks("%s ran out of memory with %s of %d tokens", theirs, train.Number(sequences, "sequence"), s.Length)
			case f != nil:
				c.fail("round %d: %s: %s: %s", round+1, run.Side, f.Reason, lastLines(f.Text, 4))
				continue
			}
			one := run.Sample.Cases[0]
			tokens := float64(one.Tokens) / bench.SpreadOf(one.Seconds).Median
			t.add(float64(round+1), run.Side, tokens, tokens*result.FLOPsPerToken, number(one.Losses[len(one.Losses)-1]))
		}
	}
	if d := result.Disagreement; d != nil && d.Relative > result.Scenario.Agree {
		c.fail("step %d: the loss of %s is %v, of %s %v", d.Step, d.A, d.LossA, d.B, d.LossB)
	}
	for _, f := range result.Ratios {
		if f.Failure == "" {
			ratio := c.table("Speed of gofsdp over PyTorch's", Column{"pairs", Count}, Column{"median", Times}, Column{"least", Times}, Column{"most", Times})
			ratio.add(float64(f.Spread.Count), f.Spread.Median, f.Spread.Low, f.Spread.High)
			c.figure("speed over PyTorch's", f.Spread.Median)
		}
	}
	return nil
}

// scenario is the comparison.
func (c *check) scenario(s Shape, sequences int) *scenario.Scenario {
	return &scenario.Scenario{
		Name: "gpu-" + s.Name, Title: "training " + s.Model + " on one GPU in bf16",
		Rounds: c.Rounds,
		Work: scenario.Work{
			Kind: scenario.Steps, Model: s.Model, Precision: "bf16", Length: s.Length, Sequences: sequences, Ranks: 1, Threads: max(runtime.NumCPU()/2, 1),
			Warm: c.Warm, Timed: c.Timed, Cases: []scenario.StepCase{{Name: "one GPU", Strategy: string(fsdp.FullShard)}},
		},
		Sides: []scenario.Side{
			{Name: ours, Command: append([]string{"gofsdp"}, c.Side...)},
			{Name: theirs, Command: []string{"python", "bench/peers/fsdp2.py", "--compile"}},
		},
		Ratios: []scenario.Ratio{{Of: ours, Against: theirs, By: scenario.BySpeed}},
		Agree:  agreement,
	}
}

// agreement is how far the losses of two sides that compute in bf16 may be apart, as in bench/scenarios.
const agreement = 5e-3

// Side does the work of a task of a comparison on a GPU and writes the sample.
func Side(ctx context.Context, m *Machine, s Sizes, file string) (err error) {
	task, err := scenario.ReadTask(file)
	if err != nil {
		return err
	}
	w, o := task.Work, task.Optimizer
	if w.Kind != scenario.Steps || len(w.Cases) != 1 || w.Ranks != 1 {
		return fmt.Errorf("%s: a GPU's side does training steps of one rank, in one case", file)
	}
	d, err := m.open(cuda.Options{Graphs: true, Urgent: asRanks.Urgent})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	x := Shape{Model: w.Model, Length: w.Length}.settings(w.Sequences)
	x.Start, x.Tokens = task.Start, task.Tokens
	x.Optimizer = fsdp.Optimizer{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay}
	x.LR, x.Clip, x.Rounds, x.Warm, x.Steps, x.Reading = o.LR, o.Clip, 1, w.Warm, w.Timed, s.Reading
	times, err := steps(ctx, d, s, x)
	if err != nil {
		return err
	}
	text, err := json.Marshal(scenario.Sample{
		Format: scenario.TaskFormat, Versions: map[string]string{"go": runtime.Version()},
		Cases: []scenario.Case{{
			Name: w.Cases[0].Name, Seconds: times.Seconds, Limit: times.Limit(), Tokens: times.Tokens, FLOPs: times.FLOPs, Losses: times.Losses,
		}},
	})
	if err != nil {
		return err
	}
	return record.WriteFileAtomic(task.Out, append(text, '\n'), 0o644)
}
