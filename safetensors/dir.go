package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// The names that Hugging Face tools give to a directory's files.
const (
	SingleFile = "model.safetensors"
	IndexFile  = "model.safetensors.index.json"
)

// ShardFile returns the name of shard i of n, counted from 1, as Hugging Face
// tools write it: model-00001-of-00003.safetensors.
func ShardFile(i, n int) string {
	return fmt.Sprintf("model-%05d-of-%05d.safetensors", i, n)
}

// Dir is the tensors of a directory, in one file or in shards with an index.
// Its methods may be called from several goroutines, Close excepted.
type Dir struct {
	files []*File
	names []string
	owner map[string]*File
}

// OpenDir opens the weights of a directory: model.safetensors where it exists,
// else what model.safetensors.index.json lists (the order in which transformers
// looks). Each listed tensor must be in the file that the index names; all that
// is wrong with the directory is reported at once. Tensors of a shard that the
// index does not list are not part of the directory.
func OpenDir(dir string) (*Dir, error) {
	single := filepath.Join(dir, SingleFile)
	if _, err := os.Stat(single); err == nil {
		f, err := Open(single)
		if err != nil {
			return nil, err
		}
		d := &Dir{files: []*File{f}, names: f.Names(), owner: make(map[string]*File, len(f.names))}
		for _, name := range d.names {
			d.owner[name] = f
		}
		return d, nil
	}
	index := filepath.Join(dir, IndexFile)
	weights, err := readIndex(index)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("safetensors: %s has neither %s nor %s: it is no directory of safetensors weights", dir, SingleFile, IndexFile)
	}
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", index, err)
	}
	d, err := openShards(dir, weights)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("safetensors: %s does not fit its files", index), err, d.Close())
	}
	return d, nil
}

// openShards opens every file of an index and finds each tensor in its file. It
// returns what it has opened, with an error too.
func openShards(dir string, weights map[string]string) (*Dir, error) {
	d := &Dir{owner: make(map[string]*File, len(weights))}
	var mistakes []error
	shards := map[string]*File{} // nil where the file cannot be used
	for _, name := range slices.Sorted(maps.Values(weights)) {
		if _, ok := shards[name]; ok {
			continue
		}
		shards[name] = nil
		// A path in an index from elsewhere could reach outside the directory.
		if name != filepath.Base(name) || !filepath.IsLocal(name) {
			mistakes = append(mistakes, fmt.Errorf("the index lists the file %q, which is no plain file name", name))
			continue
		}
		f, err := Open(filepath.Join(dir, name))
		if err != nil {
			mistakes = append(mistakes, err)
			continue
		}
		shards[name] = f
		d.files = append(d.files, f)
	}
	for _, tensor := range slices.Sorted(maps.Keys(weights)) {
		f := shards[weights[tensor]]
		if f == nil {
			continue // said already
		}
		if _, ok := f.tensors[tensor]; !ok {
			mistakes = append(mistakes, fmt.Errorf("tensor %q is not in %s, where the index has it", tensor, weights[tensor]))
			continue
		}
		d.owner[tensor] = f
	}
	for _, f := range d.files {
		for _, name := range f.names {
			if d.owner[name] == f {
				d.names = append(d.names, name)
			}
		}
	}
	return d, errors.Join(mistakes...)
}

// Names returns the tensors' names in the order of the files and of their data.
// The caller owns the slice.
func (d *Dir) Names() []string { return append([]string(nil), d.names...) }

// Tensor returns the tensor with that name, and whether there is one. Its Data
// is valid until Close; its Shape must not be changed.
func (d *Dir) Tensor(name string) (Tensor, bool) {
	f, ok := d.owner[name]
	if !ok {
		return Tensor{}, false
	}
	return f.Tensor(name)
}

// Files returns the open files, in the order of their names. The caller owns
// the slice, not the files.
func (d *Dir) Files() []*File { return slices.Clone(d.files) }

// Close closes all files. A second call does nothing.
func (d *Dir) Close() error {
	var errs []error
	for _, f := range d.files {
		errs = append(errs, f.Close())
	}
	d.files, d.names, d.owner = nil, nil, nil
	return errors.Join(errs...)
}

// readIndex reads the index's map from tensor to file name. metadata.total_size
// is not compared with the files: exporters count tied tensors differently.
func readIndex(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if at := invalidUTF8(text); at >= 0 {
		return nil, fmt.Errorf("offset %d: not UTF-8", at)
	}
	p := newParser(text, 0)
	var weights map[string]string
	err = p.object(func(key string, _ int64) error {
		if key != "weight_map" {
			var ignored json.RawMessage
			if err := p.tokens.Decode(&ignored); err != nil {
				return fmt.Errorf("offset %d: invalid JSON: %w", p.offset(), err)
			}
			return nil
		}
		weights = map[string]string{}
		return p.object(func(tensor string, at int64) error {
			token, err := p.next()
			if err != nil {
				return err
			}
			file, ok := token.(string)
			if !ok {
				return fmt.Errorf("offset %d: tensor %q has no file name", at, tensor)
			}
			weights[tensor] = file
			return nil
		})
	})
	if err == nil {
		err = p.end()
	}
	if err != nil {
		return nil, err
	}
	if weights == nil {
		return nil, errors.New("it has no weight_map")
	}
	return weights, nil
}

// WriteIndex writes the index of a directory of shards, atomically: weights maps
// each tensor to its file's name, totalSize is the bytes of all tensors. Write
// it after the shards: a directory without its index does not open.
func WriteIndex(dir string, weights map[string]string, totalSize int64) error {
	type metadata struct {
		TotalSize int64 `json:"total_size"`
	}
	text, err := json.MarshalIndent(struct {
		Metadata  metadata          `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}{metadata{totalSize}, weights}, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, IndexFile)
	if err := writeAtomic(path, append(text, '\n')); err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	return nil
}
