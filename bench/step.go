package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
)

// trainee is an engine that is trained on rows of tokens again and again: each
// sequence one document, every target valid.
type trainee struct {
	engine   *fsdp.Engine
	rows     rows
	micros   int     // micro-batches of a step
	lr, clip float64 // as train.Settings has them
	batch    fsdp.Batch
	steps    int     // done
	loss     float64 // of the last step, nats per target over all ranks
}

// newTrainee returns one whose steps are a micro-batch of random tokens, the
// same for each rank and step.
func newTrainee(e *fsdp.Engine) *trainee {
	return newTraineeOn(e, randomRows(e.Plan.Seqs, e.Plan.SeqLen, e.Plan.Model.Vocab), 1, 1e-4, 1)
}

func newTraineeOn(e *fsdp.Engine, r rows, micros int, lr, clip float64) *trainee {
	n := e.Plan.Seqs * e.Plan.SeqLen
	b := fsdp.Batch{IDs: make([]int32, n), Targets: make([]int32, n), Start: make([]int32, n), Pos: make([]int32, n)}
	for i := range n {
		b.Pos[i] = int32(i % e.Plan.SeqLen)
	}
	t := &trainee{engine: e, rows: r, micros: micros, lr: lr, clip: clip, batch: b}
	t.read(0)
	return t
}

// read fills the batch with this rank's micro-batch m of the step at hand.
func (t *trainee) read(m int) {
	p := t.engine.Plan
	first := ((t.steps*t.micros+m)*p.Mesh.Size() + p.Rank) * p.Seqs
	for s := range p.Seqs {
		row, at := t.rows.row(first+s), s*p.SeqLen
		copy(t.batch.IDs[at:at+p.SeqLen], row)
		copy(t.batch.Targets[at:at+p.SeqLen], row[1:])
	}
}

// step runs what the training loop runs for a step and returns the seconds that
// it took.
func (t *trainee) step() (float64, error) {
	began := time.Now()
	e := t.engine
	scale := 1 / float64(t.micros*e.Plan.Mesh.Size()*len(t.batch.IDs))
	var sum float64
	for m := range t.micros {
		t.read(m)
		if err := e.MicroBatch(t.batch, float32(scale), m == 0); err != nil {
			return 0, err
		}
		for _, l := range e.Losses() {
			sum += float64(l)
		}
	}
	all, err := e.Agree(sum, false)
	if err != nil {
		return 0, err
	}
	t.steps++
	t.loss = all.Loss * scale
	norm := math.Sqrt(all.SquaredNorm)
	if bad := t.loss + norm; math.IsNaN(bad) || math.IsInf(bad, 0) {
		return 0, fmt.Errorf("bench: step %d: the loss is %v and the gradient's norm %v; lower the learning rate", t.steps, t.loss, norm)
	}
	factor := 1.0
	if t.clip > 0 {
		factor = min(1, t.clip/(norm+1e-6))
	}
	err = e.Update(fsdp.Hyper{LR: t.lr, GradScale: factor, Step: t.steps})
	return time.Since(began).Seconds(), err
}

// decode generates as many tokens as the plan's cache holds, all but the last
// unseen, and returns the seconds that the last one took.
func (t *trainee) decode(last func()) (float64, error) {
	d := t.engine.Plan.Decoding
	t.engine.Forget()
	prompt := make([][]int32, d.Seqs)
	for i := range prompt {
		prompt[i] = t.batch.IDs[:d.CacheLen-1]
	}
	if _, err := t.engine.Extend(prompt); err != nil {
		return 0, err
	}
	for i := range prompt {
		prompt[i] = t.batch.IDs[:1]
	}
	last()
	began := time.Now()
	_, err := t.engine.Extend(prompt)
	return time.Since(began).Seconds(), err
}

// measureSteps runs the step on that many threads, 0 of a GPU, with a reading of the
// peaks before and after each one.
func measureSteps(ctx context.Context, t *trainee, g gauge, threads, steps int) (Step, error) {
	var seconds, tokens, peaks, shares, had, onCores []float64
	p := t.engine.Plan
	rows := float64(p.Seqs * p.SeqLen)
	flops := rows * p.Model.FLOPsPerToken(p.SeqLen)
	before := g.peaks(rates{})
	peaks = append(peaks, before.peak(g.typ))
	for range steps {
		if err := ctx.Err(); err != nil {
			return Step{}, err
		}
		used := cpuSeconds()
		s, err := t.step()
		if err != nil {
			return Step{}, err
		}
		used = cpuSeconds() - used
		after := g.peaks(rates{})
		peaks = append(peaks, after.peak(g.typ))
		seconds, tokens = append(seconds, s), append(tokens, rows/s)
		shares = append(shares, flops/s/between(before, after).peak(g.typ))
		if threads > 0 {
			used = max(used, 1e-6) / float64(threads) // the clock may be coarse
			had, onCores = append(had, used/s), append(onCores, flops/used)
		}
		before = after
	}
	best := slices.Max(peaks)
	for i := range onCores {
		onCores[i] /= best
	}
	return Step{
		Seconds: SpreadOf(seconds), Tokens: SpreadOf(tokens), Peak: SpreadOf(peaks),
		Share: SpreadOf(shares), Cores: SpreadOf(had), OnCores: SpreadOf(onCores),
	}, nil
}

// cpuSeconds returns the time that this process's threads have had on cores.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // the arguments are right, and there is no other reason
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
