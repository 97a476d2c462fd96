package data

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/data/tokenizer"
)

// Data is a corpus ready to train on.
type Data struct {
	Train   *Dataset
	HeldOut *Dataset

	// Tokenizer is the one in use: the model's, the named or the trained one.
	Tokenizer *tokenizer.Tokenizer
	// MaxID is the greatest token id that occurs. The model's vocabulary has to
	// be larger.
	MaxID int32
	// Fingerprint names all that packs are a function of: texts, tokenizer,
	// split, seed and sequence length. Two runs with the same one see the same
	// packs.
	Fingerprint string
	Stats       Stats

	file    *tokenFile
	encoder Encoder
}

// Stats tell what Prepare found and did.
type Stats struct {
	Documents     int           `json:"documents"`
	TextBytes     int64         `json:"text_bytes"` // of the chosen files
	TrainBytes    int64         `json:"train_text_bytes"`
	HeldOutBytes  int64         `json:"held_out_text_bytes"`
	TrainTokens   int64         `json:"train_tokens"`
	HeldOutTokens int64         `json:"held_out_tokens"`
	Cached        bool          `json:"tokens_from_cache"` // the token file was there already
	ScanTime      time.Duration `json:"scan_ns"`           // listing, reading, hashing
	TokenTime     time.Duration `json:"tokenise_ns"`       // opening or making the token file
}

// Prepare reads, splits and tokenises the text that s names, or finds the tokens
// in the cache, and returns it as two data sets. model is the tokenizer of the
// model's directory, nil where there is none; it is used when s.Tokenizer is
// model. log gets lines for the user; nil drops them. It blocks until all is
// done or ctx ends. The caller closes the result.
func Prepare(ctx context.Context, s Settings, model *tokenizer.Tokenizer, log func(format string, args ...any)) (*Data, error) {
	if log == nil {
		log = func(string, ...any) {}
	}
	if err := errors.Join(s.Check()...); err != nil {
		return nil, err
	}
	c, err := newCache(s.CacheDir, log)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	docs, err := readCorpus(ctx, s)
	if err != nil {
		return nil, err
	}
	scanned := time.Since(began)
	t, fingerprint, err := c.chooseTokenizer(ctx, s, model, docs)
	if err != nil {
		return nil, err
	}
	d, err := prepare(ctx, s, docs, t, fingerprint, c)
	if err != nil {
		return nil, err
	}
	d.Tokenizer = t
	d.Stats.ScanTime = scanned
	return d, nil
}

// readCorpus lists, checks and splits the documents.
func readCorpus(ctx context.Context, s Settings) ([]document, error) {
	docs, err := readDocuments(ctx, s)
	if err != nil {
		return nil, err
	}
	return docs, split(docs, s.Holdout, uint64(s.Seed))
}

// readDocuments lists and checks the documents.
func readDocuments(ctx context.Context, s Settings) ([]document, error) {
	files, err := listFiles(ctx, s)
	if err != nil {
		return nil, err
	}
	if s.Format == FormatJSONL {
		return scanLines(ctx, files, s)
	}
	return scan(ctx, files)
}

// prepare makes the data sets of documents that are split already.
func prepare(ctx context.Context, s Settings, docs []document, e Encoder, fingerprint [32]byte, c cache) (*Data, error) {
	b, err := newBuilder(docs, e, fingerprint, c.log)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	file, cached, err := c.tokens(ctx, b)
	if err != nil {
		return nil, err
	}
	d := &Data{file: file, encoder: e, MaxID: int32(file.maxID)}
	d.Stats = Stats{Documents: len(docs), Cached: cached, TokenTime: time.Since(began)}
	if err := d.divide(s, docs); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// divide makes the two data sets of the token file.
func (d *Data) divide(s Settings, docs []document) (err error) {
	var train, held []int32
	for i := range docs {
		d.Stats.TextBytes += docs[i].size
		if docs[i].heldOut {
			d.Stats.HeldOutBytes += docs[i].size
			held = append(held, int32(i))
		} else {
			d.Stats.TrainBytes += docs[i].size
			train = append(train, int32(i))
		}
	}
	if d.Train, err = newDataset(d.file, train, s.SequenceLength, uint64(s.Seed), true); err != nil {
		return err
	}
	if d.HeldOut, err = newDataset(d.file, held, s.SequenceLength, uint64(s.Seed), false); err != nil {
		return err
	}
	if d.HeldOut.TargetBytes() == 0 {
		return fmt.Errorf("data.holdout: no held-out document has text to predict (documents: %d); raise data.holdout or change data.seed", len(held))
	}
	d.Stats.TrainTokens, d.Stats.HeldOutTokens = d.Train.Tokens(), d.HeldOut.Tokens()
	h := sha256.New()
	h.Write(d.file.key[:])
	for _, n := range []uint64{uint64(s.Seed), uint64(s.SequenceLength), uint64(len(held))} {
		h.Write(binary.LittleEndian.AppendUint64(nil, n))
	}
	for _, doc := range held {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(doc)))
	}
	d.Fingerprint = fmt.Sprintf("%x", h.Sum(nil))
	return nil
}

// Close unmaps the tokens. No data set may be read afterwards.
func (d *Data) Close() error { return d.file.close() }
