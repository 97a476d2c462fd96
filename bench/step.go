package bench

import (
	"context"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
)

// trainee is an engine with a batch of random tokens that it is trained on
// again and again: each sequence one document, every target valid.
type trainee struct {
	engine *fsdp.Engine
	batch  fsdp.Batch
	steps  int // done
}

func newTrainee(e *fsdp.Engine) *trainee {
	p := e.Plan
	rows := p.Seqs * p.SeqLen
	b := fsdp.Batch{IDs: make([]int32, rows), Targets: make([]int32, rows), Start: make([]int32, rows), Pos: make([]int32, rows)}
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range rows {
		b.IDs[i] = int32(rng.IntN(p.Model.Vocab))
		b.Targets[i] = int32(rng.IntN(p.Model.Vocab))
		b.Pos[i] = int32(i % p.SeqLen)
	}
	return &trainee{engine: e, batch: b}
}

// step runs what the training loop runs for a step of one micro-batch and
// returns the seconds that it took.
func (t *trainee) step() (float64, error) {
	began := time.Now()
	if err := t.engine.MicroBatch(t.batch, 1/float32(len(t.batch.IDs)), true); err != nil {
		return 0, err
	}
	if _, err := t.engine.Agree(0, false); err != nil {
		return 0, err
	}
	t.steps++
	err := t.engine.Update(fsdp.Hyper{LR: 1e-4, GradScale: 1, Step: t.steps})
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

// measureSteps runs the step on that many threads, with a reading of the peaks
// before and after each one.
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
		used = max(cpuSeconds()-used, 1e-6) / float64(threads) // the clock may be coarse
		after := g.peaks(rates{})
		peaks = append(peaks, after.peak(g.typ))
		seconds, tokens = append(seconds, s), append(tokens, rows/s)
		shares = append(shares, flops/s/between(before, after).peak(g.typ))
		had, onCores = append(had, used/s), append(onCores, flops/used)
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
