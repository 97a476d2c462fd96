package data

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/data/tokenizer"
)

// library is the first part of Go's standard library with a small tokenizer.
func library(t testing.TB, maxBytes int64) Settings {
	return Settings{
		Path: []string{GoSource}, Format: FormatText, MaxBytes: maxBytes, Holdout: 0.1, SequenceLength: 128,
		Tokenizer: TokenizerTrain, VocabSize: 512, CacheDir: t.TempDir(),
	}
}

func TestATextBecomesDataWithATokenizerOfItsOwn(t *testing.T) {
	s := library(t, 600_000)
	l := new(lines)
	d, err := Prepare(t.Context(), s, nil, l.log)
	must(t, err)
	defer d.Close()
	if !strings.Contains(l.String(), "training a tokenizer of 512 entries") {
		t.Errorf("said %q", l)
	}
	st := d.Stats
	if st.Documents != d.Train.Documents()+d.HeldOut.Documents() || st.TextBytes != st.TrainBytes+st.HeldOutBytes ||
		st.TrainTokens != d.Train.Tokens() || st.HeldOutTokens != d.HeldOut.Tokens() || st.TextBytes < 500_000 || st.TextBytes > 600_000 {
		t.Errorf("stats %+v", st)
	}
	if int(d.MaxID) >= d.Tokenizer.VocabSize() || d.Tokenizer.VocabSize() != 512 {
		t.Errorf("ids up to %d of %d", d.MaxID, d.Tokenizer.VocabSize())
	}
	// Go's sources are in NFC, so all bytes come back.
	if got := d.Train.Bytes() + d.HeldOut.Bytes(); got != st.TextBytes {
		t.Errorf("tokens decode to %d bytes, the text has %d", got, st.TextBytes)
	}
	bits, err := d.TrigramBitsPerByte(t.Context())
	must(t, err)
	if math.IsNaN(bits) || bits < 2.5 || bits > 4.5 {
		t.Errorf("the baseline has %.2f bits per byte; 2.5 to 4.5 are usual for Go", bits)
	}
	// The held-out text is read back from the packs, document by document.
	var got []byte
	for _, p := range read(d.HeldOut, 0) {
		got = d.Tokenizer.Decode(got, p.IDs)
	}
	docs, err := readCorpus(t.Context(), s)
	must(t, err)
	var want []byte
	for i := range docs {
		if docs[i].heldOut {
			b, err := os.ReadFile(docs[i].path)
			must(t, err)
			want = append(append(want, b...), "<|endoftext|>"...)
		}
	}
	if got = got[:min(len(got), len(want))]; !bytes.Equal(got, want) {
		t.Error("the packs do not decode to the held-out files")
	}
}

func TestASecondPreparationTrainsAndTokenisesNothing(t *testing.T) {
	s := library(t, 300_000)
	first, err := Prepare(t.Context(), s, nil, nil)
	must(t, err)
	defer first.Close()
	l := new(lines)
	second, err := Prepare(t.Context(), s, nil, l.log)
	must(t, err)
	defer second.Close()
	if l.String() != "" || !second.Stats.Cached || first.Fingerprint != second.Fingerprint {
		t.Errorf("said %q; cached %v; fingerprints %s and %s", l, second.Stats.Cached, first.Fingerprint, second.Fingerprint)
	}
	// A damaged tokenizer is trained again, to the same result.
	found, err := filepath.Glob(filepath.Join(s.CacheDir, "*.tokenizer.json"))
	must(t, err)
	if len(found) != 1 {
		t.Fatalf("tokenizers in the cache: %q", found)
	}
	must(t, os.WriteFile(found[0], []byte("{"), 0o644))
	third, err := Prepare(t.Context(), s, nil, l.log)
	must(t, err)
	defer third.Close()
	if !strings.Contains(l.String(), "trained anew") || !third.Stats.Cached || third.Fingerprint != first.Fingerprint {
		t.Errorf("said %q; cached %v", l, third.Stats.Cached)
	}
}

func TestTheTokenizerIsTheOneThatIsAskedFor(t *testing.T) {
	s := library(t, 300_000)
	trained, err := Prepare(t.Context(), s, nil, nil)
	must(t, err)
	defer trained.Close()
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	f, err := os.Create(path)
	must(t, err)
	must(t, trained.Tokenizer.Write(f))
	must(t, f.Close())

	s.Tokenizer = path
	named, err := Prepare(t.Context(), s, nil, nil)
	must(t, err)
	defer named.Close()
	s.Tokenizer = TokenizerModel
	model, err := Prepare(t.Context(), s, trained.Tokenizer, nil)
	must(t, err)
	defer model.Close()
	if !named.Stats.Cached || !model.Stats.Cached || named.Fingerprint != trained.Fingerprint || model.Fingerprint != trained.Fingerprint {
		t.Error("the same tokenizer gives other data when it comes from elsewhere")
	}
	_, err = Prepare(t.Context(), s, nil, nil)
	wantError(t, err, "data.tokenizer: the model comes without a tokenizer", "path of a tokenizer.json, or train")
	s.Tokenizer = path + ".none"
	_, err = Prepare(t.Context(), s, nil, nil)
	wantError(t, err, "data.tokenizer", path+".none")
}

