package data

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/gofsdp/gofsdp/data/tokenizer"
)

// PrepareHeldOut reads and tokenises all the text that s names as one held-out
// set: for the evaluation of a model on a text that it is not trained on. Train
// is nil. s.Holdout and s.Tokenizer are not looked at. The caller closes the
// result.
func PrepareHeldOut(ctx context.Context, s Settings, t *tokenizer.Tokenizer, log func(format string, args ...any)) (*Data, error) {
	if log == nil {
		log = func(string, ...any) {}
	}
	c, err := newCache(s.CacheDir, log)
	if err != nil {
		return nil, err
	}
	docs, err := readDocuments(ctx, s)
	if err != nil {
		return nil, err
	}
	all := make([]int32, len(docs))
	for i := range docs {
		docs[i].heldOut, all[i] = true, int32(i)
	}
	s.Tokenizer = TokenizerModel
	_, fingerprint, err := c.chooseTokenizer(ctx, s, t, docs)
	if err != nil {
		return nil, err
	}
	b, err := newBuilder(docs, t, fingerprint, log)
	if err != nil {
		return nil, err
	}
	file, cached, err := c.tokens(ctx, b)
	if err != nil {
		return nil, err
	}
	d := &Data{Tokenizer: t, file: file, encoder: t, MaxID: int32(file.maxID), Stats: Stats{Documents: len(docs), Cached: cached}}
	if d.HeldOut, err = newDataset(file, all, s.SequenceLength, uint64(s.Seed), false); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.HeldOut.TargetBytes() == 0 {
		return nil, errors.Join(fmt.Errorf("there is no text to predict: no document has more than one token (documents: %d)", len(docs)), d.Close())
	}
	return d, nil
}

// Texts returns the documents that s names, one at a time: what a tokenizer is
// trained on. An error ends them.
func Texts(ctx context.Context, s Settings) (iter.Seq2[string, error], error) {
	docs, err := readDocuments(ctx, s)
	if err != nil {
		return nil, err
	}
	return trainingTexts(ctx, docs), nil
}
