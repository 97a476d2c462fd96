package safetensors

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Align is the boundary at which the data of a written file begins: a cache
// line, and enough for every vector instruction. Tensors follow each other
// without gaps, as the format demands; those whose sizes are multiples of Align
// keep it.
const Align = 64

// Writer writes one file whose tensors are known beforehand. The bytes go to a
// temporary file beside the final one, which Commit renames: until then nothing
// is at the final name, and what was there stays. WriteTensor and WritePart may
// be called from several goroutines, in any order; Commit and Abort only after
// those calls have returned.
//
//	w, err := safetensors.Create(path, entries, metadata)
//	...
//	defer w.Abort() // does nothing after Commit
//	err = w.WriteTensor("lm_head.weight", data)
//	...
//	return w.Commit()
type Writer struct {
	path      string
	temporary string
	file      *os.File
	dataStart int64
	tensors   []placed
	index     map[string]int

	mu      sync.Mutex
	written [][]span // per tensor: what has been written, sorted, merged
	failed  error    // the first error; nothing is written after it
	done    bool     // committed or aborted
}

// span is a range of a tensor's bytes.
type span struct{ begin, end int64 }

// Create begins a file at path with the given tensors, in the given order, and
// metadata (may be nil; transformers wants "format": "pt"). Entries that cannot
// be written are refused, all at once, before anything is created; so is a file
// that does not fit the free space of the disk.
func Create(path string, entries []Entry, metadata map[string]string) (*Writer, error) {
	w := &Writer{
		path:    path,
		index:   make(map[string]int, len(entries)),
		tensors: make([]placed, len(entries)),
		written: make([][]span, len(entries)),
	}
	head, err := w.layout(entries, metadata)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	if err := enoughSpace(filepath.Dir(path), w.size()); err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	w.file, err = createTemporary(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	w.temporary = w.file.Name()
	if _, err := w.file.WriteAt(head, 0); err != nil {
		w.fail(err)
		return nil, errors.Join(w.failed, w.Abort())
	}
	return w, nil
}

// layout gives every tensor its place and returns the file's first bytes.
func (w *Writer) layout(entries []Entry, metadata map[string]string) ([]byte, error) {
	var mistakes []error
	var end int64
	for i, e := range entries {
		bad := func(format string, args ...any) {
			mistakes = append(mistakes, fmt.Errorf("tensor %q: "+format, append([]any{e.Name}, args...)...))
		}
		if _, ok := w.index[e.Name]; ok {
			bad("given twice")
		}
		w.index[e.Name] = i
		if e.Name == metadataKey {
			bad("the format reserves this name")
		}
		if !utf8.ValidString(e.Name) {
			bad("the name is not UTF-8")
		}
		if !e.DType.valid() {
			bad("no such dtype: %s", e.DType)
			continue
		}
		size, err := e.Size()
		if err != nil {
			bad("%w", err)
			continue
		}
		begin := end
		// 2^30 leaves room for the header, so that offsets in the file fit too.
		if end += size; end < 0 || end > 1<<63-1-1<<30 {
			bad("the file would be more than 2^63 bytes")
			break
		}
		shape := slices.Clone(e.Shape)
		w.tensors[i] = placed{Entry: Entry{e.Name, e.DType, shape}, begin: begin, end: end}
	}
	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			mistakes = append(mistakes, fmt.Errorf("metadata %q is not UTF-8", key))
		}
	}
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	head, err := formatHeader(w.tensors, metadata, Align)
	w.dataStart = int64(len(head))
	return head, err
}

// size returns the bytes of the complete file.
func (w *Writer) size() int64 {
	if len(w.tensors) == 0 {
		return w.dataStart
	}
	return w.dataStart + w.tensors[len(w.tensors)-1].end
}

// WriteTensor writes all of a tensor: little-endian, row-major, exactly as many
// bytes as its entry says.
func (w *Writer) WriteTensor(name string, data []byte) error {
	i, ok := w.index[name]
	if ok && int64(len(data)) != w.tensors[i].end-w.tensors[i].begin {
		t := &w.tensors[i]
		return fmt.Errorf("safetensors: %s: tensor %q: %d bytes given, shape %v of %s takes %d",
			w.path, name, len(data), t.Shape, t.DType, t.end-t.begin)
	}
	return w.WritePart(name, 0, data)
}

