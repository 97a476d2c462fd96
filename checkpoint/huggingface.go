package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/safetensors"
)

// Weights are the open files of a Hugging Face directory, checked to fit a
// model's configuration.
type Weights struct {
	dir     *safetensors.Dir
	tensors map[string]safetensors.Tensor
}

// OpenWeights opens the weights of dir, without reading them, and checks that
// each parameter of cfg is there with its shape and a type that can be read
// (F32, BF16 or F16), and that nothing else is. All that does not fit is in
// one error.
func OpenWeights(dir string, cfg model.Config) (*Weights, error) {
	d, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, fmt.Errorf("weights of %s: %w", dir, err)
	}
	w := &Weights{dir: d, tensors: map[string]safetensors.Tensor{}}
	if err := w.fit(cfg); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return w, nil
}

func (w *Weights) fit(cfg model.Config) error {
	var errs []error
	for _, p := range cfg.Params() {
		t, ok := w.dir.Tensor(p.Name)
		if !ok {
			errs = append(errs, fmt.Errorf("tensor %s is missing, expected with the shape %v", p.Name, p.Shape))
			continue
		}
		if !sameShape(t.Shape, p.Shape) {
			errs = append(errs, fmt.Errorf("%s: tensor %s has the shape %v, config.json makes it %v", t.File, p.Name, t.Shape, p.Shape))
		}
		if !slices.Contains([]safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16}, t.DType) {
			errs = append(errs, fmt.Errorf("%s: tensor %s has the type %s; F32, BF16 and F16 can be read", t.File, p.Name, t.DType))
		}
		w.tensors[p.Name] = t
	}
	for _, name := range w.dir.Names() {
		if _, known := w.tensors[name]; known || w.harmless(name, cfg) {
			continue
		}
		t, _ := w.dir.Tensor(name)
		errs = append(errs, fmt.Errorf("%s: tensor %s is no part of a %s model with this config.json", t.File, name, cfg.Family))
	}
	return errors.Join(errs...)
}

// harmless reports whether a tensor that is no parameter changes nothing: RoPE
// frequencies that old exporters stored, and a tied head's copy of the
// embedding where it is one.
func (w *Weights) harmless(name string, cfg model.Config) bool {
	if strings.HasSuffix(name, "rotary_emb.inv_freq") {
		return true
	}
	if name != "lm_head.weight" || !cfg.Tied {
		return false
	}
	head, _ := w.dir.Tensor(name)
	embed, ok := w.tensors[model.EmbedName]
	return ok && head.DType == embed.DType && slices.Equal(head.Shape, embed.Shape) && string(head.Data) == string(embed.Data)
}

func sameShape(a []int64, b []int) bool {
	return slices.EqualFunc(a, b, func(x int64, y int) bool { return x == int64(y) })
}

// Load converts every parameter to float32 and hands dst's slice of it; dst
// returns where a parameter belongs. It uses all cores and blocks until done.
func (w *Weights) Load(dst func(param string) []float32) {
	names := make(chan string)
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for name := range names {
				t := w.tensors[name]
				decode(dst(name), t.Data, t.DType)
			}
		})
	}
	for name := range w.tensors {
		names <- name
	}
	close(names)
	wait.Wait()
}

// Close unmaps the files.
func (w *Weights) Close() error { return w.dir.Close() }

func decode(dst []float32, src []byte, typ safetensors.DType) {
	switch typ {
	case safetensors.F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case safetensors.BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case safetensors.F16:
		for i := range dst {
			dst[i] = fromHalf(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
}

// fromHalf converts IEEE 754 binary16; it is exact.
func fromHalf(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch {
	case exp == 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case exp == 0:
		f := float32(frac) / (1 << 24)
		return math.Float32frombits(math.Float32bits(f) | sign)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// Export is what WriteHuggingFace writes.
type Export struct {
	Config model.Config
	// Weight returns a parameter's values.
	Weight func(param string) []float32
	// Tokenizer is the content of tokenizer.json; nil writes none.
	Tokenizer []byte
	// MaxShard is the most bytes of one file of weights, but for a single
	// tensor that is larger; 0 means 5 GB, as Hugging Face's tools have it.
	MaxShard int64
}

// WriteHuggingFace writes a directory that transformers and OpenWeights read.
// The directory appears whole: everything is written beside it and renamed. An
// existing dir is refused.
func WriteHuggingFace(dir string, x Export) (err error) {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("weights: %s exists already", dir)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-*")
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := x.write(tmp); err != nil {
		return fmt.Errorf("weights for %s: %w", dir, err)
	}
	if err := syncDir(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	return syncDir(filepath.Dir(dir))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// shard is the parameters of one file.
type shard struct {
	params []model.Param
	bytes  int64
}

func (x Export) write(dir string) error {
	limit := x.MaxShard
	if limit == 0 {
		limit = 5e9
	}
	var shards []shard
	var total int64
	for _, p := range x.Config.Params() {
		n := int64(p.Len()) * 4
		if len(shards) == 0 || shards[len(shards)-1].bytes+n > limit {
			shards = append(shards, shard{})
		}
		s := &shards[len(shards)-1]
		s.params, s.bytes, total = append(s.params, p), s.bytes+n, total+n
	}
	weights := map[string]string{}
	for i, s := range shards {
		name := safetensors.SingleFile
		if len(shards) > 1 {
			name = safetensors.ShardFile(i+1, len(shards))
		}
		for _, p := range s.params {
			weights[p.Name] = name
		}
		if err := x.writeShard(filepath.Join(dir, name), s); err != nil {
			return err
		}
	}
	if len(shards) > 1 {
		if err := safetensors.WriteIndex(dir, weights, total); err != nil {
			return err
		}
	}
	if err := writeFile(filepath.Join(dir, "config.json"), x.Config.JSON()); err != nil {
		return err
	}
	if x.Tokenizer != nil {
		return writeFile(filepath.Join(dir, "tokenizer.json"), x.Tokenizer)
	}
	return nil
}

func (x Export) writeShard(path string, s shard) error {
	entries := make([]safetensors.Entry, len(s.params))
	for i, p := range s.params {
		shape := make([]int64, len(p.Shape))
		for j, d := range p.Shape {
			shape[j] = int64(d)
		}
		entries[i] = safetensors.Entry{Name: p.Name, DType: safetensors.F32, Shape: shape}
	}
	w, err := safetensors.Create(path, entries, map[string]string{"format": "pt"})
	if err != nil {
		return err
	}
	var buf []byte
	for _, p := range s.params {
		values := x.Weight(p.Name)
		buf = slices.Grow(buf[:0], 4*len(values))[:4*len(values)]
		for i, v := range values {
			binary.LittleEndian.PutUint32(buf[4*i:], math.Float32bits(v))
		}
		if err := w.WriteTensor(p.Name, buf); err != nil {
			return errors.Join(err, w.Abort())
		}
	}
	return w.Commit()
}

func writeFile(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}
