package train

import (
	"cmp"
	"context"
	"math"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/fsdp"
)

// Evaluation is what a model made of held-out text.
type Evaluation struct {
	Loss        float64 // nats per target
	Targets     int64
	BitsPerByte float64 // NaN where not all of the set was evaluated
}

// Evaluate computes the loss of the first packs sequences of set, of all where
// packs is 0. The ranks of a run divide them and come to the same result; one
// that has none left goes on with masked ones. When ctx ends, of any rank, all
// return early with context.Canceled or ctx's error.
func Evaluate(ctx context.Context, e *fsdp.Engine, set *data.Dataset, packs int) (Evaluation, error) {
	all := packs == 0 || packs >= set.Packs()
	if all {
		packs = set.Packs()
	}
	b := newBatch(e.Plan.Seqs, set.Length())
	var sum float64
	var targets int64
	for pack := range packs {
		targets += int64(set.Valid(0, pack))
	}
	ranks := e.Plan.Mesh.Size()
	for begin := 0; begin < packs; begin += ranks * e.Plan.Seqs {
		if stop, err := wished(ctx, e); err != nil || stop {
			return Evaluation{}, stopped(ctx, err)
		}
		at := begin + e.Plan.Rank*e.Plan.Seqs
		for i := range e.Plan.Seqs {
			if at+i < packs {
				set.Read(0, at+i, b.pack(i))
			} else {
				b.pack(i).Pad(0, set.EndOfText())
			}
		}
		if err := e.Evaluate(b.Batch); err != nil {
			return Evaluation{}, err
		}
		sum += total(e.Losses())
	}
	sum, err := e.Total(sum)
	if err != nil {
		return Evaluation{}, err
	}
	ev := Evaluation{Loss: sum / float64(targets), Targets: targets, BitsPerByte: math.NaN()}
	if all {
		ev.BitsPerByte = sum / math.Ln2 / float64(set.TargetBytes())
	}
	return ev, nil
}

// wished says whether ctx has ended, of any rank. All ranks call it alike and hear
// the same, so that none waits for one that has left.
func wished(ctx context.Context, e *fsdp.Engine) (bool, error) {
	wish := 0.0
	if ctx.Err() != nil {
		wish = 1
	}
	wishes, err := e.Total(wish)
	return wishes > 0, err
}

// stopped is the error of what ended because of an error, or else of a wish.
func stopped(ctx context.Context, err error) error { return cmp.Or(err, ctx.Err(), context.Canceled) }

// batch is a micro-batch with its sequences as packs.
type batch struct {
	fsdp.Batch
	length int
}

func newBatch(seqs, length int) batch {
	n := seqs * length
	return batch{fsdp.Batch{IDs: make([]int32, n), Targets: make([]int32, n), Start: make([]int32, n), Pos: make([]int32, n)}, length}
}

// pack returns sequence i in place.
func (b batch) pack(i int) data.Pack {
	from, to := i*b.length, (i+1)*b.length
	return data.Pack{IDs: b.IDs[from:to], Targets: b.Targets[from:to], Start: b.Start[from:to], Pos: b.Pos[from:to]}
}

// total adds losses in float64, in order.
func total(losses []float32) (sum float64) {
	for _, l := range losses {
		sum += float64(l)
	}
	return sum
}
