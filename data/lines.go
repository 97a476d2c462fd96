package data

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// line is where in a JSON Lines file a document stands.
type line struct {
	at     int64 // of its first byte in the file
	length int   // in bytes
	key    string
}

// read returns the text of the line, in buf where the line fits.
func (l *line) read(path string, buf []byte) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return buf, err
	}
	defer f.Close()
	buf = slices.Grow(buf[:0], l.length)[:l.length]
	if _, err := f.ReadAt(buf, l.at); err != nil {
		return buf, fmt.Errorf("%s: %w; it changed while it was read", path, err)
	}
	text, err := textOf(buf, l.key)
	if err != nil {
		return buf, fmt.Errorf("%s: %w; it changed while it was read", path, err)
	}
	return append(buf[:0], text...), nil
}

// textOf returns the value of key in a JSON object, which has to be a string.
func textOf(object []byte, key string) (string, error) {
	if at := invalidUTF8(object); at >= 0 {
		return "", fmt.Errorf("not UTF-8 at byte %d of the line (0x%02x)", at, object[at])
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(object, &members); err != nil {
		return "", fmt.Errorf("not a JSON object: %w", err)
	}
	value, ok := members[key]
	if !ok {
		return "", fmt.Errorf("no key %q, which data.text_key names, but %q", key, slices.Sorted(maps.Keys(members)))
	}
	var text *string
	if err := json.Unmarshal(value, &text); err != nil || text == nil {
		return "", fmt.Errorf("the value of %q is not a string", key)
	}
	return *text, nil
}

// scanLines reads the lines of all files in order, each a document, while their
// texts fit into s.MaxBytes. Blank lines are passed over. Every line that cannot
// be used is reported, in order.
func scanLines(ctx context.Context, files []file, s Settings) ([]document, error) {
	c := lineScan{settings: s}
	for _, f := range files {
		if err := c.file(ctx, f); err != nil {
			return nil, err
		}
	}
	if err := firstErrors(c.errs, "lines"); err != nil {
		return nil, err
	}
	if c.total == 0 {
		return nil, emptyCorpus(len(files), s)
	}
	return c.docs, nil
}

// lineScan collects the documents of JSON Lines files.
type lineScan struct {
	settings Settings
	docs     []document
	total    int64 // bytes of text
	full     bool  // the next document would not have fitted
	errs     []error
}

// file takes the lines of one file.
func (c *lineScan) file(ctx context.Context, in file) error {
	f, err := os.Open(in.path)
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("data.path: cannot read: %w", err))
		return nil
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	var raw []byte
	at := int64(0)
	for number := 1; !c.full; number++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		raw, err = readLine(r, raw[:0])
		if err != nil && err != io.EOF {
			c.errs = append(c.errs, fmt.Errorf("data.path: cannot read: %w", err))
			return nil
		}
		if len(bytes.TrimSpace(raw)) > 0 {
			c.line(in, number, raw, at)
		}
		at += int64(len(raw))
		if err == io.EOF {
			return nil
		}
	}
	return nil
}

// line takes one document.
func (c *lineScan) line(in file, number int, raw []byte, at int64) {
	name := fmt.Sprintf("%s:%d", in.name, number)
	text, err := textOf(raw, c.settings.TextKey)
	size, limit := int64(len(text)), c.settings.MaxBytes
	switch {
	case err != nil:
		c.errs = append(c.errs, fmt.Errorf("data.path: %s: %w", name, err))
	case limit > 0 && c.total+size > limit:
		c.full = true
		if c.total == 0 {
			c.errs = append(c.errs, fmt.Errorf("data.max_bytes: %d is less than the first document, %s of %d bytes; raise it or set 0 for all",
				limit, name, size))
		}
	default:
		c.total += size
		c.docs = append(c.docs, document{
			file: file{name, in.path, size},
			line: &line{at, len(raw), c.settings.TextKey},
			hash: sha256.Sum256([]byte(text)),
		})
	}
}

// readLine appends the next line, its newline included, to buf.
func readLine(r *bufio.Reader, buf []byte) ([]byte, error) {
	for {
		part, err := r.ReadSlice('\n')
		buf = append(buf, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return buf, err
		}
	}
}
