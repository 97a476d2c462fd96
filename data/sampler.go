package data

import "fmt"

// PackRef names one pack of a data set.
type PackRef struct {
	Epoch int
	Pack  int // place in the epoch's order, below Packs()
}

// Sampler says which packs a training step takes: step s the packs
// [s·B, (s+1)·B) of all epochs one after another. The step's number is its whole
// state, so a run resumes at any step, and whoever divides a step's packs in any
// way trains on the same ones.
type Sampler struct {
	set   *Dataset
	batch int
	refs  []PackRef
}

// NewSampler gives steps of batch packs. A batch may be larger than an epoch.
func NewSampler(set *Dataset, batch int) (*Sampler, error) {
	if batch < 1 {
		return nil, fmt.Errorf("data: a batch of %d packs; it takes at least 1", batch)
	}
	return &Sampler{set: set, batch: batch, refs: make([]PackRef, batch)}, nil
}

// Step returns the packs of step s, counted from 0. The slice is the sampler's
// and good until the next call; one goroutine at a time may call.
func (s *Sampler) Step(step int) []PackRef {
	packs := s.set.Packs()
	at := step * s.batch
	ref := PackRef{at / packs, at % packs}
	for i := range s.refs {
		s.refs[i] = ref
		if ref.Pack++; ref.Pack == packs {
			ref = PackRef{ref.Epoch + 1, 0}
		}
	}
	return s.refs
}

// ValidTokens is the number of targets of step s that are not masked: by what
// the step's summed loss is divided.
func (s *Sampler) ValidTokens(step int) int {
	n := 0
	for _, ref := range s.Step(step) {
		n += s.set.Valid(ref.Epoch, ref.Pack)
	}
	return n
}
