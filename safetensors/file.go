package safetensors

import (
	"errors"
	"fmt"
	"maps"
	"os"

	"golang.org/x/sys/unix"
)

// File is an open safetensors file, mapped into memory. Its methods may be
// called from several goroutines, Close excepted.
type File struct {
	path     string
	mapped   []byte
	names    []string
	tensors  map[string]Tensor
	metadata map[string]string
}

// Open maps the file at path and checks its header. Nothing is copied; pages
// are read when they are touched. The file must not be shortened while it is
// open: touching a page that is gone kills the process.
//
// An error names the file, the tensor and the offset, and is about all of the
// file's tensors at once.
func Open(path string) (*File, error) {
	mapped, err := mapFile(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	f, err := newFile(path, mapped)
	if err != nil {
		return nil, errors.Join(err, unmap(mapped))
	}
	return f, nil
}

// newFile checks a whole file's bytes and makes the tensors that lie in them.
func newFile(path string, mapped []byte) (*File, error) {
	h, err := parseHeader(mapped)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	f := &File{
		path:     path,
		mapped:   mapped,
		names:    make([]string, len(h.tensors)),
		tensors:  make(map[string]Tensor, len(h.tensors)),
		metadata: h.metadata,
	}
	for i, t := range h.tensors {
		begin, end := h.dataStart+t.begin, h.dataStart+t.end
		f.names[i] = t.Name
		// The capacity ends with the tensor, so that no append reaches the next.
		f.tensors[t.Name] = Tensor{Entry: t.Entry, Data: mapped[begin:end:end], File: path, Offset: begin}
	}
	return f, nil
}

// Names returns the tensors' names in the order of their data. The caller owns
// the slice.
func (f *File) Names() []string { return append([]string(nil), f.names...) }

// Tensor returns the tensor with that name, and whether there is one. Its Shape
// is shared and must not be changed.
func (f *File) Tensor(name string) (Tensor, bool) {
	t, ok := f.tensors[name]
	return t, ok
}

// Metadata returns a copy of the file's own strings, nil where it has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Close unmaps the file. The Data of its tensors must not be touched from then
// on; the file itself has no tensors any more. A second call does nothing.
func (f *File) Close() error {
	mapped := f.mapped
	f.mapped, f.names, f.tensors = nil, nil, nil
	if err := unmap(mapped); err != nil {
		return fmt.Errorf("safetensors: %s: %w", f.path, err)
	}
	return nil
}

// mapFile maps a whole regular file, read-only. An empty one gives no bytes.
func mapFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the mapping outlives the descriptor
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	size := info.Size()
	if size == 0 {
		return nil, nil // nothing can be mapped
	}
	if int64(int(size)) != size {
		return nil, fmt.Errorf("%s: %d bytes do not fit this machine's address space", path, size)
	}
	mapped, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%s: mmap of %d bytes: %w", path, size, err)
	}
	return mapped, nil
}

func unmap(mapped []byte) error {
	if len(mapped) == 0 {
		return nil
	}
	return unix.Munmap(mapped)
}
