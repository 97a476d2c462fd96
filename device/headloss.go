package device

import (
	"math"
	"slices"
)

// HeadLoss is the cross-entropy of a chunk of rows. Its logits come from a
// MatMul with the head; so full logits are never stored, only a chunk's.
//
//	Loss[t] = log Σ exp(Logits[t]) − Logits[t, Targets[t]]
//
// A row whose target is −1 has loss 0 and gradient 0. With Backward, Logits
// become their gradient in place: (softmax − onehot)·Scale[0]; Scale is where
// 1/(the step's count of valid tokens) enters. Without it they stay.
type HeadLoss struct {
	Logits  Tensor `op:"rw"` // [Rows,Vocab]
	Targets Tensor `op:"r"`  // [Rows] I32: −1 ≤ target < Vocab
	Scale   Tensor `op:"r"`  // [1] F32, with Backward
	Loss    Tensor `op:"w"`  // [Rows] F32

	Rows, Vocab int
	Backward    bool
}

// Check implements Op.
func (o *HeadLoss) Check() error {
	c := check(o)
	c.positive("Rows", o.Rows)
	c.positive("Vocab", o.Vocab)
	c.tensor("Logits", o.Logits, false, o.Rows*o.Vocab, F32, BF16, F64)
	c.tensor("Targets", o.Targets, false, o.Rows, I32)
	c.tensor("Scale", o.Scale, !o.Backward, 1, wide(o.Logits.Type)...)
	c.tensor("Loss", o.Loss, false, o.Rows, wide(o.Logits.Type)...)
	return c.err()
}

// Cost implements Op.
func (o *HeadLoss) Cost() Cost {
	n := o.Logits.Bytes()
	if o.Backward {
		n *= 2
	}
	return Cost{6 * o.Logits.Len, n + bytesOf(o.Targets, o.Loss)}
}

// Reference implements Op.
func (o *HeadLoss) Reference() {
	logits, loss := load(o.Logits), make([]float64, o.Rows)
	for t, target := range o.Targets.I32() {
		mustIndex(o, "Targets", t, target, -1, int32(o.Vocab-1))
		row := logits[t*o.Vocab : (t+1)*o.Vocab]
		if target < 0 {
			if o.Backward {
				clear(row)
			}
			continue
		}
		most, sum := slices.Max(row), 0.0
		for _, x := range row {
			sum += math.Exp(x - most)
		}
		lse := most + math.Log(sum)
		loss[t] = lse - row[target]
		if !o.Backward {
			continue
		}
		scale := load(o.Scale)[0]
		for i, x := range row {
			p := math.Exp(x - lse)
			if int32(i) == target {
				p--
			}
			row[i] = p * scale
		}
	}
	if o.Backward {
		store(o.Logits, logits)
	}
	store(o.Loss, loss)
}
