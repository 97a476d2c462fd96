package fsdp

import (
	"strings"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
)

// differences are what may be another on one rank by mistake. All of them would
// give other numbers there, or leave ranks waiting for each other.
var differences = map[string]func(*Options){
	"more layers":               func(o *Options) { o.Model.Layers++ },
	"a smaller vocabulary":      func(o *Options) { o.Model.Vocab-- },
	"another width":             func(o *Options) { o.Model.Hidden += 4 },
	"a wider MLP":               func(o *Options) { o.Model.MLP++ },
	"another size of heads":     func(o *Options) { o.Model.HeadSize += 2 },
	"more heads of keys":        func(o *Options) { o.Model.KVHeads = 3 },
	"an untied head":            func(o *Options) { o.Model.Tied = false },
	"no biases":                 func(o *Options) { o.Model.QKVBias = false },
	"norms of queries and keys": func(o *Options) { o.Model.QKNorm = true },
	"another epsilon of norms":  func(o *Options) { o.Model.NormEps = 1e-5 },
	"another base of RoPE":      func(o *Options) { o.Model.RopeTheta = 1e6 },
	"RoPE scaled": func(o *Options) {
		o.Model.RopeScaling = &model.Llama3Scaling{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 32}
	},
	"fresh weights that are larger":   func(o *Options) { o.Model.InitStd = 0.3 },
	"another precision":               func(o *Options) { o.Type = device.F32 },
	"rounding to nearest":             func(o *Options) { o.Optimizer.Stochastic = false },
	"another seed of rounding":        func(o *Options) { o.Seed++ },
	"longer sequences":                func(o *Options) { o.SeqLen++ },
	"a larger micro-batch":            func(o *Options) { o.Seqs++ },
	"smaller pieces of the head":      func(o *Options) { o.HeadRows = 3 },
	"no evaluation":                   func(o *Options) { o.Eval = false },
	"longer samples":                  func(o *Options) { o.Decoding.CacheLen++ },
	"recomputation":                   func(o *Options) { o.Recompute = RecomputeBlock },
	"another decay of weights":        func(o *Options) { o.Optimizer.WeightDecay = 0.2 },
	"another decay of means":          func(o *Options) { o.Optimizer.Beta1 = 0.8 },
	"another decay of squares":        func(o *Options) { o.Optimizer.Beta2 = 0.99 },
	"another epsilon of AdamW":        func(o *Options) { o.Optimizer.Eps = 1e-6 },
	"nothing sharded":                 func(o *Options) { o.Strategy = NoShard },
	"ZeRO-1":                          func(o *Options) { o.Strategy = ShardOptimizer },
	"all sharded":                     func(o *Options) { o.Strategy = FullShard },
	"hybrid":                          func(o *Options) { o.Strategy = HybridShard },
	"hybrid, with a sharded state":    func(o *Options) { o.Strategy = HybridFullShard },
	"gradients that are reduced late": func(o *Options) { o.LateReduce = true },
	"offload":                         func(o *Options) { o.Offload = OffloadAll },
}

// plansOf makes engines of the mesh's ranks, the plan of one of them changed, and
// returns what each of them says.
func plansOf(o Options, other int, change func(*Options)) []error {
	g := inProcess(o.Mesh)
	errs := make([]error, o.Mesh.Size())
	var wait sync.WaitGroup
	for rank := range errs {
		wait.Go(func() {
			o := o
			if o.Rank = rank; rank == other {
				change(&o)
			}
			errs[rank] = onGround(o, g, func(*Engine) error { return nil })
		})
	}
	wait.Wait()
	return errs
}

func TestAPlanThatDiffersOnOneRankIsRefusedByNameBeforeTheFirstStep(t *testing.T) {
	o := Options{
		Model: twoBlocks(true), Type: device.BF16, Eval: true, Seqs: 2, SeqLen: 8, Mesh: Mesh{2, 2}, Strategy: ShardGradOp,
		Decoding: Decoding{Seqs: 1, CacheLen: 8, Prefill: 4},
	}
	o.Optimizer.Stochastic = true
	o = toTrain(o)
	for name, change := range differences {
		changed := o
		change(&changed)
		if _, err := NewPlan(changed); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for rank, err := range plansOf(o, 1, change) {
			if err == nil || !strings.Contains(err.Error(), "the plans of ranks [1] differ") {
				t.Errorf("%s: rank %d says: %v", name, rank, err)
			}
		}
	}
	for rank, err := range plansOf(o, 1, func(*Options) {}) {
		if err != nil {
			t.Errorf("nothing differs, and rank %d says: %v", rank, err)
		}
	}
}

// A rank with another mesh is mostly not even in the groups that it needs.
func TestAnotherMeshOnOneRankIsRefusedBeforeTheFirstStep(t *testing.T) {
	for mesh, want := range map[Mesh]string{
		{1, 4}: "rank 1 of a mesh of 1x4 has no fitting end of the group within",
		{4, 1}: "rank 1 of a mesh of 4x1 has no fitting end of the group across",
		{2, 4}: "rank 1 of a mesh of 2x4 has no fitting end of the group within",
		{1, 2}: "their plans differ", // its agreement is one of fewer numbers
	} {
		o := toTrain(Options{Model: twoBlocks(true), Seqs: 1, SeqLen: 8, Mesh: Mesh{2, 2}, Strategy: FullShard})
		for rank, err := range plansOf(o, 1, func(o *Options) { o.Mesh = mesh }) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a mesh of %v on rank 1: rank %d says: %v", mesh, rank, err)
			}
		}
	}
}
