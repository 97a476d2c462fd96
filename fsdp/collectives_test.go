package fsdp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// counted returns a program's collectives by kind and axis, and the bytes of
// their data.
func counted(p *Program) (counts map[string]int, bytes map[string]int64) {
	counts, bytes = map[string]int{}, map[string]int64{}
	for _, s := range p.Steps {
		c, ok := s.Op.(collective.Op)
		if !ok {
			continue
		}
		key := fmt.Sprintf("%s %s", device.Name(c), s.Axis)
		counts[key]++
		for _, o := range device.Operands(c) {
			if o.Name == "Data" {
				bytes[key] += o.T.Bytes()
			}
		}
	}
	return counts, bytes
}

func TestCollectivesAreCountedAsTheDesignSays(t *testing.T) {
	const L = 5 // blocks
	for _, tied := range []bool{true, false} {
		reductions := int64(L + 2)
		if tied {
			reductions--
		}
		for _, c := range []struct {
			strategy Strategy
			keep     bool
			late     bool
			micro    string // of a micro-batch, on one node of four
			reduce   string // at the step's end
			update   string
		}{
			{NoShard, false, false, "", "all-reduce U", ""},
			{ShardOptimizer, false, false, "", "reduce-scatter U", "all-gather U"},
			{ShardGradOp, false, false, "reduce-scatter R", "", "all-gather U"},
			{FullShard, false, false, "all-gather F+B reduce-scatter R", "", ""},
			{FullShard, true, false, "all-gather K reduce-scatter R", "", ""},
			{FullShard, false, true, "all-gather F+B", "reduce-scatter U", ""},
		} {
			cfg := small(tied)
			cfg.Layers = L
			p, err := NewPlan(Options{Model: cfg, Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{1, 4}, Strategy: c.strategy, KeepWeights: c.keep, LateReduce: c.late})
			if err != nil {
				t.Fatal(err)
			}
			units := int64(len(p.Units)) // L+2, tied L+1
			kept := units
			want := func(s string) string {
				s = strings.ReplaceAll(s, "F+B", fmt.Sprint(L+2+L-1))
				for letter, n := range map[string]int64{"U": units, "R": reductions, "K": kept} {
					s = strings.ReplaceAll(s, " "+letter, fmt.Sprintf(" %d", n))
				}
				return s
			}
			got := func(prog *Program) string {
				counts, _ := counted(prog)
				var list []string
				for _, k := range []string{"AllGather", "AllReduce", "ReduceScatter"} {
					if n := counts[k+" across"]; n > 0 {
						t.Errorf("%s: %d of %s across a mesh of one node", c.strategy, n, k)
					}
					if n := counts[k+" within"]; n > 0 {
						list = append(list, fmt.Sprintf("%s %d", map[string]string{"AllGather": "all-gather", "AllReduce": "all-reduce", "ReduceScatter": "reduce-scatter"}[k], n))
					}
				}
				return strings.Join(list, " ")
			}
			for _, x := range []struct {
				name, got, want string
			}{
				{"first micro-batch", got(&p.Micro[0]), want(c.micro)},
				{"micro-batch", got(&p.Micro[1]), want(c.micro)},
				{"reduce", got(&p.Reduce), want(c.reduce)},
				{"update", got(&p.Update), want(c.update)},
				{"agree", got(&p.Agree), "all-reduce 1"},
			} {
				if x.got != x.want {
					t.Errorf("tied %v, %s (keep %v, late %v): %s has %q, want %q", tied, c.strategy, c.keep, c.late, x.name, x.got, x.want)
				}
			}
		}
	}
}

// TestEveryAxisMovesTheBytesThatItMust holds each strategy on 2 nodes of 4 to a
// table written by hand, in whole vectors V of all units, a step of one
// micro-batch of which embedding and last block count as the design says.
func TestEveryAxisMovesTheBytesThatItMust(t *testing.T) {
	cfg := small(false)
	for _, s := range Strategies() {
		p, err := NewPlan(Options{Model: cfg, Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{2, 4}, Strategy: s, KeepWeights: true})
		if err != nil {
			t.Fatal(err)
		}
		var v int64
		for _, u := range p.Units {
			v += int64(u.Len) * 4
		}
		got := map[string]float64{}
		for _, prog := range []*Program{&p.Micro[0], &p.Reduce, &p.Update} {
			_, bytes := counted(prog)
			for k, n := range bytes {
				got[k] += float64(n) / float64(v)
			}
		}
		want := map[Strategy]map[string]float64{
			NoShard:         {"AllReduce within": 1, "AllReduce across": 1},
			ShardOptimizer:  {"ReduceScatter within": 1, "ReduceScatter across": 0.25, "AllGather across": 0.25, "AllGather within": 1},
			ShardGradOp:     {"ReduceScatter within": 1, "ReduceScatter across": 0.25, "AllGather across": 0.25, "AllGather within": 1},
			FullShard:       {"ReduceScatter within": 1, "ReduceScatter across": 0.25, "AllGather across": 0.25, "AllGather within": 1},
			HybridShard:     {"ReduceScatter within": 1, "AllReduce across": 0.25, "AllGather within": 1},
			HybridFullShard: {"ReduceScatter within": 1, "ReduceScatter across": 0.25, "AllGather across": 0.25, "AllGather within": 1},
		}[s]
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s moves %v, want %v", s, got, want)
		}
	}
}

