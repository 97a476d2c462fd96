package checkpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/safetensors"
)

// Export is what WriteHuggingFace writes. Config and Weight must be there.
type Export struct {
	Config model.Config
	// Weight sets dst to values of a parameter, row-major, from element first on.
	// It is called by one goroutine, for the parameters in the order of
	// Config.Params and for each from its first element to its last. Its error
	// ends the export and is passed on.
	Weight func(param string, first int, dst []float32) error

	// Type is the type that weights are stored in: safetensors.F32, which 0
	// means too, or safetensors.BF16, rounded to nearest even.
	Type safetensors.DType
	// MaxShard is the most bytes of weights in one file, but for a single
	// tensor that is larger; 0 means 5 GB, as Hugging Face's tools had it for
	// long.
	MaxShard int64

	// From is the directory that a fine-tuned model came from. The files of
	// its tokenizer and of its generation settings are copied, byte for byte,
	// and its config.json's ids of special tokens are kept. Empty: none.
	From string
	// Tokenizer is the content of a tokenizer.json of our own, which excludes
	// From; what transformers needs beside it is made up. Nil: none.
	//
	// Of a qwen2 model, transformers 5.24's AutoTokenizer takes vocabulary and
	// merges alone and cuts text as Qwen does. A tokenizer that cuts otherwise
	// is there read by PreTrainedTokenizerFast.from_pretrained.
	Tokenizer []byte
	// EndOfText is the token of Tokenizer that ends a document, such as
	// "<|endoftext|>": generation stops there. Empty: none.
	EndOfText string
}

// WriteHuggingFace writes a directory that transformers and OpenWeights read:
//
//	config.json                   with the type of the weights as torch_dtype
//	model.safetensors             or model-00001-of-0000N.safetensors and
//	                              model.safetensors.index.json
//	tokenizer.json, ...           see Export.From and Export.Tokenizer
//
// The directory appears whole or not at all: everything is written, and made
// durable, in a hidden directory beside it, which is then renamed. A killed
// process can leave that one behind; it is safe to delete. A dir that exists is
// refused; its parent must exist.
func WriteHuggingFace(dir string, x Export) error {
	dir = filepath.Clean(dir)
	if err := x.check(dir); err != nil {
		return err
	}
	if err := writeWhole(dir, x.write); err != nil {
		return fmt.Errorf("writing the model to %s: %w", dir, err)
	}
	return nil
}

func (x *Export) check(dir string) error {
	var errs []error
	if _, err := os.Lstat(dir); err == nil {
		errs = append(errs, fmt.Errorf("writing the model: %s exists already; choose another directory or remove it", dir))
	}
	if x.Type == 0 {
		x.Type = safetensors.F32
	}
	if x.Type != safetensors.F32 && x.Type != safetensors.BF16 {
		errs = append(errs, fmt.Errorf("writing the model: weights can be stored as F32 or BF16, not as %s", x.Type))
	}
	if x.MaxShard == 0 {
		x.MaxShard = 5e9
	}
	if x.MaxShard < 0 {
		errs = append(errs, fmt.Errorf("writing the model: %d bytes are no size of a shard", x.MaxShard))
	}
	if info, err := os.Stat(x.From); x.From != "" && (err != nil || !info.IsDir()) {
		errs = append(errs, fmt.Errorf("writing the model: %s, to take the tokenizer from, is no directory", x.From))
	}
	if x.From != "" && x.Tokenizer != nil {
		errs = append(errs, fmt.Errorf("writing the model: both a tokenizer and a directory to take it from, %s, are given", x.From))
	}
	return errors.Join(errs...)
}

// writeWhole calls write with a new directory and gives it the name dir when
// write has returned without an error. Whatever else happens, a panic of write
// too, nothing stays.
func writeWhole(dir string, write func(dir string) error) error {
	parent := filepath.Dir(dir)
	tmp := filepath.Join(parent, fmt.Sprintf(".%s.partial-%08x", filepath.Base(dir), rand.Uint32()))
	if err := os.Mkdir(tmp, 0o777); err != nil {
		return err
	}
	renamed := false
	defer func() {
		if !renamed {
			os.RemoveAll(tmp)
		}
	}()
	if err := write(tmp); err != nil {
		return err
	}
	if err := syncDir(tmp); err != nil {
		return err
	}
	// A directory that somebody made meanwhile is replaced where it is empty,
	// and an error where it is not.
	if err := os.Rename(tmp, dir); err != nil {
		return err
	}
	renamed = true
	return syncDir(parent)
}

// syncDir makes what happened to a directory's names durable. File systems that
// cannot say so by EINVAL or ENOTSUP; they have no better way.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// write fills dir.
func (x *Export) write(dir string) error {
	// The small files come first: a source that cannot be read is found before
	// gigabytes are written.
	if err := x.writeCompanions(dir); err != nil {
		return err
	}
	shards := x.shards()
	files := map[string]string{} // of each parameter
	var total int64
	for i, s := range shards {
		name := safetensors.SingleFile
		if len(shards) > 1 {
			name = safetensors.ShardFile(i+1, len(shards))
		}
		if err := x.writeShard(filepath.Join(dir, name), s); err != nil {
			return err
		}
		for _, p := range s.params {
			files[p.Name] = name
		}
		total += s.bytes
	}
	if len(shards) == 1 {
		return nil
	}
	return safetensors.WriteIndex(dir, files, total)
}

// shard is the parameters of one file.
type shard struct {
	params []model.Param
	bytes  int64
}

// shards fills one file after the other, in the order of the parameters.
func (x *Export) shards() []shard {
	var list []shard
	for _, p := range x.Config.Params() {
		n := int64(p.Len()) * x.Type.Size()
		if len(list) == 0 || list[len(list)-1].bytes+n > x.MaxShard {
			list = append(list, shard{})
		}
		s := &list[len(list)-1]
		s.params, s.bytes = append(s.params, p), s.bytes+n
	}
	return list
}

func (x *Export) writeShard(path string, s shard) error {
	entries := make([]safetensors.Entry, len(s.params))
	for i, p := range s.params {
		shape := make([]int64, len(p.Shape))
		for j, d := range p.Shape {
			shape[j] = int64(d)
		}
		entries[i] = safetensors.Entry{Name: p.Name, DType: x.Type, Shape: shape}
	}
	// transformers 4 refuses a file that does not say which framework's it is.
	w, err := safetensors.Create(path, entries, map[string]string{"format": "pt"})
	if err != nil {
		return err
	}
	defer w.Abort() // does nothing after Commit
	size := int(x.Type.Size())
	buffers := make([][]byte, workers())
	errs := make([]error, len(buffers))
	room := make([]float32, len(buffers)*pieceLen)
	for _, p := range s.params {
		for first := 0; first < p.Len(); first += len(room) {
			values := room[:min(len(room), p.Len()-first)]
			if err := x.Weight(p.Name, first, values); err != nil {
				return err
			}
			inPieces(len(values), func(worker, begin, end int) {
				if errs[worker] != nil {
					return
				}
				buf := buffers[worker]
				if buf == nil {
					buf = make([]byte, pieceLen*size)
					buffers[worker] = buf
				}
				encode(buf, values[begin:end], x.Type)
				errs[worker] = w.WritePart(p.Name, int64((first+begin)*size), buf[:(end-begin)*size])
			})
			for _, err := range errs { // all are the writer's first one
				if err != nil {
					return err
				}
			}
		}
	}
	return w.Commit()
}
