package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

// Reporter is told what happens. An error of it ends the run.
type Reporter interface {
	Step(StepReport) error
	Evaluated(step int, e Evaluation) error
}

// StepReport is one optimizer step as it went.
type StepReport struct {
	Step, Steps int     // steps done, counting this one, and of the whole run
	Loss        float64 // nats per valid target, before the update
	Norm        float64 // of the gradient, before clipping
	LR          float64
	Tokens      int64 // positions of this step, masked ones included
	Targets     int   // valid targets of this step
	Seconds     float64
}

// Summary is how a run went.
type Summary struct {
	Steps       int
	Tokens      int64
	Seconds     float64    // of training steps, evaluation not counted
	Loss        float64    // of the last step
	HeldOut     Evaluation // the last one
	Evaluated   int        // steps done when HeldOut was measured
	Interrupted bool       // ctx ended it; HeldOut is an earlier one or none
}

// Finite says whether the last losses are numbers, and so the weights.
func (s Summary) Finite() bool {
	return finite(s.Loss) && (s.HeldOut.Targets == 0 || finite(s.HeldOut.Loss))
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Job is a run's parts, ready to go: an engine with weights in it and data.
type Job struct {
	Settings Settings
	Engine   *fsdp.Engine
	Device   device.Device // the engine's
	Train    *data.Dataset
	HeldOut  *data.Dataset
	Report   Reporter

	trace *trace // nil: none
}

// NotFinite is the error of a run whose gradient became NaN or infinite. All of
// its ranks have it at once; the weights are those before the step.
type NotFinite struct {
	Step       int   // counted from 1
	MicroBatch int   // the first of the step that showed it, counted from 1; 0 where a replay showed none
	Where      error // what the replay met: of the first such operation a device.NotFiniteError; nil where it showed none
	Elsewhere  bool  // another rank says where
}

func (e *NotFinite) Error() string {
	if e.Elsewhere {
		return fmt.Sprintf("step %d: the gradient is not finite, which another rank met first", e.Step)
	}
	if e.Where == nil {
		return fmt.Sprintf("step %d: the gradient is not finite, though no operation of a replay gave anything that is not; a sum overflowed", e.Step)
	}
	where := e.Where
	if found := (*device.NotFiniteError)(nil); errors.As(where, &found) {
		where = found
	}
	return fmt.Sprintf("step %d: the gradient is not finite: micro-batch %d: %s; lower train.lr, raise train.warmup, or look at the data of this step",
		e.Step, e.MicroBatch, strings.ReplaceAll(where.Error(), "\n", "; "))
}

func (e *NotFinite) Unwrap() error { return e.Where }

// StepsOver returns the number of steps of a run with these settings over set.
func (s Settings) StepsOver(set *data.Dataset) int {
	if s.Steps > 0 {
		return s.Steps
	}
	return max(s.Epochs*set.Packs()/s.Batch, 1)
}

// Run trains. When ctx ends, the step at hand is finished and Run returns with
// Interrupted. It returns a NotFinite error before the optimizer would have
// used a gradient that is not finite.
func (j *Job) Run(ctx context.Context) (Summary, error) {
	var sum Summary
	steps := j.Settings.StepsOver(j.Train)
	l, err := newLoop(j, steps)
	if err != nil {
		return sum, err
	}
	defer j.trace.close()
	for step := range steps {
		if sum.Interrupted || j.alone() && ctx.Err() != nil {
			sum.Interrupted = true
			return sum, nil
		}
		r, stop, err := l.step(step, ctx.Err() != nil)
		if err != nil {
			return sum, err
		}
		sum.Interrupted = stop && step+1 < steps
		sum.Steps, sum.Loss = step+1, r.Loss
		sum.Tokens += r.Tokens
		sum.Seconds += r.Seconds
		if err := j.Report.Step(r); err != nil {
			return sum, err
		}
		j.trace.reported(step+1, steps)
		if every := j.Settings.EvalEvery; !sum.Interrupted && every > 0 && (step+1)%every == 0 && step+1 < steps {
			if err := j.evaluate(ctx, step+1, j.Settings.EvalPacks, &sum); err != nil || sum.Interrupted {
				return sum, err
			}
		}
	}
	return sum, j.evaluate(ctx, steps, 0, &sum)
}

// alone reports whether this is the only rank. Of several, none may act on what
// it alone knows: they would wait for each other in vain.
func (j *Job) alone() bool { return j.Engine.Plan.Mesh.Size() == 1 }

func (j *Job) evaluate(ctx context.Context, step, packs int, sum *Summary) error {
	j.trace.phase("evaluate")
	ev, err := Evaluate(ctx, j.Engine, j.HeldOut, packs)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		sum.Interrupted = true
		return nil
	}
	if err != nil {
		return err
	}
	sum.HeldOut, sum.Evaluated = ev, step
	if err := j.Report.Evaluated(step, ev); err != nil || sum.Finite() {
		return err
	}
	return fmt.Errorf("step %d: the held-out loss is not finite, so the weights are not; lower train.lr or raise train.warmup", step)
}