func TestShardsTakeTheirPartOfMemory(t *testing.T) {
	cfg := small(true)
	cfg.Layers = 8
	bytes := func(s Strategy, k Kind) (n int64) {
		p, err := NewPlan(Options{Model: cfg, Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{2, 4}, Strategy: s})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Memory() {
			if r.Kind == k {
				n = r.Bytes
			}
		}
		return n
	}
	whole := bytes(NoShard, Parameters)
	for _, c := range []struct {
		strategy                           Strategy
		master, copies, gradients, moments float64 // in whole vectors
	}{
		{NoShard, 1, 0, 1, 2},
		{ShardOptimizer, 1. / 8, 1, 1, 2. / 8},
		{ShardGradOp, 1. / 8, 1, 1. / 8, 2. / 8},
		{FullShard, 1. / 8, 0, 1. / 8, 2. / 8},
		{HybridShard, 1. / 4, 0, 1. / 4, 2. / 4},
		{HybridFullShard, 1. / 8, 1. / 4, 1. / 4, 2. / 8},
	} {
		for k, want := range map[Kind]float64{Parameters: c.master, ComputeCopy: c.copies, Gradients: c.gradients, Moments: c.moments} {
			if got := float64(bytes(c.strategy, k)) / float64(whole); got != want {
				t.Errorf("%s keeps %v of %s, want %v", c.strategy, got, k, want)
			}
		}
	}
}

func TestEveryRankTakesTheSameMemory(t *testing.T) {
	for _, s := range Strategies() {
		for _, mesh := range []Mesh{{1, 3}, {2, 3}, {4, 2}} {
			var first *Plan
			for rank := range mesh.Size() {
				p, err := NewPlan(Options{Model: twoBlocks(true), Type: device.BF16, Train: true, Eval: true, Seqs: 1, SeqLen: 8, Mesh: mesh, Rank: rank, Strategy: s, Decoding: Decoding{Seqs: 1, CacheLen: 8, Prefill: 4}})
				if err != nil {
					t.Fatal(err)
				}
				if first == nil {
					first = p
				}
				if !slices.Equal(p.Memory(), first.Memory()) || p.Arenas != first.Arenas {
					t.Errorf("%s on %v: rank %d takes %v in %v, rank 0 %v in %v", s, mesh, rank, p.Memory(), p.Arenas, first.Memory(), first.Arenas)
				}
			}
		}
	}
}

func TestAllRanksHoldEveryFinestShardOnceAmongThoseThatSpeak(t *testing.T) {
	for _, m := range []Mesh{{1, 1}, {1, 4}, {3, 1}, {2, 3}, {4, 2}} {
		for _, s := range Strategies() {
			spoken := make([]int, m.Size())
			for r := range m.Size() {
				o := Options{Mesh: m, Rank: r, Strategy: s}
				for f := range m.Size() {
					if o.first(o.row().end) && o.holds(f) {
						spoken[f]++
					}
				}
			}
			if slices.ContainsFunc(spoken, func(n int) bool { return n != 1 }) {
				t.Errorf("mesh %v, %s: the finest shards are spoken for %v times", m, s, spoken)
			}
			seen := map[int]bool{}
			for r := range m.Size() {
				o := Options{Mesh: m}
				seen[o.finest(r)] = true
			}
			if len(seen) != m.Size() {
				t.Errorf("mesh %v: ranks have the finest shards %v", m, seen)
			}
		}
	}
}

func TestEveryRowOfATiedUnevenEmbeddingMoves(t *testing.T) {
	// 4·W+1 rows, so that no shard's border is a row's.
	cfg := twoBlocks(true)
	cfg.Vocab = 17
	for _, s := range Strategies() {
		got := trained(t, Options{Model: cfg, Mesh: Mesh{1, 4}, Strategy: s, Seqs: 6, SeqLen: 8}, 1, 24, nil)
		begin := make([]float32, cfg.Vocab*cfg.Hidden)
		for _, p := range cfg.Params() {
			if p.Name == "model.embed_tokens.weight" {
				cfg.InitParam(begin, p, 5, 0)
			}
		}
		for row := range cfg.Vocab {
			from, to := row*cfg.Hidden, (row+1)*cfg.Hidden
			if slices.Equal(begin[from:to], got.weights["model.embed_tokens.weight"][from:to]) {
				t.Errorf("%s: row %d of the embedding did not move", s, row)
			}
		}
	}
}

