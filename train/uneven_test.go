package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/fsdp"
)

// Ranks have packs to evaluate, or none: of a few packs some ranks get nothing,
// of others all but the last get as many.
func TestAnyNumberOfPacksIsEvaluatedAsOnOneRank(t *testing.T) {
	w := work(t)
	w.Train.Batch, w.Train.MicroBatch = 24, 2
	const most = 17
	evaluated := func(ranks int) (all [][]Evaluation) {
		all = make([][]Evaluation, ranks)
		errs := onRanks(w, ranks, sharded(fsdp.FullShard), func(ctx context.Context, _ func(), r *Run) error {
			if n := r.Data.HeldOut.Packs(); n <= most || n%12 == 0 {
				return fmt.Errorf("%d packs are held out: that shows nothing", n)
			}
			for packs := range most { // 0: all
				e, err := Evaluate(ctx, r.Engine, r.Data.HeldOut, packs)
				if err != nil {
					return err
				}
				all[r.Plan.Rank] = append(all[r.Plan.Rank], e)
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("%d ranks: %v", ranks, err)
		}
		return all
	}
	one := evaluated(1)[0]
	for _, ranks := range []int{2, 3, 4} {
		for rank, got := range evaluated(ranks) {
			for packs, want := range one {
				// Only the order of a few float64 differs.
				if !(math.Abs(got[packs].Loss/want.Loss-1) <= 1e-12) || got[packs].Targets != want.Targets || want.Targets == 0 {
					t.Errorf("%d packs on rank %d of %d: %+v, on one rank %+v", packs, rank, ranks, got[packs], want)
				}
			}
		}
	}
}

// scant is a run over next to no text: a few short documents, and so many empty
// ones that most packs are nothing but ends of text.
func scant(t *testing.T, length, empty int) Work {
	t.Helper()
	w := work(t)
	dir := t.TempDir()
	for i := range 6 + empty {
		text := ""
		if i < 6 {
			text = fmt.Sprintf("the %d red fox jumps over %d lazy dogs", i, i*i)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d.txt", i)), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	w.Data.Path, w.Data.Holdout, w.Data.SequenceLength, w.Data.VocabSize = []string{dir}, 0.5, length, 262
	w.Data.Seed = 3 // with which empty documents are not held out
	w.Train.Batch, w.Train.MicroBatch, w.Train.Steps = 12, 1, 10
	return w
}

// A rank that has nothing in a step goes on with what is masked, as if there were
// more; so does a whole step. Of an epoch that is shorter than a step, some packs
// come twice in it.
func TestRanksWithoutARealSequenceTrainAsOneRankDoes(t *testing.T) {
	for what, w := range map[string]Work{
		"an epoch of less than a step": scant(t, 32, 0),
		"packs without a target":       scant(t, 4, 400),
	} {
		one, alone, errs, dir := together(t, w, 1, sharded(fsdp.NoShard), nil, nil)
		if errs[0] != nil {
			t.Fatal(errs[0])
		}
		weights := exported(t, dir)
		for _, ranks := range []int{2, 3, 4} {
			idle, masked, packs := without(t, w, ranks)
			if w.Data.SequenceLength == 4 && (idle == 0 || masked == 0) || w.Data.SequenceLength == 32 && packs >= w.Train.Batch {
				t.Fatalf("%s, %d ranks: some ranks are without a target in %d steps, all in %d; an epoch has %d packs", what, ranks, idle, masked, packs)
			}
			for _, s := range []fsdp.Strategy{fsdp.ShardOptimizer, fsdp.FullShard} {
				what := fmt.Sprintf("%s, %d ranks, %s", what, ranks, s)
				sums, got, errs, dir := together(t, w, ranks, sharded(s), nil, nil)
				if err := errors.Join(errs...); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				for rank, x := range got {
					if sums[rank].HeldOut.Targets != one[0].HeldOut.Targets || off(sums[rank].HeldOut.Loss, one[0].HeldOut.Loss) > 1e-5 {
						t.Errorf("%s: rank %d ends with %+v, one alone with %+v", what, rank, sums[rank].HeldOut, one[0].HeldOut)
					}
					for i, step := range x.steps {
						if want := alone[0].steps[i]; step.Targets != want.Targets || off(step.Loss, want.Loss) > 1e-5 || off(step.Norm, want.Norm) > 1e-4 {
							t.Errorf("%s: rank %d, step %d: loss %v and norm %v over %d targets, one alone %v and %v over %d",
								what, rank, i, step.Loss, step.Norm, step.Targets, want.Loss, want.Norm, want.Targets)
						}
					}
				}
				var diff, norm float64
				for i, x := range exported(t, dir) {
					diff += math.Pow(float64(x-weights[i]), 2)
					norm += math.Pow(float64(weights[i]), 2)
				}
				if math.Sqrt(diff/norm) > 1e-4 {
					t.Errorf("%s: the weights are off by %.2g", what, math.Sqrt(diff/norm))
				}
			}
		}
	}
}

// off returns how far x is from want, in terms of want.
func off(x, want float64) float64 {
	if x == want {
		return 0 // also where there is no target and so no loss
	}
	return math.Abs(x/want - 1)
}

// without counts the steps in which some ranks, and those in which all, have no
// target, and the packs of an epoch.
func without(t *testing.T, w Work, ranks int) (some, all, packs int) {
	t.Helper()
	r := open(t, w)
	s, err := data.NewSampler(r.Data.Train, w.Train.Batch)
	if err != nil {
		t.Fatal(err)
	}
	for step := range w.Train.Steps {
		targets := make([]int, ranks)
		for i, ref := range s.Step(step) {
			targets[i%ranks] += r.Data.Train.Valid(ref.Epoch, ref.Pack)
		}
		switch 0 {
		case slices.Max(targets):
			all++
		case slices.Min(targets):
			some++
		}
	}
	return some, all, r.Data.Train.Packs()
}
