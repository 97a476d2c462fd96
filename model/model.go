// Package model describes decoder families (Qwen2, Qwen2.5, Qwen3, Llama) as
// data: a configuration, a table of parameters with Hugging Face's names in
// units, and for each unit the list of device operations of its forward, its
// backward and its decoding.
//
// It knows the architecture and the names of its weights. It must not know
// ranks, shards, memory addresses, files of weights, optimizers or devices:
// tensors come from an Emitter, which decides where they live.
package model

import (
	"fmt"

	"github.com/gofsdp/gofsdp/device"
)

// Emitter is where a unit's operations go and where its tensors come from. The
// planner implements it.
type Emitter interface {
	// Weight returns a parameter as it computes.
	Weight(param string) device.Tensor
	// Grad returns a parameter's gradient, and whether this step has already
	// written to it, so that what follows must add.
	Grad(param string) (grad device.Tensor, accumulate bool)
	// Value returns a new tensor. It lives from the first operation that
	// writes it to the last that reads it.
	Value(name string, typ device.DType, n int) device.Tensor
	// Emit appends an operation under a cut point's name, such as "attn.core".
	Emit(cut string, op device.Op)
}

// Inputs are the tensors that the host fills before each micro-batch, and
// RoPE's tables.
type Inputs struct {
	IDs     device.Tensor // [T] I32
	Targets device.Tensor // [T] I32, −1 masked
	Start   device.Tensor // [T] I32: where the row's document begins in its sequence
	Pos     device.Tensor // [T] I32: position within the document
	Scale   device.Tensor // [1] F32: 1/(valid targets of the step)
	Cos     device.Tensor // [Positions,HeadSize/2] F32
	Sin     device.Tensor // [Positions,HeadSize/2] F32
}

// Decoder emits the operations of a Config at one batch shape and one compute
// type. It is a plain value.
type Decoder struct {
	Config
	Type      device.DType // F32 or BF16: weights and activations
	Seqs      int          // sequences of a micro-batch
	SeqLen    int
	Positions int // rows of RoPE's tables
	HeadRows  int // rows of logits that exist at once
}

// Rows returns the rows of a micro-batch.
func (d *Decoder) Rows() int { return d.Seqs * d.SeqLen }

// Stream is the residual stream between two units: the value is Residual +
// Delta, added by the next norm. Residual is absent after the embedding.
type Stream struct{ Residual, Delta device.Tensor }

// Embed emits the look-up.
func (d *Decoder) Embed(e Emitter, in Inputs) Stream {
	x := e.Value("x", d.Type, d.Rows()*d.Hidden)
	e.Emit("embed", &device.Embed{
		Table: e.Weight(EmbedName), IDs: in.IDs, Out: x,
		Rows: d.Rows(), Dim: d.Hidden, Vocab: d.Vocab,
	})
	return Stream{Delta: x}
}

// EmbedBackward emits the gradient of the look-up; dx is the gradient of the
// first block's input.
func (d *Decoder) EmbedBackward(e Emitter, in Inputs, dx device.Tensor) {
	grad, accumulate := e.Grad(EmbedName)
	if !accumulate {
		e.Emit("embed.back", &device.Fill{Dst: grad, N: int(grad.Len)})
	}
	e.Emit("embed.back", &device.EmbedBackward{
		DOut: dx, IDs: in.IDs, DTable: grad,
		Rows: d.Rows(), Dim: d.Hidden, Vocab: d.Vocab,
	})
}

// norm emits an AddRMSNorm of the stream and returns its output, its
// statistics and the sum that it normalised.
func (d *Decoder) norm(e Emitter, cut, weight string, in Stream, rows int) (out, rstd, sum device.Tensor) {
	n := rows * d.Hidden
	out = e.Value(cut+".out", d.Type, n)
	rstd = e.Value(cut+".rstd", device.F32, rows)
	op := &device.AddRMSNorm{
		X: in.Delta, Weight: e.Weight(weight), Out: out, RStd: rstd,
		Rows: rows, Dim: d.Hidden, Eps: float32(d.NormEps),
	}
	sum = in.Delta
	if !in.Residual.Absent() {
		sum = e.Value(cut+".sum", d.Type, n)
		op.Residual, op.Sum = in.Residual, sum
	}
	e.Emit(cut, op)
	return out, rstd, sum
}

