package fsdp

import (
	"fmt"
	"os"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/pairwise"
)

// variant is a way to train: a plan's options, how its ranks stand, and into how
// many micro-batches each cuts its part of a step.
type variant struct {
	Options
	ranks, nodes, micros int // nodes 0: as many as ranks
}

// factors are what ways to train differ in. A new factor is a line here.
var factors = []pairwise.Factor[variant]{
	pairwise.Of("ranks", func(w *variant, n int) { w.ranks = n }, 1, 2, 3, 4, 6, 8),
	pairwise.Of("nodes", func(w *variant, n int) { w.nodes = n }, 1, 2, 0),
	pairwise.Of("strategy", func(w *variant, s Strategy) { w.Strategy = s }, Strategies()...),
	pairwise.Of("micro-batches", func(w *variant, n int) { w.micros = n }, 1, 3),
	pairwise.Of("reduced late", func(w *variant, x bool) { w.LateReduce = x }, false, true),
	pairwise.Of("weights kept", func(w *variant, x bool) { w.KeepWeights = x }, false, true),
	pairwise.Of("prefetch", func(w *variant, n int) { w.Prefetch = n }, 0, 1, 3),
	pairwise.Of("offload", func(w *variant, x Offload) { w.Offload = x }, OffloadNone, OffloadOptimizer, OffloadParameters, OffloadAll),
	pairwise.Of("recompute", func(w *variant, r Recompute) { w.Recompute = r }, RecomputeNone, RecomputeSelective, RecomputeBlock),
	pairwise.Of("type", func(w *variant, x device.DType) { w.Type = x }, device.F32, device.BF16),
	pairwise.Of("rounded at random", func(w *variant, x bool) { w.Optimizer.Stochastic = x }, false, true),
	pairwise.Of("tied", func(w *variant, x bool) { w.Model = twoBlocks(x) }, false, true),
}

// possible leaves out ways that are another way again, and those that a
// configuration cannot ask for.
func possible(w variant) bool {
	switch {
	case w.nodes == 2 && (w.ranks < 4 || w.ranks%2 > 0),
		w.ranks == 1 && (w.nodes != 1 || w.Strategy != FullShard),
		w.Optimizer.Stochastic && w.Type == device.F32:
		return false
	}
	return true
}

// options returns the plan's options, sizes of which nothing is a multiple, and
// the sequences of a step of all ranks.
func (w variant) options() (o Options, sequences int) {
	sequences = 24
	if w.ranks%3 == 0 {
		sequences = 18
	}
	nodes := w.nodes
	if nodes == 0 {
		nodes = w.ranks
	}
	o = w.Options
	o.Mesh, o.Seqs, o.SeqLen, o.HeadRows = Mesh{nodes, w.ranks / nodes}, sequences/w.ranks/w.micros, 7, 5
	o.MicroBatches = w.micros
	return o, sequences
}

// plainest returns the simplest way that adds up in the same order: of the
// column "between micro-batches", if there are several.
func (w variant) plainest() variant {
	o, _ := w.options()
	w.Recompute, w.Offload, w.KeepWeights, w.Prefetch, w.LateReduce = RecomputeNone, OffloadNone, false, 0, false
	for _, w.Strategy = range Strategies() {
		if p, _ := w.options(); w.micros == 1 || p.row().between == o.row().between {
			return w
		}
	}
	panic("fsdp: no strategy is spread so between micro-batches")
}

// outcomes are those of variants that others are compared with.
type outcomes map[string]outcome

func (all outcomes) of(t *testing.T, w variant, steps, sequences int) outcome {
	o, _ := w.options()
	o.Seqs, o.MicroBatches = sequences/w.ranks/w.micros, 0 // gradients last
	key := fmt.Sprintf("%+v %d", o, sequences)
	if _, ok := all[key]; !ok {
		all[key] = trained(t, o, steps, sequences, nil)
	}
	return all[key]
}

// Every way to train comes to the numbers of one rank, and to the same bits as
// every other that adds up in the same order. FULL=1 tries all variants in fewer
// steps, which takes an hour or two (-timeout 3h), and FULL=2/50 every fiftieth from
// the second on; variants with one plan are one.
func TestEveryWayToTrainComesToOneRanksNumbers(t *testing.T) {
	steps := 20 // those over which DESIGN.md promises its limits
	cases := pairwise.Cover(factors, possible, 0)
	if len(cases) > 40 {
		t.Errorf("%d cases are more than a test has time for", len(cases))
	}
	if full := os.Getenv("FULL"); full != "" {
		steps, cases = 4, pairwise.Product(factors, possible)
		var at, of int
		if n, _ := fmt.Sscanf(full, "%d/%d", &at, &of); n == 2 {
			all := cases
			cases = nil
			for i := at - 1; i < len(all); i += of {
				cases = append(cases, all[i])
			}
		}
	}
	known, tried := outcomes{}, map[string]bool{}
	for _, c := range cases {
		o, sequences := c.It.options()
		p, err := NewPlan(toTrain(o))
		if err != nil {
			t.Fatal(err)
		}
		hash, err := p.Hash()
		if err != nil {
			t.Fatal(err)
		}
		if key := fmt.Sprint(hash, c.It.micros); tried[key] {
			continue
		} else {
			tried[key] = true
		}
		t.Run(c.Name, func(t *testing.T) {
			got := trained(t, o, steps, sequences, nil)
			same(t, "the plainest way that adds up in the same order", got, known.of(t, c.It.plainest(), steps, sequences))
			one := variant{Options: Options{Model: o.Model, Type: o.Type, Optimizer: o.Optimizer}, ranks: 1, nodes: 1, micros: 1}
			near(t, "one rank", o.Type, got, known.of(t, one, steps, sequences))
		})
	}
	t.Logf("%d of %d cases have a plan of their own", len(tried), len(cases))
}
