package data

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawSet draws a small training set.
func drawSet(t *rapid.T) *Dataset {
	docs := make([][]int32, rapid.IntRange(1, 8).Draw(t, "documents"))
	for i := range docs {
		docs[i] = make([]int32, rapid.IntRange(0, 30).Draw(t, "tokens"))
	}
	d, err := newDataset(memoryFile(docs), allDocs(len(docs)), rapid.IntRange(1, 6).Draw(t, "length"), 7, true)
	if err != nil {
		t.Skip("fewer tokens than a pack")
	}
	return d
}

func TestEveryPackOfAnEpochIsTakenExactlyOnceInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawSet(t)
		// Batches may be larger than an epoch.
		batch := rapid.IntRange(1, 3*d.Packs()).Draw(t, "batch")
		s, err := NewSampler(d, batch)
		if err != nil {
			t.Fatal(err)
		}
		next := PackRef{}
		for step := range 10 {
			for _, ref := range s.Step(step) {
				if ref != next {
					t.Fatalf("step %d of %d packs takes %v, want %v", step, batch, ref, next)
				}
				if next.Pack++; next.Pack == d.Packs() {
					next = PackRef{next.Epoch + 1, 0}
				}
			}
		}
	})
}

func TestAStepIsTheSameAfterResumingAndHoweverItIsDivided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawSet(t)
		micro := rapid.IntRange(1, 4).Draw(t, "micro-batch")
		parts := rapid.IntRange(1, 4).Draw(t, "micro-batches")
		whole, _ := NewSampler(d, micro*parts)
		divided, _ := NewSampler(d, micro)
		step := rapid.IntRange(0, 1000).Draw(t, "step")
		var refs []PackRef
		valid := 0
		for part := range parts {
			refs = append(refs, divided.Step(step*parts+part)...)
			valid += divided.ValidTokens(step*parts + part)
		}
		if got := whole.Step(step); !slices.Equal(got, refs) {
			t.Fatalf("step %d whole %v, divided %v", step, got, refs)
		}
		if got := whole.ValidTokens(step); got != valid {
			t.Fatalf("step %d: %d valid tokens whole, %d divided", step, got, valid)
		}
	})
}

func TestValidTokensAreTheTargetsThatAreRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawSet(t)
		s, _ := NewSampler(d, rapid.IntRange(1, 5).Draw(t, "batch"))
		step := rapid.IntRange(0, 50).Draw(t, "step")
		p, n := NewPack(d.Length()), 0
		for _, ref := range s.Step(step) {
			d.Read(ref.Epoch, ref.Pack, p)
			n += valid(p)
		}
		if got := s.ValidTokens(step); got != n {
			t.Fatalf("step %d: ValidTokens %d, read %d", step, got, n)
		}
	})
}

func TestABatchOfNothingIsRefused(t *testing.T) {
	_, err := NewSampler(nil, 0)
	wantError(t, err, "a batch of 0 packs")
}

func TestTheSamplerAllocatesNothing(t *testing.T) {
	d, err := newDataset(memoryFile([][]int32{make([]int32, 90)}), allDocs(1), 4, 0, true)
	must(t, err)
	s, err := NewSampler(d, 5)
	must(t, err)
	s.ValidTokens(0)
	step := 0
	if n := testing.AllocsPerRun(3, func() { s.ValidTokens(step % 4); step++ }); n != 0 {
		t.Errorf("%v allocations a step, want none", n)
	}
}
