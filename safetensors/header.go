package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxHeader is the reference implementation's limit on a header.
	maxHeader = 100_000_000
	// lengthBytes is the size of the number before the header.
	lengthBytes = 8
	// metadataKey is the one key of a header that is not a tensor's name.
	metadataKey = "__metadata__"
	// maxMistakes bounds what is reported about one file.
	maxMistakes = 20
)

// header is a checked header: the tensors in the order of their data.
type header struct {
	tensors   []placed
	metadata  map[string]string
	dataStart int64 // place in the file of the first tensor's first byte
}

// placed is a tensor with its range of the data and the place in the file where
// the header speaks of it.
type placed struct {
	Entry
	begin, end int64
	at         int64
}

// parseHeader reads and checks the header of a whole file's bytes. Nothing is
// allocated by what the header claims, only by how long it really is. Mistakes
// of form end it at once; mistakes about tensors are all returned, up to
// maxMistakes.
func parseHeader(file []byte) (*header, error) {
	if len(file) < lengthBytes {
		return nil, fmt.Errorf("offset 0: truncated: %d bytes are too few for the header's length", len(file))
	}
	n := binary.LittleEndian.Uint64(file)
	if n > maxHeader {
		return nil, fmt.Errorf("offset 0: the header claims %d bytes, more than the format's limit of %d: not a safetensors file, or a damaged one", n, maxHeader)
	}
	if n > uint64(len(file)-lengthBytes) {
		return nil, fmt.Errorf("offset 0: truncated: the header claims %d bytes, the file has %d after its length", n, len(file)-lengthBytes)
	}
	text := file[lengthBytes : lengthBytes+n]
	if len(text) == 0 || text[0] != '{' {
		return nil, fmt.Errorf("offset %d: the header does not begin with '{': not a safetensors file, or a damaged one", lengthBytes)
	}
	if at := invalidUTF8(text); at >= 0 {
		return nil, fmt.Errorf("offset %d: the header is not UTF-8", lengthBytes+at)
	}
	h := &header{dataStart: lengthBytes + int64(n)}
	p := newParser(text, lengthBytes)
	if err := h.read(p); err != nil {
		return nil, err
	}
	if !p.mistaken() {
		h.checkLayout(p, int64(len(file))-h.dataStart)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return h, nil
}

// read fills h from the header's text.
func (h *header) read(p *parser) error {
	err := p.object(func(name string, at int64) error {
		if name == metadataKey {
			h.metadata = map[string]string{}
			return p.object(func(key string, at int64) error {
				token, err := p.next()
				if err != nil {
					return err
				}
				value, ok := token.(string)
				if !ok {
					return fmt.Errorf("offset %d: %s %q is not a string", at, metadataKey, key)
				}
				h.metadata[key] = value
				return nil
			})
		}
		t := placed{Entry: Entry{Name: name}, at: at}
		if err := t.read(p); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		h.tensors = append(h.tensors, t)
		return nil
	})
	if err != nil {
		return err
	}
	return p.end()
}

// read fills t from its object in the header.
func (t *placed) read(p *parser) error {
	var seen int
	err := p.object(func(key string, at int64) error {
		seen++
		switch key {
		case "dtype":
			token, err := p.next()
			if err != nil {
				return err
			}
			name, ok := token.(string)
			if !ok {
				return fmt.Errorf("offset %d: dtype is not a string", at)
			}
			if t.DType, err = ParseDType(name); err != nil {
				p.mistake("tensor %q (offset %d): %w", t.Name, at, err)
			}
		case "shape":
			numbers, err := p.numbers(key)
			if err != nil {
				return err
			}
			t.Shape = numbers
		case "data_offsets":
			numbers, err := p.numbers(key)
			if err != nil {
				return err
			}
			if len(numbers) != 2 {
				return fmt.Errorf("offset %d: data_offsets has %d numbers, not 2", at, len(numbers))
			}
			t.begin, t.end = numbers[0], numbers[1]
		default:
			return fmt.Errorf("offset %d: unknown key %q", at, key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Duplicate and unknown keys are refused, so three keys are the three.
	if seen != 3 {
		return fmt.Errorf("offset %d: dtype, shape and data_offsets are not all there", t.at)
	}
	return nil
}

// checkLayout sorts the tensors by place and checks that they fill the data of
// size bytes exactly, each with the bytes that its shape needs.
func (h *header) checkLayout(p *parser, size int64) {
	slices.SortStableFunc(h.tensors, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	var filled int64
	before := "the start"
	var cut []*placed // what ends after the data
	for i := range h.tensors {
		t := &h.tensors[i]
		bad := func(format string, args ...any) {
			p.mistake("tensor %q (offset %d, data %d to %d): %w", t.Name, t.at, t.begin, t.end, fmt.Errorf(format, args...))
		}
		if t.end < t.begin {
			bad("it ends before it begins")
			continue
		}
		if need, err := t.Size(); err != nil {
			bad("%w", err)
		} else if need != t.end-t.begin {
			bad("shape %v of %s takes %d bytes, the offsets give %d", t.Shape, t.DType, need, t.end-t.begin)
		}
		switch {
		case t.end > size:
			cut = append(cut, t)
		case t.begin < filled:
			bad("it overlaps %s, which ends at %d", before, filled)
		case t.begin > filled:
			bad("there is a gap after %s, which ends at %d", before, filled)
		}
		filled = max(filled, t.end)
		before = fmt.Sprintf("tensor %q", t.Name)
	}
	if len(cut) > 0 { // one mistake, however many tensors it hits
		t, others := cut[0], ""
		if n := len(cut) - 1; n > 0 {
			others = fmt.Sprintf(", like %d more", n)
		}
		p.mistake("tensor %q (offset %d, data %d to %d): it ends after the end of the data at %d%s: the file is truncated", t.Name, t.at, t.begin, t.end, size, others)
	}
	if !p.mistaken() && filled != size {
		p.mistake("offset %d: %d bytes after the last tensor belong to none", h.dataStart+filled, size-filled)
	}
}

// formatHeader returns the first bytes of a file: the header's length and the
// header, padded with blanks so that the data begins at a multiple of align.
func formatHeader(tensors []placed, metadata map[string]string, align int) ([]byte, error) {
	out := make([]byte, lengthBytes, 256+128*len(tensors))
	out = append(out, '{')
	if len(metadata) > 0 {
		text, err := json.Marshal(metadata) // in the order of the keys
		if err != nil {
			return nil, err
		}
		out = fmt.Appendf(out, "%q:%s", metadataKey, text)
	}
	for _, t := range tensors {
		if len(out) > lengthBytes+1 {
			out = append(out, ',')
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, err
		}
		shape := make([]string, len(t.Shape))
		for i, n := range t.Shape {
			shape[i] = strconv.FormatInt(n, 10)
		}
		out = fmt.Appendf(out, `%s:{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}`,
			name, t.DType, strings.Join(shape, ","), t.begin, t.end)
	}
	out = append(out, '}')
	for len(out)%align != 0 {
		out = append(out, ' ')
	}
	if len(out)-lengthBytes > maxHeader {
		return nil, fmt.Errorf("the header takes %d bytes, more than the format's limit of %d: spread the tensors over more files", len(out)-lengthBytes, maxHeader)
	}
	binary.LittleEndian.PutUint64(out, uint64(len(out)-lengthBytes))
	return out, nil
}

// parser walks JSON token by token, so that duplicate keys are seen and nesting
// that nobody asked for ends the walk instead of the stack.
type parser struct {
	tokens   *json.Decoder
	base     int64 // place in the file of the text's first byte
	mistakes []error
	omitted  int
}

func newParser(text []byte, base int64) *parser {
	p := &parser{tokens: json.NewDecoder(bytes.NewReader(text)), base: base}
	p.tokens.UseNumber()
	return p
}

// mistake notes something wrong that does not hinder reading on.
func (p *parser) mistake(format string, args ...any) {
	if len(p.mistakes) == maxMistakes {
		p.omitted++
		return
	}
	p.mistakes = append(p.mistakes, fmt.Errorf(format, args...))
}

func (p *parser) mistaken() bool { return len(p.mistakes) > 0 }

func (p *parser) err() error {
	if p.omitted > 0 {
		return errors.Join(append(p.mistakes, fmt.Errorf("and %d more", p.omitted))...)
	}
	return errors.Join(p.mistakes...)
}

func (p *parser) offset() int64 { return p.base + p.tokens.InputOffset() }

func (p *parser) next() (json.Token, error) {
	token, err := p.tokens.Token()
	if err == nil {
		return token, nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return nil, fmt.Errorf("offset %d: invalid JSON: %w", p.offset(), err)
}

// delim reads one token, which must be the delimiter d.
func (p *parser) delim(d json.Delim) error {
	token, err := p.next()
	if err != nil {
		return err
	}
	if token != d {
		return fmt.Errorf("offset %d: found %v where %q is expected", p.offset(), token, d.String())
	}
	return nil
}

// object reads an object and calls member for each of its keys; member reads
// the value. A key that comes twice is an error.
func (p *parser) object(member func(key string, at int64) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.tokens.More() {
		token, err := p.next()
		if err != nil {
			return err
		}
		key, at := token.(string), p.offset() // JSON's keys are strings, the decoder sees to it
		if seen[key] {
			return fmt.Errorf("offset %d: duplicate key %q", at, key)
		}
		seen[key] = true
		if err := member(key, at); err != nil {
			return err
		}
	}
	return p.delim('}')
}

// numbers reads an array of integers that are not negative; what names it in
// errors.
func (p *parser) numbers(what string) ([]int64, error) {
	if err := p.delim('['); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	list := []int64{}
	for p.tokens.More() {
		token, err := p.next()
		if err != nil {
			return nil, err
		}
		number, ok := token.(json.Number)
		if !ok {
			return nil, fmt.Errorf("offset %d: %s has %v where a number is expected", p.offset(), what, token)
		}
		n, err := strconv.ParseInt(number.String(), 10, 64)
		if err != nil || number[0] == '-' {
			return nil, fmt.Errorf("offset %d: %s has %s, which is no integer from 0 to 2^63-1", p.offset(), what, number)
		}
		list = append(list, n)
	}
	return list, p.delim(']')
}

// end checks that nothing but blanks follows.
func (p *parser) end() error {
	token, err := p.tokens.Token()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("offset %d: invalid JSON: %w", p.offset(), err)
	}
	return fmt.Errorf("offset %d: %v after the end of the object", p.offset(), token)
}

// invalidUTF8 returns the place of the first byte that is not UTF-8, or -1.
func invalidUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	at := 0
	for {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size <= 1 {
			return at
		}
		at += size
	}
}
