package model

import (
	"math"

	"github.com/gofsdp/gofsdp/device"
)

// Acts are the activations of a block that its backward reads.
type Acts struct {
	HIn, RStd1, N1           device.Tensor // input, its norm
	QRaw, KRaw, QRStd, KRStd device.Tensor // before q/k norm; with QKNorm only
	Q, K, V, Att, LSE        device.Tensor
	HMid, RStd2, N2          device.Tensor // after attention, its norm
	Gate, Up, S              device.Tensor // the MLP's inside
}

// Block emits the forward of a block and returns its output, and what its
// backward reads.
func (d *Decoder) Block(e Emitter, layer int, in Inputs, s Stream) (Stream, Acts) {
	a := d.block(e, layer, in, s, d.attention(e, in))
	return d.down(e, layer, a), a
}

// attention emits the attention of whole sequences.
func (d *Decoder) attention(e Emitter, in Inputs) func(*Acts) {
	return func(a *Acts) {
		a.LSE = e.Value("attn.core.lse", device.F32, d.Rows()*d.Heads)
		e.Emit("attn.core", &device.Attention{
			Q: a.Q, K: a.K, V: a.V, Start: in.Start, Out: a.Att, LSE: a.LSE,
			Seqs: d.Seqs, SeqLen: d.SeqLen, Heads: d.Heads, KVHeads: d.KVHeads, HeadSize: d.HeadSize, Scale: d.scale(),
		})
	}
}

// block emits a block up to its last product, around the kind of attention
// that core emits.
func (d *Decoder) block(e Emitter, layer int, in Inputs, s Stream, core func(*Acts)) Acts {
	var a Acts
	b, rows := blockName(layer), d.Rows()
	a.N1, a.RStd1, a.HIn = d.norm(e, "attn.norm", b+"input_layernorm.weight", s, rows)
	d.qkv(e, b, in, rows, &a)
	a.Att = e.Value("attn.core.out", d.Type, rows*d.Heads*d.HeadSize)
	core(&a)
	o := d.linear(e, "attn.out", b+"self_attn.o_proj", false, a.Att, rows, d.Heads*d.HeadSize, d.Hidden)
	a.N2, a.RStd2, a.HMid = d.norm(e, "mlp.norm", b+"post_attention_layernorm.weight", Stream{Residual: a.HIn, Delta: o}, rows)
	a.Gate = d.linear(e, "mlp.up", b+"mlp.gate_proj", false, a.N2, rows, d.Hidden, d.MLP)
	a.Up = d.linear(e, "mlp.up", b+"mlp.up_proj", false, a.N2, rows, d.Hidden, d.MLP)
	d.swiglu(e, rows, &a)
	return a
}

// down emits a block's last product, whose output its backward does not read.
func (d *Decoder) down(e Emitter, layer int, a Acts) Stream {
	y := d.linear(e, "mlp.down", blockName(layer)+"mlp.down_proj", false, a.S, d.Rows(), d.MLP, d.Hidden)
	return Stream{Residual: a.HMid, Delta: y}
}

// scale is what attention multiplies its scores by.
func (d *Decoder) scale() float32 { return float32(1 / math.Sqrt(float64(d.HeadSize))) }

// qkv emits the projections of N1 and the rotation of q and k.
func (d *Decoder) qkv(e Emitter, b string, in Inputs, rows int, a *Acts) {
	q, kv := d.Heads*d.HeadSize, d.KVHeads*d.HeadSize
	a.QRaw = d.linear(e, "attn.qkv", b+"self_attn.q_proj", d.QKVBias, a.N1, rows, d.Hidden, q)
	a.KRaw = d.linear(e, "attn.qkv", b+"self_attn.k_proj", d.QKVBias, a.N1, rows, d.Hidden, kv)
	a.V = d.linear(e, "attn.qkv", b+"self_attn.v_proj", d.QKVBias, a.N1, rows, d.Hidden, kv)
	d.rotate(e, b, in, rows, a)
}

// rotate emits q/k norm and RoPE: in place where there is no norm, since then
// the backward does not read what was there before.
func (d *Decoder) rotate(e Emitter, b string, in Inputs, rows int, a *Acts) {
	op := &device.QKNormRoPE{
		Q: a.QRaw, K: a.KRaw, Pos: in.Pos, Cos: in.Cos, Sin: in.Sin,
		Rows: rows, Heads: d.Heads, KVHeads: d.KVHeads, HeadSize: d.HeadSize, Positions: d.Positions, Eps: float32(d.NormEps),
	}
	a.Q, a.K = a.QRaw, a.KRaw
	if d.QKNorm {
		a.Q = e.Value("attn.rope.q", d.Type, rows*d.Heads*d.HeadSize)
		a.K = e.Value("attn.rope.k", d.Type, rows*d.KVHeads*d.HeadSize)
		a.QRStd = e.Value("attn.rope.qrstd", device.F32, rows*d.Heads)
		a.KRStd = e.Value("attn.rope.krstd", device.F32, rows*d.KVHeads)
		op.QWeight, op.KWeight = e.Weight(b+"self_attn.q_norm.weight"), e.Weight(b+"self_attn.k_norm.weight")
		op.QRStd, op.KRStd = a.QRStd, a.KRStd
	}
	op.QOut, op.KOut = a.Q, a.K
	e.Emit("attn.rope", op)
}

func (d *Decoder) swiglu(e Emitter, rows int, a *Acts) {
	a.S = e.Value("mlp.act.out", d.Type, rows*d.MLP)
	e.Emit("mlp.act", &device.SwiGLU{Gate: a.Gate, Up: a.Up, Out: a.S, N: rows * d.MLP})
}

