package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/fsdp"
)

// onRanks opens a run on every rank of a node of so many, in this process, and
// calls f for each, which may cancel the rank's own context. It returns errors by
// rank.
func onRanks(w Work, ranks int, sharding fsdp.Sharding, f func(ctx context.Context, cancel func(), r *Run) error) []error {
	errs := make([]error, ranks)
	gather, reduce := collective.NewGroup(ranks, time.Minute), collective.NewGroup(ranks, time.Minute)
	var wait sync.WaitGroup
	for rank := range ranks {
		wait.Go(func() {
			errs[rank] = func() (err error) {
				dev, err := cpu.New(cpu.Options{Threads: 1})
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, dev.Close()) }()
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				r, err := Open(ctx, w, Place{Ranks: ranks, Rank: rank, Sharding: sharding, Join: func(*fsdp.Plan) (c fsdp.Comms, err error) {
					c.Gather[fsdp.Within], c.Reduce[fsdp.Within] = gather[rank], reduce[rank]
					return c, nil
				}}, dev, nil)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, r.Close()) }()
				return f(ctx, cancel, r)
			}()
			if errs[rank] != nil {
				gather[rank].Abort(errs[rank])
				reduce[rank].Abort(errs[rank])
			}
		})
	}
	wait.Wait()
	return errs
}

// together opens and trains a run on ranks. before may change a rank's engine. It
// returns summaries, reports and errors by rank, and the directory that the ranks
// export to.
func together(t *testing.T, w Work, ranks int, sharding fsdp.Sharding, before func(rank int, e *fsdp.Engine), report func(rank int, cancel func()) *seen) (sums []Summary, saw []*seen, errs []error, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "model")
	sums, saw = make([]Summary, ranks), make([]*seen, ranks)
	errs = onRanks(w, ranks, sharding, func(ctx context.Context, cancel func(), r *Run) (err error) {
		rank := r.Plan.Rank
		if before != nil {
			before(rank, r.Engine)
		}
		saw[rank] = &seen{}
		if report != nil {
			saw[rank] = report(rank, cancel)
		}
		if sums[rank], err = r.Train(ctx, saw[rank]); err != nil {
			return err
		}
		return r.Export(dir)
	})
	return sums, saw, errs, dir
}

// exported reads a directory's weights.
func exported(t *testing.T, dir string) (all []float32) {
	t.Helper()
	w, err := checkpoint.OpenWeights(dir, shape)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, p := range shape.Params() {
		values := make([]float32, p.Len())
		w.Read(p.Name, 0, values)
		all = append(all, values...)
	}
	return all
}

func sharded(strategy fsdp.Strategy) fsdp.Sharding {
	return fsdp.Sharding{Strategy: string(strategy), ReshardAfterForward: true, Prefetch: 1, ReduceEachMicro: true}
}

func TestRanksTrainAndEvaluateAsOneDoes(t *testing.T) {
	w := work(t)
	w.Train.Batch, w.Train.MicroBatch, w.Train.EvalEvery, w.Train.EvalPacks = 12, 2, 5, 7
	one, saw, errs, dir := together(t, w, 1, sharded(fsdp.NoShard), nil, nil)
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	weights := exported(t, dir)
	for _, ranks := range []int{2, 3} {
		for _, s := range fsdp.Strategies() {
			sums, got, errs, dir := together(t, w, ranks, sharded(s), nil, nil)
			what := fmt.Sprintf("%d ranks, %s", ranks, s)
			if err := errors.Join(errs...); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			all := exported(t, dir)
			for rank := range ranks {
				if !(math.Abs(sums[rank].HeldOut.Loss/one[0].HeldOut.Loss-1) <= 1e-4) || sums[rank].HeldOut.Targets != one[0].HeldOut.Targets || sums[rank].Tokens != one[0].Tokens {
					t.Errorf("%s: rank %d comes to %+v, one alone to %+v", what, rank, sums[rank].HeldOut, one[0].HeldOut)
				}
				if sums[rank].HeldOut.Loss != sums[0].HeldOut.Loss || !slices.Equal(got[rank].evals, saw[0].evals) {
					t.Errorf("%s: ranks do not agree on the held-out loss", what)
				}
				for i, step := range got[rank].steps {
					if want := saw[0].steps[i]; !(math.Abs(step.Loss/want.Loss-1) <= 1e-5) || !(math.Abs(step.Norm/want.Norm-1) <= 1e-4) || step.Loss != got[0].steps[i].Loss {
						t.Errorf("%s: rank %d, step %d: loss %v and norm %v, one alone %v and %v", what, rank, i, step.Loss, step.Norm, want.Loss, want.Norm)
					}
				}
			}
			for i := range weights {
				if !(math.Abs(float64(all[i]-weights[i])) <= 1e-3) {
					t.Fatalf("%s: weight %d is %v, one alone has %v", what, i, all[i], weights[i])
				}
			}
		}
	}
}

