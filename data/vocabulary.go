package data

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/data/tokenizer"
)

// trainerFormat is raised when the trainer gives another tokenizer for the same
// text.
const trainerFormat = 1

// chooseTokenizer returns the tokenizer that s asks for and a hash of all that
// its ids depend on.
func (c cache) chooseTokenizer(ctx context.Context, s Settings, model *tokenizer.Tokenizer, docs []document) (t *tokenizer.Tokenizer, fingerprint [32]byte, err error) {
	switch s.Tokenizer {
	case TokenizerModel:
		if t = model; t == nil {
			err = fmt.Errorf("the model comes without a tokenizer; give the path of a tokenizer.json, or %s", TokenizerTrain)
		}
	case TokenizerTrain:
		t, err = c.trained(ctx, s.VocabSize, docs)
	default:
		t, err = tokenizer.Load(s.Tokenizer)
	}
	if little := (*tokenizer.TooLittleError)(nil); errors.As(err, &little) {
		return nil, fingerprint, fmt.Errorf("data.vocab_size: %w", err)
	}
	if err != nil {
		return nil, fingerprint, fmt.Errorf("data.tokenizer: %w", err)
	}
	if missing := t.MissingBytes(); len(missing) > 0 {
		c.log("the tokenizer has no token for %d of the 256 bytes, which are dropped where they occur", len(missing))
	}
	json, err := t.MarshalJSON()
	return t, sha256.Sum256(json), err
}

// trained returns the tokenizer that is trained on the training split, from the
// cache where it is there.
func (c cache) trained(ctx context.Context, vocabSize int, docs []document) (*tokenizer.Tokenizer, error) {
	h := sha256.New()
	fmt.Fprintf(h, "gofsdp tokenizer %d %d\n", trainerFormat, vocabSize)
	for i := range docs {
		if !docs[i].heldOut {
			h.Write(docs[i].hash[:])
		}
	}
	path := filepath.Join(c.dir, fmt.Sprintf("%x.tokenizer.json", h.Sum(nil)))
	if t := c.loadTrained(path, vocabSize); t != nil {
		return t, nil
	}
	unlock, err := c.lock(ctx, path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// Another process may have trained it in the meantime.
	if t := c.loadTrained(path, vocabSize); t != nil {
		return t, nil
	}
	c.log("training a tokenizer of %d entries on the training split", vocabSize)
	t, err := tokenizer.Train(trainingTexts(ctx, docs), tokenizer.Options{VocabSize: vocabSize})
	if err != nil {
		return nil, err
	}
	return t, c.create(path, func(f *os.File) error { return t.Write(f) })
}

// loadTrained returns nil where the tokenizer has to be trained.
func (c cache) loadTrained(path string, vocabSize int) *tokenizer.Tokenizer {
	t, err := tokenizer.Load(path)
	if err == nil && t.VocabSize() != vocabSize {
		err = fmt.Errorf("%s has %d entries, not %d", path, t.VocabSize(), vocabSize)
	}
	if err == nil {
		return t
	}
	if !errors.Is(err, fs.ErrNotExist) {
		c.log("%v; it is trained anew", err)
	}
	return nil
}

// trainingTexts gives the documents that are not held out, one at a time.
func trainingTexts(ctx context.Context, docs []document) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var buf []byte
		for i := range docs {
			if docs[i].heldOut {
				continue
			}
			err := context.Cause(ctx)
			if err == nil {
				buf, err = docs[i].read(buf)
			}
			if !yield(string(buf), err) || err != nil {
				return
			}
		}
	}
}