func TestEvaluationAndDecodingUnderEveryStrategyGiveOneRanksNumbers(t *testing.T) {
	cfg := twoBlocks(true)
	b := packed(rand.New(rand.NewPCG(3, 3)), 1, 16, cfg.Vocab)
	run := func(o Options) (loss float64, logits []float32) {
		o.Model, o.Type, o.Eval, o.Seqs, o.SeqLen = cfg, device.F32, true, 1, 16
		o.Decoding = Decoding{Seqs: 1, CacheLen: 16, Prefill: 4}
		world(t, o, nil, func(e *Engine) error {
			if err := fresh(e, 5); err != nil {
				return err
			}
			if err := e.Evaluate(b); err != nil {
				return err
			}
			sum, err := e.Total(total(e.Losses()))
			if err != nil {
				return err
			}
			l, err := e.Extend([][]int32{{1, 2, 3, 4, 5, 6}})
			if err == nil && e.Plan.Rank == 0 {
				loss, logits = sum/float64(o.Mesh.Size()), slices.Clone(l)
			}
			return err
		})
		return loss, logits
	}
	wantLoss, wantLogits := run(Options{})
	for _, s := range Strategies() {
		for _, offload := range []Offload{OffloadNone, OffloadAll} {
			loss, logits := run(Options{Mesh: Mesh{2, 2}, Strategy: s, Offload: offload})
			if off(loss, wantLoss) > 1e-12 || firstDifference(logits, wantLogits) >= 0 {
				t.Errorf("%s, offload %s: the loss is %v, one rank's %v, or the logits differ", s, offload, loss, wantLoss)
			}
		}
	}
}

func TestWholeWeightsAreTheSameOnEveryRank(t *testing.T) {
	cfg := twoBlocks(false)
	for _, s := range Strategies() {
		for _, mesh := range []Mesh{{1, 1}, {1, 3}, {2, 2}} {
			world(t, Options{Model: cfg, Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Mesh: mesh, Strategy: s}, nil, func(e *Engine) error {
				if err := fresh(e, 5); err != nil {
					return err
				}
				for u, unit := range e.Plan.Units {
					if err := e.Whole(u); err != nil {
						return err
					}
					for _, slot := range unit.Slots {
						got, want := make([]float32, slot.Len()), make([]float32, slot.Len())
						cfg.InitParam(want, slot.Param, 5, 0)
						if err := e.ReadWhole(slot.Off, got); err != nil {
							return err
						}
						if !slices.Equal(got, want) {
							return fmt.Errorf("%s of %s differs", slot.Name, unit.Name)
						}
					}
				}
				return nil
			})
		}
	}
}

func TestGroupsOfAMeshAreItsLinesTwice(t *testing.T) {
	for _, c := range []struct {
		mesh Mesh
		want string
	}{
		{Mesh{1, 1}, "[]"},
		{Mesh{1, 3}, "[[0 1 2] [0 1 2]]"},
		{Mesh{2, 1}, "[[0 1] [0 1]]"},
		{Mesh{2, 3}, "[[0 3] [0 3] [1 4] [1 4] [2 5] [2 5] [0 1 2] [0 1 2] [3 4 5] [3 4 5]]"},
	} {
		if got := fmt.Sprint(c.mesh.Groups()); got != c.want {
			t.Errorf("a mesh of %v has the groups %s, want %s", c.mesh, got, c.want)
		}
		for rank := range c.mesh.Size() {
			var ends []collective.Comm
			for _, g := range c.mesh.Groups() {
				var end collective.Comm
				if at := slices.Index(g, rank); at >= 0 {
					end = collective.NewGroup(len(g), 1)[at]
				}
				ends = append(ends, end)
			}
			comms := c.mesh.Comms(ends)
			for _, a := range []Axis{Across, Within} {
				for _, end := range []collective.Comm{comms.Gather[a], comms.Reduce[a]} {
					n := c.mesh.Along(a)
					if n == 1 && end != nil || n > 1 && (end == nil || end.Size() != n || end.Rank() != c.mesh.At(rank, a)) {
						t.Errorf("mesh %v: rank %d got a wrong end %v", c.mesh, rank, a)
					}
				}
			}
		}
	}
}