// normBackward emits the gradient of a norm. dsum reaches the sum by the
// residual stream and is overwritten by the result; absent, dout is.
func (d *Decoder) normBackward(e Emitter, cut, weight string, dout, dsum, sum, rstd device.Tensor) device.Tensor {
	grad, accumulate := e.Grad(weight)
	dx := dsum
	if dsum.Absent() {
		dx = dout
	}
	e.Emit(cut+".back", &device.AddRMSNormBackward{
		DOut: dout, DSum: dsum, Sum: sum, Weight: e.Weight(weight), RStd: rstd,
		DX: dx, DWeight: grad, Rows: d.Rows(), Dim: d.Hidden, Accumulate: accumulate,
	})
	return dx
}

// linear emits Y[rows,out] = X[rows,in]·Wᵀ (+ bias).
func (d *Decoder) linear(e Emitter, cut, param string, bias bool, x device.Tensor, rows, in, out int) device.Tensor {
	y := e.Value(fmt.Sprintf("%s.%s", cut, leaf(param)), d.Type, rows*out)
	op := &device.MatMul{A: x, B: e.Weight(param + ".weight"), C: y, M: rows, N: out, K: in, TransB: true}
	if bias {
		op.Bias = e.Weight(param + ".bias")
	}
	e.Emit(cut, op)
	return y
}

// linearBackward emits the weight's and the bias's gradient, and dX into dx,
// adding where addDX.
func (d *Decoder) linearBackward(e Emitter, cut, param string, bias bool, x, dy, dx device.Tensor, in, out int, addDX bool) {
	rows := d.Rows()
	e.Emit(cut+".back", &device.MatMul{A: dy, B: e.Weight(param + ".weight"), C: dx, M: rows, N: in, K: out, Accumulate: addDX})
	grad, accumulate := e.Grad(param + ".weight")
	e.Emit(cut+".back", &device.MatMul{A: dy, B: x, C: grad, M: out, N: in, K: rows, TransA: true, Accumulate: accumulate})
	if bias {
		grad, accumulate := e.Grad(param + ".bias")
		e.Emit(cut+".back", &device.BiasBackward{DOut: dy, DBias: grad, M: rows, N: out, Accumulate: accumulate})
	}
}

// HeadLoss emits the final norm, then for each chunk of rows the logits and
// their loss into loss[T] (F32); with backward also the chunk's gradients at
// once, so that a chunk's logits are all that ever exists of them. It returns
// the gradient of the last block's output, absent without backward.
func (d *Decoder) HeadLoss(e Emitter, in Inputs, s Stream, loss device.Tensor, backward bool) device.Tensor {
	x, rstd, sum := d.norm(e, "head.norm", NormName, s, d.Rows())
	var dx device.Tensor
	if backward {
		dx = e.Value("head.dx", d.Type, d.Rows()*d.Hidden)
	}
	for r := 0; r < d.Rows(); r += d.HeadRows {
		rows := min(d.HeadRows, d.Rows()-r)
		chunk := func(t device.Tensor, width int) device.Tensor {
			return t.Slice(int64(r*width), int64(rows*width))
		}
		xc, lc := chunk(x, d.Hidden), e.Value("head.logits", d.Type, rows*d.Vocab)
		e.Emit("head.logits", &device.MatMul{A: xc, B: e.Weight(d.HeadName()), C: lc, M: rows, N: d.Vocab, K: d.Hidden, TransB: true})
		op := &device.HeadLoss{Logits: lc, Targets: chunk(in.Targets, 1), Loss: chunk(loss, 1), Rows: rows, Vocab: d.Vocab, Backward: backward}
		if backward {
			op.Scale = in.Scale
		}
		e.Emit("head.loss", op)
		if !backward {
			continue
		}
		e.Emit("head.back", &device.MatMul{A: lc, B: e.Weight(d.HeadName()), C: chunk(dx, d.Hidden), M: rows, N: d.Hidden, K: d.Vocab})
		grad, accumulate := e.Grad(d.HeadName())
		e.Emit("head.back", &device.MatMul{A: lc, B: xc, C: grad, M: d.Vocab, N: d.Hidden, K: rows, TransA: true, Accumulate: accumulate})
	}
	if !backward {
		return device.Tensor{}
	}
	return d.normBackward(e, "head.norm", NormName, dx, device.Tensor{}, sum, rstd)
}
