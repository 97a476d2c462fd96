package data

import (
	"context"
	"math"
)

// trigram is a model of each byte given the two before it: the yardstick that a
// trained model has to beat.
type trigram struct {
	counts []uint32 // of byte c after a and b, at a<<16 | b<<8 | c
	totals []uint64 // of the pairs a, b as what goes before, at a<<8 | b
}

func newTrigram() *trigram {
	return &trigram{counts: make([]uint32, 1<<24), totals: make([]uint64, 1<<16)}
}

// smoothing is added to the count of each of the 256 bytes.
const smoothing = 0.1

// chunk is how many tokens are read from the token file at once.
const chunk = 4096

// TrigramBitsPerByte counts a trigram model on the text of train and scores it on
// those bytes of heldOut that the targets of its packs decode to (see
// Dataset.TargetBytes): the bytes that a model's bits per byte are about. It
// reads all tokens of both.
func (d *Data) TrigramBitsPerByte(ctx context.Context) (float64, error) {
	t := newTrigram()
	if err := d.eachText(ctx, d.Train, t.count); err != nil {
		return 0, err
	}
	var bits float64
	var scored int64
	err := d.eachText(ctx, d.HeldOut, func(text []byte, first int) {
		bits += t.bits(text, first)
		scored += int64(len(text) - first)
	})
	if scored == 0 {
		return math.NaN(), err
	}
	return bits / float64(scored), err
}

// eachText gives the decoded text of each document of set, in natural order, and
// the length of its first token's bytes. The text is good until use returns.
func (d *Data) eachText(ctx context.Context, set *Dataset, use func(text []byte, first int)) error {
	var ids [chunk]int32
	var text []byte
	for _, doc := range set.docs {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		text = text[:0]
		n := set.file.length(doc) - 1
		for at := int64(0); at < n; at += chunk {
			part := ids[:min(chunk, n-at)]
			set.file.copy(part, doc, at)
			for _, id := range part {
				text = append(text, d.encoder.TokenBytes(id)...)
			}
		}
		use(text, int(set.file.first[doc]))
	}
	return nil
}

// count adds a document. Before its first byte stand two zero bytes. A count
// stays at its maximum once it is there.
func (t *trigram) count(text []byte, _ int) {
	pair := 0
	for _, c := range text {
		at := pair<<8 | int(c)
		if t.counts[at] != math.MaxUint32 {
			t.counts[at]++
			t.totals[pair]++
		}
		pair = at & 0xffff
	}
}

// bits is −log2 of the probability of text's bytes from first on:
// (count + 0.1) / (total + 0.1·256) each.
func (t *trigram) bits(text []byte, first int) float64 {
	pair, bits := 0, 0.0
	for i, c := range text {
		at := pair<<8 | int(c)
		if i >= first {
			bits -= math.Log2((float64(t.counts[at]) + smoothing) / (float64(t.totals[pair]) + 256*smoothing))
		}
		pair = at & 0xffff
	}
	return bits
}
