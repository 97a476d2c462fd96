package model

import "github.com/gofsdp/gofsdp/device"

// Cache holds the keys and values of a block's past rows.
type Cache struct{ K, V device.Tensor } // [Seqs,CacheLen,KVHeads,HeadSize]

// DecodeInputs are what the host fills before each decoding step.
type DecodeInputs struct {
	IDs    device.Tensor // [Seqs·SeqLen] I32: the new tokens
	Pos    device.Tensor // [Seqs·SeqLen] I32: their positions
	Cached device.Tensor // [Seqs] I32: rows that the caches hold
	Last   device.Tensor // [Seqs] I32: the rows whose logits are wanted
	Cos    device.Tensor
	Sin    device.Tensor
}

// Decode emits one decoding step: SeqLen new rows for each of Seqs sequences
// through all blocks, and into logits (F32, [Seqs,Vocab]) those of the rows
// Last. unit is called as each unit begins.
func (d *Decoder) Decode(e Emitter, in DecodeInputs, caches []Cache, cacheLen int, logits device.Tensor, unit func(index int)) {
	rows := d.Rows()
	rope := Inputs{IDs: in.IDs, Pos: in.Pos, Cos: in.Cos, Sin: in.Sin}
	unit(0)
	s := d.Embed(e, rope)
	for l := range d.Layers {
		unit(1 + l)
		a := d.block(e, l, rope, s, func(a *Acts) {
			e.Emit("attn.core", &device.AttentionDecode{
				Q: a.Q, K: a.K, V: a.V, Cached: in.Cached, KCache: caches[l].K, VCache: caches[l].V, Out: a.Att,
				Seqs: d.Seqs, SeqLen: d.SeqLen, CacheLen: cacheLen, Heads: d.Heads, KVHeads: d.KVHeads, HeadSize: d.HeadSize, Scale: d.scale(),
			})
		})
		s = d.down(e, l, a)
	}
	unit(d.HeadUnit())
	x, _, _ := d.norm(e, "head.norm", NormName, s, rows)
	last := e.Value("head.last", d.Type, d.Seqs*d.Hidden)
	e.Emit("head.last", &device.Embed{Table: x, IDs: in.Last, Out: last, Rows: d.Seqs, Dim: d.Hidden, Vocab: rows})
	e.Emit("head.logits", &device.MatMul{A: last, B: e.Weight(d.HeadName()), C: logits, M: d.Seqs, N: d.Vocab, K: d.Hidden, TransB: true})
}
