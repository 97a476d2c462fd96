package fsdp

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
)

// Recompute says which activations are computed again in the backward instead
// of being kept.
type Recompute string

// The kinds: none; the outputs of norms and SwiGLU; all of a block but its
// input. All give the same bits.
const (
	RecomputeNone      Recompute = "none"
	RecomputeSelective Recompute = "selective"
	RecomputeBlock     Recompute = "block"
)

// Offload says what a rank keeps in the host's memory, to have more of the
// device's own. It gives the same bits: a unit's state is copied to the device
// before its update and back behind it, its weights before their gather.
type Offload string

// What is offloaded: nothing; master weights and moments; the weights that
// compute; both. Where master weights compute, they are one buffer, and it is in
// the host's memory only if both parts may be.
const (
	OffloadNone       Offload = "none"
	OffloadOptimizer  Offload = "optimizer"
	OffloadParameters Offload = "parameters"
	OffloadAll        Offload = "all"
)

// optimizer reports whether master weights and moments are offloaded.
func (o Offload) optimizer() bool { return o == OffloadOptimizer || o == OffloadAll }

// parameters reports whether the weights that compute are.
func (o Offload) parameters() bool { return o == OffloadParameters || o == OffloadAll }

// Optimizer is AdamW's constants, the same for the whole run.
type Optimizer struct {
	Beta1       float64 `yaml:"beta1" default:"0.9" min:"0" max:"1" help:"Decay of the gradient's running mean."`
	Beta2       float64 `yaml:"beta2" default:"0.95" min:"0" max:"1" help:"Decay of the squared gradient's running mean."`
	Eps         float64 `yaml:"eps" default:"1e-8" min:"0" help:"Added to the root of the second moment."`
	WeightDecay float64 `yaml:"weight_decay" default:"0.1" min:"0" help:"Decoupled decay of matrices; norms and biases never decay."`
	Stochastic  bool    `yaml:"stochastic_rounding" default:"false" help:"Round the bf16 copy of the weights up or down at random by distance, instead of to nearest (bf16 only)."`
}

// Decoding is the shape of generation; the zero value plans none.
type Decoding struct {
	Seqs     int // sequences generated at once
	CacheLen int // longest prompt and continuation together, in tokens
	Prefill  int // prompt tokens processed at once
}

// Options say what a Plan is to contain.
type Options struct {
	Model     model.Config
	Type      device.DType // F32 or BF16: what computes
	Train     bool
	Eval      bool
	Seqs      int // sequences of a micro-batch, for Train and Eval
	SeqLen    int
	HeadRows  int // rows of logits at once; 0: as many as headBytes hold
	Recompute Recompute
	Optimizer Optimizer
	Seed      uint64 // of stochastic rounding
	Decoding  Decoding

	// Mesh and Strategy say among how many ranks what is spread, Rank which of
	// them this plan is for. All ranks' plans differ only in which parts are
	// their own.
	Mesh     Mesh
	Rank     int
	Strategy Strategy // empty: no_shard
	// KeepWeights keeps gathered weights from the forward for the backward
	// (reshard_after_forward: false).
	KeepWeights bool
	// Prefetch is how many units ahead of their use weights are gathered.
	Prefetch int
	// Offload says what is kept in the host's memory.
	Offload Offload
	// MicroBatches is how many a rank has in each step, where the plan is for that
	// many alone; 0: any number. The gradients of a single one take no memory
	// before they are written, nor once the update has read them; from the
	// micro-batch to the update, the engine may then run nothing else.
	MicroBatches int
	// LateReduce adds up whole gradients over the micro-batches of a step and
	// reduces them once at its end: fewer collectives, more memory.
	LateReduce bool
}

// headBytes bounds a chunk of logits: large enough that packing the head's
// weights costs little, small beside the weights' gradient.
const headBytes = 128 << 20

func (o *Options) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("fsdp: "+format, args...)) }
	if o.Type != device.F32 && o.Type != device.BF16 {
		bad("weights compute in f32 or bf16, not in %s", o.Type)
	}
	if o.Train || o.Eval {
		if o.Seqs < 1 || o.SeqLen < 1 {
			bad("a micro-batch of %d sequences of %d tokens is empty", o.Seqs, o.SeqLen)
		}
		if o.SeqLen > o.Model.MaxPositions {
			bad("sequences of %d tokens are longer than the model's %d positions (max_position_embeddings)", o.SeqLen, o.Model.MaxPositions)
		}
	}
	if o.Mesh.Across < 0 || o.Mesh.Within < 0 || o.Rank < 0 || o.Rank >= o.Mesh.Size() {
		bad("there is no rank %d in a mesh of %d x %d", o.Rank, o.Mesh.Across, o.Mesh.Within)
	}
	if o.MicroBatches < 0 {
		bad("a step cannot have %d micro-batches", o.MicroBatches)
	}
	if o.Prefetch < 0 {
		bad("weights cannot be gathered %d units ahead", o.Prefetch)
	}
	if _, ok := strategies[o.Strategy]; !ok && o.Strategy != "" {
		bad("strategy %q is none of %s", o.Strategy, strategyNames())
	}
	switch o.Recompute {
	case "", RecomputeNone, RecomputeSelective, RecomputeBlock:
	default:
		bad("recomputation %q is none of none, selective, block", o.Recompute)
	}
	switch o.Offload {
	case "", OffloadNone, OffloadOptimizer, OffloadParameters, OffloadAll:
	default:
		bad("offload %q is none of none, optimizer, parameters, all", o.Offload)
	}
	if d := o.Decoding; d != (Decoding{}) {
		if d.Seqs < 1 || d.CacheLen < 1 || d.Prefill < 1 {
			bad("decoding needs at least one sequence, one cached token and a prefill of one token: %+v", d)
		}
		if d.CacheLen > o.Model.MaxPositions {
			bad("generating up to %d tokens goes beyond the model's %d positions (max_position_embeddings)", d.CacheLen, o.Model.MaxPositions)
		}
	}
	return errors.Join(errs...)
}

// accumulates reports whether a step may have several micro-batches, so that
// gradients last from one to the next.
func (o *Options) accumulates() bool { return o.MicroBatches != 1 }

// headRows returns the rows of logits that exist at once.
func (o *Options) headRows() int {
	rows := o.Seqs * o.SeqLen
	if o.HeadRows > 0 {
		return min(o.HeadRows, rows)
	}
	fit := int(headBytes / (int64(o.Model.Vocab) * o.Type.Size()))
	return min(max(fit/64*64, 64), rows)
}