// WritePart writes a part of a tensor, offset bytes from the tensor's first. A
// byte may be written once only. The first error of writing, a full disk say,
// removes the temporary file and is what every later call returns.
func (w *Writer) WritePart(name string, offset int64, data []byte) error {
	i, ok := w.index[name]
	if !ok {
		return fmt.Errorf("safetensors: %s: no tensor %q was announced", w.path, name)
	}
	t := &w.tensors[i]
	part := span{offset, offset + int64(len(data))}
	if offset < 0 || part.end > t.end-t.begin || part.end < offset {
		return fmt.Errorf("safetensors: %s: tensor %q: bytes %d to %d are outside its %d bytes",
			w.path, name, part.begin, part.end, t.end-t.begin)
	}
	if err := w.claim(i, part); err != nil || len(data) == 0 {
		return err
	}
	if _, err := w.file.WriteAt(data, w.dataStart+t.begin+offset); err != nil {
		return w.fail(fmt.Errorf("tensor %q, bytes %d to %d: %w", name, part.begin, part.end, err))
	}
	return nil
}

// claim notes that part of tensor i is being written.
func (w *Writer) claim(i int, part span) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return w.failed
	}
	if w.done {
		return fmt.Errorf("safetensors: %s: written after Commit or Abort", w.path)
	}
	if part.begin == part.end {
		return nil
	}
	list := w.written[i]
	// at is the first span that begins at or after the part.
	at, _ := slices.BinarySearchFunc(list, part, func(s, p span) int { return int(min(1, max(-1, s.begin-p.begin))) })
	if (at > 0 && list[at-1].end > part.begin) || (at < len(list) && list[at].begin < part.end) {
		return fmt.Errorf("safetensors: %s: tensor %q: some of bytes %d to %d are written a second time",
			w.path, w.tensors[i].Name, part.begin, part.end)
	}
	if at > 0 && list[at-1].end == part.begin {
		at--
		part.begin = list[at].begin
		list = slices.Delete(list, at, at+1)
	}
	if at < len(list) && list[at].begin == part.end {
		part.end = list[at].end
		list = slices.Delete(list, at, at+1)
	}
	w.written[i] = slices.Insert(list, at, part)
	return nil
}

// fail notes the first error of writing, removes the temporary file and returns
// that first error.
func (w *Writer) fail(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil {
		w.failed = fmt.Errorf("safetensors: %s: %w", w.path, explain(err))
		// Others may still be writing: the name goes now, the descriptor later.
		os.Remove(w.temporary)
	}
	return w.failed
}

// Commit makes the file durable and gives it its name, replacing what was
// there. It fails, and leaves nothing, where a tensor was not written
// completely; the error names all of those.
func (w *Writer) Commit() error {
	if err := w.complete(); err != nil {
		return errors.Join(err, w.Abort())
	}
	if err := w.file.Sync(); err != nil {
		return errors.Join(w.fail(err), w.Abort())
	}
	w.done = true
	if err := errors.Join(w.file.Close(), os.Rename(w.temporary, w.path)); err != nil {
		return w.fail(err)
	}
	if err := syncDirectory(filepath.Dir(w.path)); err != nil {
		return fmt.Errorf("safetensors: %s is written, but may not survive a power cut: %w", w.path, err)
	}
	return nil
}

// complete returns an error that names each tensor with missing bytes.
func (w *Writer) complete() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return w.failed
	}
	if w.done {
		return fmt.Errorf("safetensors: %s: Commit after Commit or Abort", w.path)
	}
	var missing []string
	for i, t := range w.tensors {
		size := t.end - t.begin
		var first int64 // the first byte that is missing
		if list := w.written[i]; len(list) > 0 && list[0].begin == 0 {
			first = list[0].end
		}
		if first < size {
			missing = append(missing, fmt.Sprintf("%q (from byte %d of %d)", t.Name, first, size))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("safetensors: %s: not committed, tensors are incomplete: %s", w.path, strings.Join(missing, ", "))
	}
	return nil
}

// Abort gives up and removes what was written. After Commit or a first Abort it
// does nothing.
func (w *Writer) Abort() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return nil
	}
	w.done = true
	err := w.file.Close()
	if gone := os.Remove(w.temporary); gone != nil && w.failed == nil {
		err = errors.Join(err, gone)
	}
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", w.path, err)
	}
	return nil
}
