package kernels

import (
	"fmt"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// The weights' gradients have so much under way in a thread that one block on a multiprocessor will do.
var ropeKernels = slices.Concat(
	kernelsOf[qkNormRoPEArgs]("rope", "qk_norm_rope", 256, 4),
	kernelsOf[qkNormRoPEBackwardArgs]("rope", "qk_norm_rope_backward", 256, 3),
	kernelsOf[qkNormRoPEBackwardArgs]("rope", "qk_norm_rope_weights", 512, 1),
	kernelsOf[qkNormRoPEBackwardArgs]("rope", "qk_norm_rope_weights_end", 128, 6),
)

type qkNormRoPEArgs struct {
	q, k, qWeight, kWeight, pos, cos, sin, qOut, kOut, qRStd, kRStd uint64

	rows                                int64
	heads, kvHeads, headSize, positions int32
	lanes, vector                       uint32
	eps, sign                           float32
}

type qkNormRoPEBackwardArgs struct {
	dqOut, dkOut, q, k, qWeight, kWeight, qRStd, kRStd, pos, cos, sin, sums, dq, dk, dqWeight, dkWeight uint64

	rows                                       int64
	heads, kvHeads, headSize, positions, parts int32
	lanes, vector, accumulate, qWide, kWide    uint32
}

// headLanes returns how many lanes share a head, one pack of each half a lane.
func headLanes(headSize int, typ device.DType, vector uint32) uint32 {
	packs := headSize / 2
	if vector != 0 {
		packs = packs * int(typ.Size()) / 16
	}
	lanes := 1
	for lanes < 32 && lanes < packs {
		lanes *= 2
	}
	return uint32(lanes)
}

// countHeads refuses what the kernels' 32-bit indices cannot count.
func countHeads(rows, heads, kvHeads int) error {
	if n := int64(rows) * int64(heads+kvHeads); n > math.MaxInt32 {
		return fmt.Errorf("%d heads in %d rows are more than can be counted; make the micro-batch smaller", n, rows)
	}
	return nil
}

func qkNormRoPE(o *device.QKNormRoPE) ([]Launch, error) { return rope(o, 1) }

// rope normalises, where there are weights, and rotates by sign.
func rope(o *device.QKNormRoPE, sign float32) ([]Launch, error) {
	typ := o.Q.Type
	kernel, err := named("qk_norm_rope", typ)
	if err != nil {
		return nil, err
	}
	if err := countHeads(o.Rows, o.Heads, o.KVHeads); err != nil {
		return nil, err
	}
	vector := aligned(o.Q, o.K, o.QWeight, o.KWeight, o.Cos, o.Sin, o.QOut, o.KOut) & wholePacks(o.HeadSize/2, typ)
	lanes := headLanes(o.HeadSize, typ, vector)
	return []Launch{line(kernel, cover(o.Rows*(o.Heads+o.KVHeads), int(256/lanes)), 256, pack(qkNormRoPEArgs{
		at(o.Q), at(o.K), at(o.QWeight), at(o.KWeight), at(o.Pos), at(o.Cos), at(o.Sin), at(o.QOut), at(o.KOut), at(o.QRStd), at(o.KRStd),
		int64(o.Rows), int32(o.Heads), int32(o.KVHeads), int32(o.HeadSize), int32(o.Positions), lanes, vector, o.Eps, sign,
	}))}, nil
}

// qkNormRoPEBackward computes the weights' gradients first, for DQ may be DQOut.
func qkNormRoPEBackward(o *device.QKNormRoPEBackward) ([]Launch, error) {
	if o.QWeight.Absent() {
		return rope(&device.QKNormRoPE{
			Q: o.DQOut, K: o.DKOut, Pos: o.Pos, Cos: o.Cos, Sin: o.Sin, QOut: o.DQ, KOut: o.DK,
			Rows: o.Rows, Heads: o.Heads, KVHeads: o.KVHeads, HeadSize: o.HeadSize, Positions: o.Positions,
		}, -1)
	}
	typ := o.DQOut.Type
	kernel, err := named("qk_norm_rope_backward", typ)
	if err != nil {
		return nil, err
	}
	weights, _ := named("qk_norm_rope_weights", typ)
	end, _ := named("qk_norm_rope_weights_end", typ)
	if err := countHeads(o.Rows, o.Heads, o.KVHeads); err != nil {
		return nil, err
	}
	vector := aligned(o.DQOut, o.DKOut, o.Q, o.K, o.QWeight, o.KWeight, o.Cos, o.Sin, o.DQ, o.DK) & wholePacks(o.HeadSize/2, typ)
	lanes, packs := headLanes(o.HeadSize, typ, vector), o.HeadSize/2
	if vector != 0 {
		packs = packs * int(typ.Size()) / 16
	}
	parts := device.QKNormParts(o.Rows, o.Heads)
	args := pack(qkNormRoPEBackwardArgs{
		at(o.DQOut), at(o.DKOut), at(o.Q), at(o.K), at(o.QWeight), at(o.KWeight), at(o.QRStd), at(o.KRStd), at(o.Pos), at(o.Cos), at(o.Sin),
		at(o.Parts), at(o.DQ), at(o.DK), at(o.DQWeight), at(o.DKWeight),
		int64(o.Rows), int32(o.Heads), int32(o.KVHeads), int32(o.HeadSize), int32(o.Positions), int32(parts),
		lanes, vector, flag(o.Accumulate), flag(o.DQWeight.Type == device.F32), flag(o.DKWeight.Type == device.F32),
	})
	return []Launch{
		{Kernel: weights, Grid: [3]uint32{uint32(packs), 2, uint32(parts)}, Block: [3]uint32{512, 1, 1}, Args: args},
		line(end, cover(2*o.HeadSize, 128), 128, args),
		line(kernel, cover(o.Rows*(o.Heads+o.KVHeads), int(256/lanes)), 256, args),
	}, nil
}
