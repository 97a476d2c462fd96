package data

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// plainTrigram is the baseline by its definition: texts are scored from the byte
// at first on.
func plainTrigram(train, heldOut []string, first []int) float64 {
	counts, totals := map[[3]byte]float64{}, map[[2]byte]float64{}
	each := func(text string, f func(i int, pair [2]byte, c byte)) {
		padded := "\x00\x00" + text
		for i := range len(text) {
			f(i, [2]byte{padded[i], padded[i+1]}, padded[i+2])
		}
	}
	for _, text := range train {
		each(text, func(_ int, pair [2]byte, c byte) {
			counts[[3]byte{pair[0], pair[1], c}]++
			totals[pair]++
		})
	}
	bits, n := 0.0, 0
	for k, text := range heldOut {
		each(text, func(i int, pair [2]byte, c byte) {
			if i >= first[k] {
				n++
				bits -= math.Log2((counts[[3]byte{pair[0], pair[1], c}] + 0.1) / (totals[pair] + 25.6))
			}
		})
	}
	return bits / float64(n)
}

func TestTheBaselineIsTheTrigramByItsDefinition(t *testing.T) {
	text := rapid.SliceOfN(rapid.SampledFrom([]string{"th", "he", "in", "a", "\x00", "é", "\n"}), 1, 40)
	cacheDir := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		var texts []string
		for range rapid.IntRange(2, 6).Draw(r, "documents") {
			// "xyz" sees to a target in every document.
			texts = append(texts, strings.Join(text.Draw(r, "text"), "")+"xyz")
		}
		held := rapid.IntRange(1, len(texts)-1).Draw(r, "held out")
		d, err := prepareWith(t.Context(), Settings{SequenceLength: 2, CacheDir: cacheDir}, documentsOf(t, held, texts...), newPairs(), new(lines))
		if err != nil {
			r.Fatal(err)
		}
		defer d.Close()
		got, err := d.TrigramBitsPerByte(t.Context())
		if err != nil {
			r.Fatal(err)
		}
		n := len(texts) - held
		var first []int
		for _, text := range texts[n:] {
			first = append(first, len(newPairs().TokenBytes(newPairs().Encode(nil, text)[0])))
		}
		if want := plainTrigram(texts[:n], texts[n:], first); math.Abs(got-want) > 1e-9 {
			r.Fatalf("%v bits per byte, want %v", got, want)
		}
	})
}

func TestTargetBytesAreThoseThatTheHeldOutTargetsDecodeTo(t *testing.T) {
	p := newPairs()
	d := mustPrepare(t, Settings{SequenceLength: 8}, documentsOf(t, 20, someTexts(30)...), p)
	var targets []byte
	for _, pack := range read(d.HeldOut, 0) {
		for _, id := range pack.Targets {
			if id != Masked && id != pairsEnd {
				targets = append(targets, p.TokenBytes(id)...)
			}
		}
	}
	if got := d.HeldOut.TargetBytes(); got != int64(len(targets)) {
		t.Errorf("TargetBytes is %d, the targets decode to %d", got, len(targets))
	}
	var texts []byte
	for _, text := range someTexts(30)[10:] {
		texts = append(texts, text...)
	}
	if got := d.HeldOut.Bytes(); got != int64(len(texts)) {
		t.Errorf("Bytes is %d, the texts have %d", got, len(texts))
	}
	if bytes.Contains(targets, []byte("endoftext")) {
		t.Error("an end-of-text was decoded")
	}
}

func TestCountsStayAtTheirMaximum(t *testing.T) {
	m := newTrigram()
	m.counts['a'] = math.MaxUint32
	m.count([]byte("a"), 0)
	if got := m.counts['a']; got != math.MaxUint32 {
		t.Errorf("the count is %d", got)
	}
}
