package train

import (
	"errors"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

func TestOfAllRanksTheOneThatMetTheNaNFirstSaysWhere(t *testing.T) {
	for _, each := range []bool{true, false} {
		// Each rank has all weights, and one's are spoilt: the others meet a NaN
		// only in the sum of gradients, if at all in the replay.
		s := sharded(fsdp.NoShard)
		s.ReduceEachMicro = each
		_, _, errs, _ := together(t, work(t), 2, s, func(rank int, e *fsdp.Engine) {
			if rank == 1 {
				spoil(t, e, "model.layers.1.mlp.up_proj.weight", 0)
			}
		}, nil)
		var first, other *NotFinite
		if !errors.As(errs[1], &first) || first.Elsewhere || !errors.As(errs[1], new(*device.NotFiniteError)) || !strings.Contains(errs[1].Error(), "block 1, mlp.up") {
			t.Errorf("reduced after each micro-batch %v: the rank that met it says %v", each, errs[1])
		}
		if !errors.As(errs[0], &other) || !other.Elsewhere || other.Step != 1 {
			t.Errorf("reduced after each micro-batch %v: the other says %v", each, errs[0])
		}
	}
}

func TestOneRanksWishStopsAllInTheSameEvaluation(t *testing.T) {
	w := work(t)
	w.Train.EvalEvery = 3
	sums, saw, errs, _ := together(t, w, 2, sharded(fsdp.FullShard), nil, func(rank int, cancel func()) *seen {
		return &seen{stop: func(step int) {
			if rank == 1 && step == 3 {
				cancel() // with the wish for this step told
			}
		}}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for rank, s := range sums {
		if !s.Interrupted || s.Steps != 3 || len(saw[rank].evals) > 0 {
			t.Errorf("rank %d: %+v after evaluations %v", rank, s, saw[rank].evals)
		}
	}
}
