//go:build cgo && amd64

package cpu

// #include "ops.h"
import "C"

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

func (k *kernels) addRMSNorm(o *device.AddRMSNorm) bool {
	if !computed(o.X) || !single(o.RStd) {
		return false
	}
	args := C.gk_add_rms_norm_args{
		x: o.X.Pointer(), residual: o.Residual.Pointer(), weight: o.Weight.Pointer(),
		sum: o.Sum.Pointer(), out: o.Out.Pointer(), rstd: floatsAt(o.RStd),
		rows: C.int64_t(o.Rows), dim: C.int64_t(o.Dim), eps: C.float(o.Eps),
	}
	return k.run(C.GK_OP_ADD_RMS_NORM, o.X.Type, unsafe.Pointer(&args))
}

func (k *kernels) addRMSNormBackward(o *device.AddRMSNormBackward) bool {
	if !computed(o.DOut) || !computed(o.DWeight) || !single(o.RStd) {
		return false
	}
	args := C.gk_add_rms_norm_backward_args{
		dout: o.DOut.Pointer(), dsum: o.DSum.Pointer(), sum: o.Sum.Pointer(), weight: o.Weight.Pointer(),
		rstd: floatsAt(o.RStd), dx: o.DX.Pointer(), dweight: o.DWeight.Pointer(),
		rows: C.int64_t(o.Rows), dim: C.int64_t(o.Dim),
		dweight_type: ctype(o.DWeight.Type), accumulate: flag(o.Accumulate),
	}
	return k.run(C.GK_OP_ADD_RMS_NORM_BACKWARD, o.DOut.Type, unsafe.Pointer(&args))
}

func (k *kernels) qkNormRoPE(o *device.QKNormRoPE) (bool, error) {
	if !computed(o.Q) || !single(o.Cos) || !single(o.Sin) || !single(o.QRStd) || !single(o.KRStd) {
		return false, nil
	}
	if err := inside("QKNormRoPE", "Pos", o.Pos, 0, o.Positions-1); err != nil {
		return false, err
	}
	args := C.gk_qk_norm_rope_args{
		pos: intsAt(o.Pos), cos: floatsAt(o.Cos), sin: floatsAt(o.Sin),
		rows: C.int64_t(o.Rows), head_size: C.int64_t(o.HeadSize), eps: C.float(o.Eps),
	}
	args.part[0] = C.gk_rope_part{
		x: o.Q.Pointer(), weight: o.QWeight.Pointer(), out: o.QOut.Pointer(), rstd: floatsAt(o.QRStd), heads: C.int64_t(o.Heads),
	}
	args.part[1] = C.gk_rope_part{
		x: o.K.Pointer(), weight: o.KWeight.Pointer(), out: o.KOut.Pointer(), rstd: floatsAt(o.KRStd), heads: C.int64_t(o.KVHeads),
	}
	return k.run(C.GK_OP_QK_NORM_ROPE, o.Q.Type, unsafe.Pointer(&args)), nil
}

func (k *kernels) qkNormRoPEBackward(o *device.QKNormRoPEBackward) (bool, error) {
	norm := !o.QWeight.Absent()
	if !computed(o.DQOut) || !single(o.Cos) || !single(o.Sin) || !single(o.QRStd) || !single(o.KRStd) ||
		norm && !(computed(o.DQWeight) && computed(o.DKWeight)) {
		return false, nil
	}
	if err := inside("QKNormRoPEBackward", "Pos", o.Pos, 0, o.Positions-1); err != nil {
		return false, err
	}
	args := C.gk_qk_norm_rope_backward_args{
		pos: intsAt(o.Pos), cos: floatsAt(o.Cos), sin: floatsAt(o.Sin),
		rows: C.int64_t(o.Rows), head_size: C.int64_t(o.HeadSize), accumulate: flag(o.Accumulate),
	}
	args.part[0] = C.gk_rope_backward_part{
		dout: o.DQOut.Pointer(), x: o.Q.Pointer(), weight: o.QWeight.Pointer(), rstd: floatsAt(o.QRStd),
		dx: o.DQ.Pointer(), dweight: o.DQWeight.Pointer(), heads: C.int64_t(o.Heads), dweight_type: ctype(o.DQWeight.Type),
	}
	args.part[1] = C.gk_rope_backward_part{
		dout: o.DKOut.Pointer(), x: o.K.Pointer(), weight: o.KWeight.Pointer(), rstd: floatsAt(o.KRStd),
		dx: o.DK.Pointer(), dweight: o.DKWeight.Pointer(), heads: C.int64_t(o.KVHeads), dweight_type: ctype(o.DKWeight.Type),
	}
	return k.run(C.GK_OP_QK_NORM_ROPE_BACKWARD, o.DQOut.Type, unsafe.Pointer(&args)), nil
}

