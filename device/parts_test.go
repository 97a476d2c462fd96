package device_test

import (
	"testing"

	. "github.com/gofsdp/gofsdp/device"
)

func TestShortMicroBatchesOfFewHeadsAreSplitIntoParts(t *testing.T) {
	for _, c := range []struct {
		what                         string
		typ                          DType
		seqs, seqLen, heads, kvHeads int
		want                         int
	}{
		{"0.5 B, one sequence", BF16, 1, 1024, 14, 2, 4}, // of 2, 2, 2 and 1 heads
		{"0.5 B, a short one", BF16, 1, 512, 14, 2, 7},
		{"1.5 B, one sequence", BF16, 1, 1024, 12, 2, 3},
		{"1.5 B, twice as long", BF16, 1, 2048, 12, 2, 2},
		{"1.5 B, enough", BF16, 4, 1024, 12, 2, 1},
		{"a head of each", BF16, 1, 1, 8, 8, 1},
		{"rows that begin a tile", BF16, 1, 65, 4, 1, 4},
		{"fp32", F32, 1, 512, 14, 2, 1},
	} {
		if got := AttentionParts(c.typ, c.seqs, c.seqLen, c.heads, c.kvHeads); got != c.want {
			t.Errorf("%s: %d parts, want %d", c.what, got, c.want)
		}
	}
	for rows, want := range map[int]int{1: 1, 512: 1, 513: 2, 4096: 8, 1 << 20: 32} {
		if got := QKNormParts(rows, 16); got != want {
			t.Errorf("%d rows: %d parts, want %d", rows, got, want)
		}
	}
}

func TestNoMoreIsKeptThanPartsNeed(t *testing.T) {
	o := &AttentionBackward{Seqs: 4, SeqLen: 1024, Heads: 12, KVHeads: 2, HeadSize: 64}
	typ := func(t DType, n int) Tensor { return Tensor{Type: t, Len: int64(n)} }
	q, k, stat := typ(BF16, 4096*12*64), typ(BF16, 4096*2*64), typ(F32, 4096*12)
	o.Q, o.Out, o.DOut, o.DQ, o.K, o.V, o.DK, o.DV, o.LSE, o.D, o.Start = q, q, q, q, k, k, k, k, stat, stat, typ(I32, 4096)
	if err := o.Check(); err != nil {
		t.Error(err)
	}
	o.Parts = k
	if err := o.Check(); err == nil {
		t.Error("Parts where there is one part")
	}
}