// RecomputeCheap emits again what costs little: the norms, and SwiGLU. What it
// returns may replace a in the backward, bit by bit, so that the originals need
// not live so long.
func (d *Decoder) RecomputeCheap(e Emitter, layer int, in Inputs, a Acts) Acts {
	b, rows := blockName(layer), d.Rows()
	a.N1, a.RStd1, _ = d.norm(e, "attn.norm", b+"input_layernorm.weight", Stream{Delta: a.HIn}, rows)
	if d.QKNorm {
		d.rotate(e, b, in, rows, &a)
	}
	a.N2, a.RStd2, _ = d.norm(e, "mlp.norm", b+"post_attention_layernorm.weight", Stream{Delta: a.HMid}, rows)
	d.swiglu(e, rows, &a)
	return a
}

// RecomputeBlock emits again from the block's input alone all that its backward
// reads.
func (d *Decoder) RecomputeBlock(e Emitter, layer int, in Inputs, a Acts) Acts {
	return d.block(e, layer, in, Stream{Delta: a.HIn}, d.attention(e, in))
}

// BlockBackward emits the backward of a block. dh is the gradient of its
// output and is overwritten by what is returned, the gradient of its input.
func (d *Decoder) BlockBackward(e Emitter, layer int, in Inputs, a Acts, dh device.Tensor) device.Tensor {
	b, rows := blockName(layer), d.Rows()
	q, kv := d.Heads*d.HeadSize, d.KVHeads*d.HeadSize

	ds := e.Value("mlp.ds", d.Type, rows*d.MLP)
	d.linearBackward(e, "mlp.down", b+"mlp.down_proj", false, a.S, dh, ds, d.MLP, d.Hidden, false)
	dup := e.Value("mlp.dup", d.Type, rows*d.MLP)
	e.Emit("mlp.act.back", &device.SwiGLUBackward{Gate: a.Gate, Up: a.Up, DOut: ds, DGate: ds, DUp: dup, N: rows * d.MLP})
	dn := e.Value("mlp.dn", d.Type, rows*d.Hidden)
	d.linearBackward(e, "mlp.up", b+"mlp.gate_proj", false, a.N2, ds, dn, d.Hidden, d.MLP, false)
	d.linearBackward(e, "mlp.up", b+"mlp.up_proj", false, a.N2, dup, dn, d.Hidden, d.MLP, true)
	dh = d.normBackward(e, "mlp.norm", b+"post_attention_layernorm.weight", dn, dh, a.HMid, a.RStd2)

	datt := e.Value("attn.datt", d.Type, rows*q)
	d.linearBackward(e, "attn.out", b+"self_attn.o_proj", false, a.Att, dh, datt, q, d.Hidden, false)
	dq, dk, dv := e.Value("attn.dq", d.Type, rows*q), e.Value("attn.dk", d.Type, rows*kv), e.Value("attn.dv", d.Type, rows*kv)
	var parts device.Tensor
	if n := device.AttentionParts(d.Type, d.Seqs, d.SeqLen, d.Heads, d.KVHeads); n > 1 {
		parts = e.Value("attn.core.parts", device.F32, n*2*rows*kv)
	}
	e.Emit("attn.core.back", &device.AttentionBackward{
		Q: a.Q, K: a.K, V: a.V, Start: in.Start, Out: a.Att, LSE: a.LSE, DOut: datt,
		D: e.Value("attn.core.d", device.F32, rows*d.Heads), Parts: parts, DQ: dq, DK: dk, DV: dv,
		Seqs: d.Seqs, SeqLen: d.SeqLen, Heads: d.Heads, KVHeads: d.KVHeads, HeadSize: d.HeadSize, Scale: d.scale(),
	})
	d.rotateBackward(e, b, in, a, dq, dk)
	dn = e.Value("attn.dn", d.Type, rows*d.Hidden)
	d.linearBackward(e, "attn.qkv", b+"self_attn.q_proj", d.QKVBias, a.N1, dq, dn, d.Hidden, q, false)
	d.linearBackward(e, "attn.qkv", b+"self_attn.k_proj", d.QKVBias, a.N1, dk, dn, d.Hidden, kv, true)
	d.linearBackward(e, "attn.qkv", b+"self_attn.v_proj", d.QKVBias, a.N1, dv, dn, d.Hidden, kv, true)
	return d.normBackward(e, "attn.norm", b+"input_layernorm.weight", dn, dh, a.HIn, a.RStd1)
}

// rotateBackward turns the gradients of the rotated q and k into those of the
// projections, in place.
func (d *Decoder) rotateBackward(e Emitter, b string, in Inputs, a Acts, dq, dk device.Tensor) {
	op := &device.QKNormRoPEBackward{
		DQOut: dq, DKOut: dk, DQ: dq, DK: dk, Pos: in.Pos, Cos: in.Cos, Sin: in.Sin,
		Rows: d.Rows(), Heads: d.Heads, KVHeads: d.KVHeads, HeadSize: d.HeadSize, Positions: d.Positions,
	}
	if d.QKNorm {
		op.Q, op.K, op.QRStd, op.KRStd = a.QRaw, a.KRaw, a.QRStd, a.KRStd
		op.QWeight, op.KWeight = e.Weight(b+"self_attn.q_norm.weight"), e.Weight(b+"self_attn.k_norm.weight")
		op.DQWeight, op.Accumulate = e.Grad(b + "self_attn.q_norm.weight")
		op.DKWeight, _ = e.Grad(b + "self_attn.k_norm.weight")
		op.Parts = e.Value("attn.rope.parts", device.F32, device.QKNormParts(d.Rows(), d.Heads)*2*d.HeadSize)
	}
	e.Emit("attn.rope.back", op)
}
