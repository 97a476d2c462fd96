package kernels

import (
	"fmt"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// Powers of scores that are not relative to the largest would be infinite or zero.
func TestAttentionOfLargeScoresIsFinite(t *testing.T) {
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, size := range []int{64, 128} {
			t.Run(fmt.Sprintf("%s, head %d", typ, size), func(t *testing.T) {
				rng := optest.Rand(t)
				memory := optest.NewMemory(t, rng)
				const seqLen, heads = 90, 2
				forward, back := attentionShape{typ, 1, seqLen, heads, 1, size, one}.operations(memory)
				cached := 37
				decode := &device.AttentionDecode{
					Q: forward.Q, K: forward.K, V: forward.V, Out: memory.Blank(typ, seqLen*heads*size),
					KCache: memory.Normal(typ, (cached+seqLen)*size, 0, 1), VCache: memory.Normal(typ, (cached+seqLen)*size, 0, 1),
					Cached: memory.Ints(1, func(int) int { return cached }),
					Seqs:   1, SeqLen: seqLen, CacheLen: cached + seqLen, Heads: heads, KVHeads: 1, HeadSize: size, Scale: forward.Scale,
				}
				for i := range int(forward.Q.Len) {
					optest.Set(forward.Q, i, 40*optest.At(forward.Q, i))
				}
				for _, op := range []device.Op{forward, decode} {
					if err := verify(memory, rng, op, schedules...); err != nil {
						t.Error(err)
					}
				}
				forward.Reference()
				if err := verify(memory, rng, back, schedules...); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Each row has one key, at another place of tiles, whose score is above all others by more than powers can have.
func TestTheGreatestScoreMayBeAnywhere(t *testing.T) {
	rng := optest.Rand(t)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, size := range []int{64, 128} {
			memory := optest.NewMemory(t, rng)
			const seqLen = 260
			forward, back := attentionShape{typ, 1, seqLen, 1, 1, size, one}.operations(memory)
			for i := range seqLen {
				for x := range size {
					optest.Set(forward.K, i*size+x, 0)
					optest.Set(forward.Q, i*size+x, 0)
				}
				optest.Set(forward.K, i*size+i%size, 60)
				optest.Set(forward.Q, i*size+anywhere(i)%size, 60)
			}
			const cached = seqLen - 1
			zero := func(int) float64 { return 0 }
			decode := &device.AttentionDecode{
				Q: memory.Floats(typ, 40*size, zero), K: memory.Normal(typ, 40*size, 0, 0.1), V: memory.Normal(typ, 40*size, 0, 1),
				KCache: memory.Floats(typ, 40*seqLen*size, zero), VCache: memory.Normal(typ, 40*seqLen*size, 0, 1),
				Cached: memory.Ints(40, func(int) int { return cached }), Out: memory.Blank(typ, 40*size),
				Seqs: 40, SeqLen: 1, CacheLen: seqLen, Heads: 1, KVHeads: 1, HeadSize: size, Scale: forward.Scale,
			}
			for i := range 40 { // sequences, whose greatest score is that of a row of their own
				optest.Set(decode.Q, i*size+3, 60)
				optest.Set(decode.KCache, (i*seqLen+i)*size+3, 60)
			}
			for _, op := range []device.Op{forward, decode} {
				if err := verify(memory, rng, op, schedules[0]); err != nil {
					t.Errorf("%s, head %d: %v", typ, size, err)
				}
			}
			forward.Reference()
			if err := verify(memory, rng, back, schedules[0]); err != nil {
				t.Errorf("%s, head %d: %v", typ, size, err)
			}
		}
	}
}

func TestACacheOfFewerThanNoRowsStopsDecoding(t *testing.T) {
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, size := range []int{64, 128} {
			memory := optest.NewMemory(t, optest.Rand(t))
			const seqLen, seqs, cacheLen = 3, 2, 8
			f, _ := attentionShape{typ, seqs, seqLen, 1, 1, size, one}.operations(memory)
			for _, wrong := range []int{-1, -3, -1 << 31} {
				op := &device.AttentionDecode{
					Q: f.Q, K: f.K, V: f.V, Out: memory.Blank(typ, seqs*seqLen*size),
					KCache: memory.Normal(typ, seqs*cacheLen*size, 0, 1), VCache: memory.Normal(typ, seqs*cacheLen*size, 0, 1),
					Cached: memory.Ints(seqs, func(i int) int { return i * wrong }),
					Seqs:   seqs, SeqLen: seqLen, CacheLen: cacheLen, Heads: 1, KVHeads: 1, HeadSize: size, Scale: f.Scale,
				}
				if err := stops(op); err != nil {
					t.Errorf("%s, %d rows in the cache: %v", typ, wrong, err)
				}
			}
		}
	}
}
