package kernels

import (
	"maps"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func TestDecodingIsRightInShortAndLongCaches(t *testing.T) {
	cases := map[string]struct {
		typ                                    device.DType
		seqLen, cacheLen, heads, kvHeads, size int
		cached                                 []int
	}{
		"rows that take a warp several turns":       {device.BF16, 1, 20, 6, 6, 128, []int{9, 11}},
		"fp32, rows that take a warp several turns": {device.F32, 1, 20, 10, 5, 64, []int{9, 11}},
		"fp32, heads of 64 and room for some rows":  {device.F32, 5, 20, 2, 1, 64, []int{17, 20, 1}},
		"heads of 64 of three keys' heads":          {device.BF16, 1, 20, 6, 3, 64, []int{9, 11}},
		"an empty cache":                            {device.BF16, 1, 9, 2, 1, 64, []int{0}},
		"fewer rows than teams":                     {device.BF16, 1, 40, 7, 1, 128, []int{3, 14}},
		"more rows than teams take in one turn":     {device.BF16, 2, 150, 8, 1, 64, []int{148, 63, 0}},
		"a cache that is full":                      {device.BF16, 1, 70, 2, 1, 128, []int{70, 69}},
		"a cache that has room for some rows":       {device.BF16, 5, 20, 2, 1, 64, []int{17, 20, 1}},
		"fp32, a long cache":                        {device.F32, 1, 99, 7, 1, 64, []int{98, 15}},
		"fp32, a cache with room for some rows":     {device.F32, 3, 11, 2, 1, 128, []int{9, 11}},
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			rng := optest.Rand(t)
			memory := optest.NewMemory(t, rng)
			seqs := len(c.cached)
			f, _ := attentionShape{c.typ, seqs, c.seqLen, c.heads, c.kvHeads, c.size, one}.operations(memory)
			op := &device.AttentionDecode{
				Q: f.Q, K: f.K, V: f.V, Out: f.Out, Cached: memory.Ints(seqs, func(i int) int { return c.cached[i] }),
				KCache: memory.Normal(c.typ, seqs*c.cacheLen*c.kvHeads*c.size, 0, 1), VCache: memory.Normal(c.typ, seqs*c.cacheLen*c.kvHeads*c.size, 0, 1),
				Seqs: seqs, SeqLen: c.seqLen, CacheLen: c.cacheLen, Heads: c.heads, KVHeads: c.kvHeads, HeadSize: c.size, Scale: f.Scale,
			}
			if err := verify(memory, rng, op, schedules...); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDecodingAfterAPrefillIsAttentionOverTheWhole(t *testing.T) {
	const seqLen, heads, kvHeads, size = 75, 6, 2, 64
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		whole, _ := attentionShape{typ, 1, seqLen, heads, kvHeads, size, one}.operations(memory)
		whole.Reference()
		cached := memory.Ints(1, func(int) int { return 0 })
		kCache, vCache := memory.Normal(typ, seqLen*kvHeads*size, 0, 1), memory.Normal(typ, seqLen*kvHeads*size, 0, 1)
		for at, n := 0, seqLen-3; at < seqLen; at, n = at+n, 1 {
			q, kv := int64(heads*size), int64(kvHeads*size)
			part := &device.AttentionDecode{
				Q: whole.Q.Slice(int64(at)*q, int64(n)*q), K: whole.K.Slice(int64(at)*kv, int64(n)*kv),
				V: whole.V.Slice(int64(at)*kv, int64(n)*kv), Cached: cached, KCache: kCache, VCache: vCache, Out: memory.Blank(typ, n*heads*size),
				Seqs: 1, SeqLen: n, CacheLen: seqLen, Heads: heads, KVHeads: kvHeads, HeadSize: size, Scale: whole.Scale,
			}
			bounds := memory.Bounds(part)
			if err := run(part, schedules[0], 0); err != nil {
				t.Fatal(err)
			}
			want := *part
			want.Out = whole.Out.Slice(int64(at)*q, int64(n)*q)
			if err := optest.Compare(part, &want, bounds); err != nil {
				t.Fatalf("%v, rows from %d on: %v", typ, at, err)
			}
			cached.I32()[0] += int32(n)
		}
	}
}