func TestPreparationFailsBeforeAnythingIsWritten(t *testing.T) {
	good := map[string]string{"a.txt": "some text", "b.txt": "other text", "c.txt": "more"}
	cases := map[string]struct {
		files  map[string]string
		change func(*Settings)
		want   string
	}{
		"settings that are wrong":             {good, func(s *Settings) { s.Holdout = 2 }, "data.holdout: 2"},
		"a text that is not UTF-8":            {map[string]string{"a.txt": "\xff"}, nil, "not UTF-8 at byte 0"},
		"one document":                        {map[string]string{"a.txt": "some text"}, nil, "one document"},
		"no text":                             {map[string]string{"a.txt": ""}, nil, "the corpus is empty"},
		"too little text for the vocabulary":  {good, func(s *Settings) { s.VocabSize = 4000 }, "data.vocab_size: "},
		"a model's tokenizer that is missing": {good, func(s *Settings) { s.Tokenizer = TokenizerModel }, "data.tokenizer"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := settings(writeFiles(t, c.files))
			s.Tokenizer, s.VocabSize, s.Holdout, s.CacheDir = TokenizerTrain, 257, 0.5, t.TempDir()
			if c.change != nil {
				c.change(&s)
			}
			_, err := Prepare(t.Context(), s, nil, nil)
			wantError(t, err, c.want)
			if got := cacheFiles(t, s.CacheDir); len(got) != 0 {
				t.Errorf("left in the cache: %q", got)
			}
		})
	}
}

func TestHeldOutDocumentsWithoutTextAreRefused(t *testing.T) {
	docs := documentsOf(t, 1, "some text here", "x")
	_, err := prepareWith(t.Context(), Settings{SequenceLength: 2, CacheDir: t.TempDir()}, docs, newPairs(), new(lines))
	wantError(t, err, "data.holdout: no held-out document has text to predict (documents: 1)")
}

func TestAStoppedPreparationGivesTheReason(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	s := settings(writeFiles(t, map[string]string{"a.txt": "a", "b.txt": "b"}))
	s.CacheDir = t.TempDir()
	if _, err := Prepare(ctx, s, nil, nil); !errors.Is(err, reason) && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// BenchmarkTokenise is the way from files to the token file, on all cores.
func BenchmarkTokenise(b *testing.B) {
	s := library(b, 10_000_000)
	s.VocabSize = 4096
	docs, err := readCorpus(b.Context(), s)
	must(b, err)
	c, err := newCache(s.CacheDir, new(lines).log)
	must(b, err)
	tok, fingerprint, err := c.chooseTokenizer(b.Context(), s, nil, docs)
	must(b, err)
	build, err := newBuilder(docs, tok, fingerprint, c.log)
	must(b, err)
	b.SetBytes(newMeter(docs, c.log).total)
	for b.Loop() {
		must(b, c.create(filepath.Join(s.CacheDir, "made"), func(f *os.File) error { return build.write(b.Context(), f, [32]byte{}) }))
	}
}

// BenchmarkScan is listing, reading, checking and hashing all files.
func BenchmarkScan(b *testing.B) {
	s := library(b, 10_000_000)
	var total int64
	for b.Loop() {
		docs, err := readCorpus(b.Context(), s)
		must(b, err)
		total = newMeter(docs, nil).total
	}
	b.SetBytes(total)
}

// BenchmarkTrigram is the baseline, counted and scored.
func BenchmarkTrigram(b *testing.B) {
	d, err := Prepare(b.Context(), library(b, 10_000_000), nil, nil)
	must(b, err)
	defer d.Close()
	b.SetBytes(d.Stats.TextBytes)
	for b.Loop() {
		_, err := d.TrigramBitsPerByte(b.Context())
		must(b, err)
	}
}

// BenchmarkTrainTokenizer is the training of the quickstart's vocabulary.
func BenchmarkTrainTokenizer(b *testing.B) {
	s := library(b, 10_000_000)
	docs, err := readCorpus(b.Context(), s)
	must(b, err)
	b.SetBytes(newMeter(docs, nil).total)
	for b.Loop() {
		_, err := tokenizer.Train(trainingTexts(b.Context(), docs), tokenizer.Options{VocabSize: 4096})
		must(b, err)
	}
}

// BenchmarkPrepareAgain is what a second run waits for: scan, tokenizer and
// tokens from the cache.
func BenchmarkPrepareAgain(b *testing.B) {
	s := library(b, 10_000_000)
	s.VocabSize, s.Holdout = 4096, 0.02
	d, err := Prepare(b.Context(), s, nil, nil)
	must(b, err)
	bits, err := d.TrigramBitsPerByte(b.Context())
	must(b, err)
	perToken := float64(d.Stats.TextBytes) / float64(d.Stats.TrainTokens+d.Stats.HeldOutTokens)
	b.SetBytes(d.Stats.TextBytes)
	must(b, d.Close())
	for b.Loop() {
		d, err := Prepare(b.Context(), s, nil, nil)
		must(b, err)
		must(b, d.Close())
	}
	b.ReportMetric(bits, "trigram-bits/byte")
	b.ReportMetric(perToken, "bytes/token")
}