func (k *kernels) attention(o *device.Attention) (bool, error) {
	if !computed(o.Q) || !single(o.LSE) {
		return false, nil
	}
	if err := insideStarts("Attention", o.Start, o.SeqLen); err != nil {
		return false, err
	}
	args := C.gk_attention_args{
		q: o.Q.Pointer(), k: o.K.Pointer(), v: o.V.Pointer(), start: intsAt(o.Start), out: o.Out.Pointer(), lse: floatsAt(o.LSE),
		seqs: C.int64_t(o.Seqs), seq_len: C.int64_t(o.SeqLen), heads: C.int64_t(o.Heads),
		kv_heads: C.int64_t(o.KVHeads), head_size: C.int64_t(o.HeadSize), scale: C.float(o.Scale),
	}
	return k.run(C.GK_OP_ATTENTION, o.Q.Type, unsafe.Pointer(&args)), nil
}

func (k *kernels) attentionBackward(o *device.AttentionBackward) (bool, error) {
	if !computed(o.Q) || !single(o.LSE) || !single(o.D) {
		return false, nil
	}
	if err := insideStarts("AttentionBackward", o.Start, o.SeqLen); err != nil {
		return false, err
	}
	args := C.gk_attention_args{
		q: o.Q.Pointer(), k: o.K.Pointer(), v: o.V.Pointer(), start: intsAt(o.Start), out_in: o.Out.Pointer(),
		dout: o.DOut.Pointer(), lse: floatsAt(o.LSE), d: floatsAt(o.D), dq: o.DQ.Pointer(), dk: o.DK.Pointer(), dv: o.DV.Pointer(),
		seqs: C.int64_t(o.Seqs), seq_len: C.int64_t(o.SeqLen), heads: C.int64_t(o.Heads),
		kv_heads: C.int64_t(o.KVHeads), head_size: C.int64_t(o.HeadSize), scale: C.float(o.Scale),
	}
	return k.run(C.GK_OP_ATTENTION_BACKWARD, o.Q.Type, unsafe.Pointer(&args)), nil
}

func (k *kernels) attentionDecode(o *device.AttentionDecode) (bool, error) {
	if !computed(o.Q) {
		return false, nil
	}
	if err := inside("AttentionDecode", "Cached", o.Cached, 0, 1<<31-1); err != nil {
		return false, err
	}
	args := C.gk_attention_args{
		q: o.Q.Pointer(), k: o.K.Pointer(), v: o.V.Pointer(), out: o.Out.Pointer(), cached: intsAt(o.Cached),
		k_cache: o.KCache.Pointer(), v_cache: o.VCache.Pointer(),
		seqs: C.int64_t(o.Seqs), seq_len: C.int64_t(o.SeqLen), cache_len: C.int64_t(o.CacheLen), heads: C.int64_t(o.Heads),
		kv_heads: C.int64_t(o.KVHeads), head_size: C.int64_t(o.HeadSize), scale: C.float(o.Scale),
	}
	return k.run(C.GK_OP_ATTENTION_DECODE, o.Q.Type, unsafe.Pointer(&args)), nil
}

func (k *kernels) embed(o *device.Embed) (bool, error) {
	if !computed(o.Table) {
		return false, nil
	}
	if err := inside("Embed", "IDs", o.IDs, 0, o.Vocab-1); err != nil {
		return false, err
	}
	args := C.gk_embed_args{
		table: o.Table.Pointer(), ids: intsAt(o.IDs), out: o.Out.Pointer(), rows: C.int64_t(o.Rows), dim: C.int64_t(o.Dim),
	}
	return k.run(C.GK_OP_EMBED, o.Table.Type, unsafe.Pointer(&args)), nil
}

func (k *kernels) embedBackward(o *device.EmbedBackward) (bool, error) {
	if !computed(o.DOut) || !computed(o.DTable) {
		return false, nil
	}
	if err := inside("EmbedBackward", "IDs", o.IDs, 0, o.Vocab-1); err != nil {
		return false, err
	}
	args := C.gk_embed_backward_args{
		dout: o.DOut.Pointer(), ids: intsAt(o.IDs), dtable: o.DTable.Pointer(), rows: C.int64_t(o.Rows),
		dim: C.int64_t(o.Dim), vocab: C.int64_t(o.Vocab), dtable_type: ctype(o.DTable.Type),
	}
	return k.run(C.GK_OP_EMBED_BACKWARD, o.DOut.Type, unsafe.Pointer(&args)), nil
}

func (k *kernels) headLoss(o *device.HeadLoss) (bool, error) {
	if !computed(o.Logits) || !single(o.Scale) || !single(o.Loss) {
		return false, nil
	}
	if err := inside("HeadLoss", "Targets", o.Targets, -1, o.Vocab-1); err != nil {
		return false, err
	}
	args := C.gk_head_loss_args{
		logits: o.Logits.Pointer(), targets: intsAt(o.Targets), scale: floatsAt(o.Scale), loss: floatsAt(o.Loss),
		rows: C.int64_t(o.Rows), vocab: C.int64_t(o.Vocab), backward: flag(o.Backward),
	}
	return k.run(C.GK_OP_HEAD_LOSS, o.Logits.Type, unsafe.Pointer(&args)), nil
}
