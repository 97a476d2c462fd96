package data

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"sync"
	"time"
)

// Encoder is what this package needs of a tokenizer. It must be safe for
// concurrent use.
type Encoder interface {
	// Encode appends the token ids of text to dst.
	Encode(dst []int32, text string) []int32
	// TokenBytes returns the bytes that id decodes to.
	TokenBytes(id int32) []byte
	// VocabSize is one more than the greatest id.
	VocabSize() int
	// EndOfText is the id that ends a document, if there is one.
	EndOfText() (int32, bool)
}

// encoded is one document as it stands in the token file.
type encoded struct {
	ids   []byte // packed, end-of-text included
	entry [indexEntry]byte
	maxID int32
	size  int64 // of the text
	err   error
}

// builder makes a token file.
type builder struct {
	docs        []document
	encoder     Encoder
	fingerprint [32]byte // changes whenever encoder may give other ids
	endOfText   int32
	width       int
	lengths     []int32 // decoded bytes of each id
	log         func(format string, args ...any)
}

// newBuilder takes the width and the lengths from the tokenizer.
func newBuilder(docs []document, e Encoder, fingerprint [32]byte, log func(string, ...any)) (*builder, error) {
	eot, ok := e.EndOfText()
	if !ok {
		return nil, fmt.Errorf("data.tokenizer: it has no end-of-text token, which ends every document; add one such as <|endoftext|> to its added_tokens")
	}
	b := &builder{docs: docs, encoder: e, fingerprint: fingerprint, endOfText: eot, log: log}
	b.width, b.lengths = 4, make([]int32, e.VocabSize())
	if len(b.lengths) <= 1<<16 {
		b.width = 2
	}
	if eot < 0 || int(eot) >= len(b.lengths) {
		return nil, fmt.Errorf("data.tokenizer: end-of-text is %d, outside the vocabulary of %d", eot, len(b.lengths))
	}
	for id := range b.lengths {
		b.lengths[id] = int32(len(e.TokenBytes(int32(id))))
	}
	return b, nil
}

// write streams the token file of all documents to f, which it neither syncs
// nor closes. Documents are encoded on all cores and written in order; at most
// two for each core are in memory.
func (b *builder) write(ctx context.Context, f *os.File, key [32]byte) error {
	h := header{width: uint32(b.width), key: key, endOfText: uint32(b.endOfText), maxID: uint32(b.endOfText)}
	out := bufio.NewWriterSize(f, 1<<20)
	if _, err := out.Write(make([]byte, headerSize)); err != nil {
		return err
	}
	index := make([]byte, 0, len(b.docs)*indexEntry)
	meter := newMeter(b.docs, b.log)
	err := b.encodeAll(ctx, func(e *encoded) error {
		h.documents++
		h.tokens += uint64(len(e.ids) / b.width)
		h.maxID = max(h.maxID, uint32(e.maxID))
		h.tokensSum = crc32.Update(h.tokensSum, castagnoli, e.ids)
		index = append(index, e.entry[:]...)
		meter.add(e.size)
		_, err := out.Write(e.ids)
		return err
	})
	if err != nil {
		return err
	}
	padding := make([]byte, h.indexAt()-headerSize-int64(h.tokens)*int64(b.width))
	h.tokensSum = crc32.Update(h.tokensSum, castagnoli, padding)
	h.indexSum = crc32.Checksum(index, castagnoli)
	for _, part := range [][]byte{padding, index} {
		if _, err := out.Write(part); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err = f.WriteAt(h.append(nil), 0)
	return err
}

// encodeAll gives all documents to take, encoded, in order. What take gets is
// good until it returns.
func (b *builder) encodeAll(ctx context.Context, take func(*encoded) error) error {
	type job struct {
		doc  *document
		into *encoded
		done chan struct{}
	}
	workers := runtime.GOMAXPROCS(0)
	jobs, order := make(chan job), make(chan job, 2*workers)
	free := make(chan *encoded, 2*workers)
	for range cap(free) {
		free <- new(encoded)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		defer close(jobs)
		defer close(order)
		for i := range b.docs {
			select {
			case e := <-free:
				j := job{&b.docs[i], e, make(chan struct{})}
				order <- j // never blocks: it holds as many as free gives out
				select {
				case jobs <- j:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	for range workers {
		wg.Go(func() {
			var text []byte
			var ids []int32
			for j := range jobs {
				text, ids = b.encode(j.doc, text, ids, j.into)
				close(j.done)
			}
		})
	}
	for j := range order {
		select {
		case <-j.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if j.into.err != nil {
			return j.into.err
		}
		if err := take(j.into); err != nil {
			return err
		}
		free <- j.into
	}
	return context.Cause(ctx)
}

// encode reads and encodes one document into e. It returns its two buffers for
// the next.
func (b *builder) encode(d *document, text []byte, ids []int32, e *encoded) ([]byte, []int32) {
	text, e.err = d.read(text)
	if e.err != nil {
		e.err = fmt.Errorf("data.path: %w", e.err)
		return text, ids
	}
	e.size = int64(len(text))
	ids = b.encoder.Encode(ids[:0], string(text))
	e.maxID, e.ids = 0, e.ids[:0]
	var bytes, first int64
	for i, id := range ids {
		if id < 0 || int(id) >= len(b.lengths) {
			e.err = fmt.Errorf("data.tokenizer: it gives id %d for %s, outside its vocabulary of %d", id, d.name, len(b.lengths))
			return text, ids
		}
		if i == 0 {
			first = int64(b.lengths[id])
		}
		bytes += int64(b.lengths[id])
		e.maxID = max(e.maxID, id)
		e.ids = appendID(e.ids, id, b.width)
	}
	e.ids = appendID(e.ids, b.endOfText, b.width)
	binary.LittleEndian.PutUint64(e.entry[0:], uint64(len(ids)+1))
	binary.LittleEndian.PutUint64(e.entry[8:], uint64(bytes))
	binary.LittleEndian.PutUint64(e.entry[16:], uint64(first))
	return text, ids
}

func appendID(b []byte, id int32, width int) []byte {
	if width == 2 {
		return binary.LittleEndian.AppendUint16(b, uint16(id))
	}
	return binary.LittleEndian.AppendUint32(b, uint32(id))
}

// meter logs the progress of a long tokenisation.
type meter struct {
	done, total int64
	start, last time.Time
	log         func(string, ...any)
}

// meterEvery is the time between two lines of a meter.
const meterEvery = 5 * time.Second

func newMeter(docs []document, log func(string, ...any)) *meter {
	m := &meter{start: time.Now(), log: log}
	m.last = m.start
	for i := range docs {
		m.total += docs[i].size
	}
	return m
}

func (m *meter) add(n int64) {
	m.done += n
	if now := time.Now(); now.Sub(m.last) >= meterEvery {
		m.last = now
		m.log("tokenised %.0f of %.0f MB, %.1f MB/s", mb(m.done), mb(m.total), mb(m.done)/now.Sub(m.start).Seconds())
	}
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }
