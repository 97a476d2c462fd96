package kernels

import (
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// Bound by memory.
var decodeKernels = slices.Concat(
	kernelsOf[attentionDecodeArgs]("decode", "attention_decode_append", 256, 6),
	kernelsOf[attentionDecodeArgs]("decode", "attention_decode_h64", 256, 3),
	kernelsOf[attentionDecodeArgs]("decode", "attention_decode_h128", 256, 3),
)

type attentionDecodeArgs struct {
	q, k, v, cached, kCache, vCache, out uint64
	rows                                 int32
	seqLen, cacheLen, heads, kvHeads     int32
	across                               int32
	scale                                float32
}

// attentionDecode appends to the caches first: a later launch of the stream
// sees what blocks of an earlier one have written.
func attentionDecode(o *device.AttentionDecode) ([]Launch, error) {
	typ := o.Q.Type
	all := aligned(o.Q, o.K, o.V, o.KCache, o.VCache, o.Out)
	kernel, err := attentionName("attention_decode", o.HeadSize, o.Scale, typ, all)
	if err != nil {
		return nil, err
	}
	rows, across := o.Seqs*o.SeqLen, o.KVHeads*o.HeadSize*int(typ.Size())/16
	args := pack(attentionDecodeArgs{
		at(o.Q), at(o.K), at(o.V), at(o.Cached), at(o.KCache), at(o.VCache), at(o.Out), int32(rows),
		int32(o.SeqLen), int32(o.CacheLen), int32(o.Heads), int32(o.KVHeads), int32(across), o.Scale,
	})
	return []Launch{
		line(fmt.Sprintf("attention_decode_append_%s", typ), cover(rows, 8), 256, args),
		line(kernel, cover(rows*o.Heads, 1), 256, args),
	}, nil
}