func TestOneRanksWishStopsAllAfterTheSameStep(t *testing.T) {
	w := work(t)
	sums, _, errs, _ := together(t, w, 2, sharded(fsdp.FullShard), nil, func(rank int, cancel func()) *seen {
		return &seen{stop: func(step int) {
			if rank == 1 && step == 3 {
				cancel()
			}
		}}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for rank, s := range sums {
		// The wish is known with the step that follows it.
		if !s.Interrupted || s.Steps != 4 {
			t.Errorf("rank %d: %+v", rank, s)
		}
	}
}

func TestANaNOnOneRankEndsAllBeforeTheUpdate(t *testing.T) {
	w := work(t)
	_, _, errs, _ := together(t, w, 2, sharded(fsdp.ShardGradOp), func(rank int, e *fsdp.Engine) {
		if rank == 1 {
			// A norm's weight that this rank holds, so that refreshed copies have it too.
			for _, p := range shape.Params() {
				if first, n := e.Owned(p.Name); n > 0 && strings.Contains(p.Name, "layers.1.") {
					spoil(t, e, p.Name, first)
					break
				}
			}
		}
		if err := e.Refresh(); err != nil {
			t.Error(err)
		}
	}, nil)
	for rank, err := range errs {
		var nf *NotFinite
		if !errors.As(err, &nf) || nf.Step != 1 {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestAStepOfSeveralRanksAllocatesNothing(t *testing.T) {
	const rounds, each = 10, 15
	w := work(t)
	w.Train.MicroBatch = 1
	var allocated []uint64 // by round, of all ranks: they are one process
	errs := onRanks(w, 2, sharded(fsdp.FullShard), func(_ context.Context, _ func(), r *Run) error {
		l, err := newLoop(&Job{Settings: w.Train, Engine: r.Engine, Device: r.dev, Train: r.Data.Train}, 200)
		if err != nil {
			return err
		}
		if r.dev.Info().ISA == "go" {
			return nil // without C the reference takes the kernels' place, and it allocates
		}
		var before, after runtime.MemStats
		for step := range 5 + rounds*each {
			if r.Plan.Rank == 0 && step >= 5 && (step-5)%each == 0 {
				runtime.ReadMemStats(&before)
			}
			// Within one epoch: where another begins, its order is made.
			if _, _, err := l.step(3, false); err != nil {
				return err
			}
			if r.Plan.Rank == 0 && step >= 5 && (step-5)%each == each-1 {
				runtime.ReadMemStats(&after)
				allocated = append(allocated, after.Mallocs-before.Mallocs)
			}
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	// The runtime has a few of its own as goroutines move between processors.
	if allocated != nil && slices.Min(allocated) > 2 {
		t.Errorf("in each %d steps the ranks allocate %v times", each, allocated)
	}
}

func TestOneRankOffloadsToo(t *testing.T) {
	w := work(t)
	for offload, want := range map[fsdp.Offload]bool{fsdp.OffloadNone: false, fsdp.OffloadAll: true} {
		s := sharded(fsdp.FullShard)
		s.Offload = string(offload)
		p, err := w.Train.NewPlanOver(1, 0, s, shape, 16)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Memory() {
			if state := r.Kind == fsdp.Parameters || r.Kind == fsdp.Moments; state && r.Host != want {
				t.Errorf("with offload %s, one rank has its %s in the host's memory: %v", offload, r.Kind, r.Host)
			}
		}
	}
}
