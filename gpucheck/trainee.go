package gpucheck

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/train"
)

// trainee is an engine that is trained on random tokens, always the same: of the sequences of a step, in order,
// each rank has its plan's.
type trainee struct {
	engine *fsdp.Engine
	rng    *rand.Rand
	batch  fsdp.Batch
	steps  int
}

// newTrainee makes one with fresh weights. All ranks make theirs at once.
func newTrainee(plan *fsdp.Plan, d device.Device, comms fsdp.Comms) (*trainee, error) {
	e, err := fsdp.NewEngine(plan, d, comms)
	if err != nil {
		return nil, err
	}
	if err := train.SetWeights(e, nil, 1); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	n := plan.Seqs * plan.SeqLen
	b := fsdp.Batch{IDs: make([]int32, n), Targets: make([]int32, n), Start: make([]int32, n), Pos: make([]int32, n)}
	for i := range n {
		// Two documents a sequence.
		if at := i % plan.SeqLen; at >= plan.SeqLen/3 {
			b.Start[i] = int32(plan.SeqLen / 3)
		}
		b.Pos[i] = int32(i%plan.SeqLen) - b.Start[i]
	}
	return &trainee{engine: e, rng: rand.New(rand.NewPCG(1, 5)), batch: b}, nil
}

// stepped is what a step says of itself.
type stepped struct{ loss, norm float64 }

// step runs what the training loop runs for a step of one micro-batch.
func (t *trainee) step() (s stepped, err error) {
	p := t.engine.Plan
	tokens := make([]int32, p.Mesh.Size()*len(t.batch.IDs))
	for i := range tokens {
		// Small tokens are frequent, so that there is something to learn.
		u := t.rng.Float64()
		tokens[i] = int32(u * u * u * float64(p.Model.Vocab))
	}
	copy(t.batch.IDs, tokens[p.Rank*len(t.batch.IDs):])
	for i := range t.batch.IDs {
		t.batch.Targets[i] = -1
		if t.batch.Pos[i] > 0 {
			t.batch.Targets[i-1] = t.batch.IDs[i]
		}
	}
	valid := 0
	for _, target := range t.batch.Targets {
		if target >= 0 {
			valid++
		}
	}
	scale := 1 / float64(valid*p.Mesh.Size()) // all ranks have as many
	e := t.engine
	if err := e.MicroBatch(t.batch, float32(scale), true); err != nil {
		return s, err
	}
	var sum float64
	for _, l := range e.Losses() {
		sum += float64(l)
	}
	all, err := e.Agree(sum, false)
	if err != nil {
		return s, err
	}
	t.steps++
	s = stepped{all.Loss * scale, math.Sqrt(all.SquaredNorm)}
	return s, e.Update(fsdp.Hyper{LR: 1e-3, GradScale: min(1, 1/(s.norm+1e-6)), Step: t.steps})
}