// loop is what lasts from step to step.
type loop struct {
	*Job
	steps   int
	sampler *data.Sampler
	batch   batch
}

func newLoop(j *Job, steps int) (*loop, error) {
	seqs, ranks := j.Engine.Plan.Seqs, j.Engine.Plan.Mesh.Size()
	if j.Settings.Batch%(seqs*ranks) != 0 {
		return nil, fmt.Errorf("train.batch: %d sequences cannot be cut in micro-batches of %d for %s", j.Settings.Batch, seqs, Number(ranks, "rank"))
	}
	sampler, err := data.NewSampler(j.Train, j.Settings.Batch)
	if err != nil {
		return nil, err
	}
	return &loop{Job: j, steps: steps, sampler: sampler, batch: newBatch(seqs, j.Train.Length())}, nil
}

// step runs one optimizer step: of its packs this rank takes every so many
// micro-batches one. wish is this rank's wish to stop after it, stop whether any
// rank has it. It allocates nothing, but where an epoch begins.
func (l *loop) step(step int, wish bool) (r StepReport, stop bool, err error) {
	began := time.Now()
	l.trace.begin(step + 1)
	r = StepReport{
		Step: step + 1, Steps: l.steps, LR: l.Settings.Rate(step, l.steps), Targets: l.sampler.ValidTokens(step),
		Tokens: int64(l.Settings.Batch * l.Train.Length()),
	}
	// A step of nothing but masked targets has no gradient; 1 keeps it zero.
	scale := 1 / float64(max(r.Targets, 1))
	var loss float64
	for m := range l.micros() {
		l.trace.phase("batch")
		l.read(step, m)
		l.trace.phase("micro-batch")
		if err := l.Engine.MicroBatch(l.batch.Batch, float32(scale), m == 0); err != nil {
			return r, false, fmt.Errorf("step %d: %w", step+1, err)
		}
		loss += total(l.Engine.Losses())
	}
	l.trace.phase("agree")
	all, err := l.Engine.Agree(loss, wish)
	if err != nil {
		return r, false, fmt.Errorf("step %d: %w", step+1, err)
	}
	r.Loss, r.Norm = all.Loss*scale, math.Sqrt(all.SquaredNorm)
	if !finite(r.Loss) || !finite(r.Norm) {
		return r, false, l.locate(step, float32(scale))
	}
	factor := 1.0
	if c := l.Settings.Clip; c > 0 {
		// As torch.nn.utils.clip_grad_norm_ has it.
		factor = min(1, c/(r.Norm+1e-6))
	}
	l.trace.phase("update")
	if err := l.Engine.Update(fsdp.Hyper{LR: r.LR, GradScale: factor, Step: step + 1}); err != nil {
		return r, false, fmt.Errorf("step %d: %w", step+1, err)
	}
	r.Seconds = time.Since(began).Seconds()
	l.trace.end()
	return r, all.Stop, nil
}

// micros is the number of this rank's micro-batches in a step.
func (l *loop) micros() int {
	return l.Settings.Batch / l.Engine.Plan.Seqs / l.Engine.Plan.Mesh.Size()
}

// read fills the batch with this rank's micro-batch m of a step. Ranks take
// turns, so that the first micro-batches of all are the step's first packs.
func (l *loop) read(step, m int) {
	p, refs := l.Engine.Plan, l.sampler.Step(step)
	at := (m*p.Mesh.Size() + p.Rank) * p.Seqs
	for i := range p.Seqs {
		l.Train.Read(refs[at+i].Epoch, refs[at+i].Pack, l.batch.pack(i))
	}
}
