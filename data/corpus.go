package data

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// document is one file of the corpus, or one line of a JSON Lines file, read once
// and found to be UTF-8.
type document struct {
	file                      // size is that of the text
	line    *line             // nil for a whole file
	hash    [sha256.Size]byte // of its text
	heldOut bool
}

// maxListed is how many mistakes of one kind are named before the rest are
// counted.
const maxListed = 10

// scan reads all files in parallel, checks that they are UTF-8 and hashes them.
// Every file that cannot be used is reported, in order.
func scan(ctx context.Context, files []file) ([]document, error) {
	docs := make([]document, len(files))
	errs := make([]error, len(files))
	err := parallel(ctx, len(files), func() func(int) error {
		var buf []byte
		return func(i int) error {
			var err error
			buf, err = readFile(files[i].path, buf)
			if err != nil {
				errs[i] = fmt.Errorf("data.path: cannot read: %w", err)
				return nil
			}
			if at := invalidUTF8(buf); at >= 0 {
				errs[i] = fmt.Errorf("data.path: %s is not UTF-8 at byte %d (0x%02x); convert it or leave it out by data.include",
					files[i].path, at, buf[at])
			}
			docs[i] = document{file: files[i], hash: sha256.Sum256(buf)}
			docs[i].size = int64(len(buf))
			return nil
		}
	})
	if err != nil {
		return nil, err
	}
	return docs, firstErrors(errs, "files")
}

// firstErrors joins the first of errs, those that are nil left out, and counts
// the others.
func firstErrors(errs []error, what string) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) > maxListed {
		more := fmt.Errorf("data.path: and %d more %s", len(errs)-maxListed, what)
		errs = append(errs[:maxListed], more)
	}
	return errors.Join(errs...)
}

// read returns the document's text, in buf where it fits. A file that has
// changed since it was scanned is an error, as its split and its key would lie.
func (d *document) read(buf []byte) ([]byte, error) {
	var err error
	if d.line == nil {
		buf, err = readFile(d.path, buf)
	} else {
		buf, err = d.line.read(d.path, buf)
	}
	if err == nil && sha256.Sum256(buf) != d.hash {
		err = fmt.Errorf("%s changed while it was read; start again when nothing writes to it", d.path)
	}
	return buf, err
}

// readFile reads a whole file into buf, which it grows where needed.
func readFile(path string, buf []byte) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return buf, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return buf, err
	}
	// One byte more than the size shows the end without a second growth.
	buf = slices.Grow(buf[:0], int(info.Size())+1)
	for {
		n, err := f.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
		buf = slices.Grow(buf, 1)
	}
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// split marks the documents that are held out: those whose content hash, mixed
// with the seed, falls below the share. So a document stays on its side when
// others come and go, and copies of one text are all on the same side.
func split(docs []document, holdout float64, seed uint64) error {
	held, lowest := 0, 1.0
	for i := range docs {
		u := unit(key(seed, useHoldout, binary.LittleEndian.Uint64(docs[i].hash[:8])))
		lowest = min(lowest, u)
		if docs[i].heldOut = u < holdout; docs[i].heldOut {
			held++
		}
	}
	switch {
	case len(docs) == 1:
		return fmt.Errorf("data.path: one document, %s, cannot be both trained on and held out; split it into several files, or into lines of data.format jsonl", docs[0].name)
	case held == 0:
		return fmt.Errorf("data.holdout: none of %d documents is held out at %v with data.seed %d; set data.holdout above %.4g, or add documents",
			len(docs), holdout, seed, lowest)
	case held == len(docs):
		return fmt.Errorf("data.holdout: all %d documents are held out at %v with data.seed %d; lower data.holdout, or add documents",
			len(docs), holdout, seed)
	}
	return nil
}

// parallel calls work for each i below n, on all cores. start makes one worker's
// function, which may own a buffer. It returns ctx's error or the first that a
// worker returned, after all workers have ended.
func parallel(ctx context.Context, n int, start func() func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			work := start()
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := work(i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
