package checkpoint_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/safetensors"
)

// load reads all weights of a directory.
func load(t *testing.T, dir string, cfg model.Config) map[string][]float32 {
	t.Helper()
	w, err := checkpoint.OpenWeights(dir, cfg)
	check(t, err)
	got := map[string][]float32{}
	for _, p := range cfg.Params() {
		got[p.Name] = slices.Repeat([]float32{float32(math.NaN())}, p.Len())
	}
	for name, all := range got {
		w.Read(name, 0, all)
	}
	// In parts, as ranks hold them.
	for name, all := range got {
		for first := range 3 {
			part := make([]float32, (len(all)-first)/2)
			w.Read(name, first, part)
			same := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) } // a NaN too
			if !slices.EqualFunc(part, all[first:first+len(part)], same) {
				t.Errorf("%s from element %d on differs", name, first)
			}
		}
	}
	check(t, w.Close())
	check(t, w.Close())
	return got
}

func TestEveryTypeIsReadFromOneFileAndFromShards(t *testing.T) {
	for _, typ := range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16} {
		for _, files := range []int{1, 2, 5} {
			for _, tied := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s in %d, tied %v", typ, files, tied), func(t *testing.T) {
					d, want := directoryOf(tiny(tied), typ, files)
					sameBits(t, load(t, d.write(t), tiny(tied)), want)
				})
			}
		}
	}
}

func TestTypesMayDifferFromTensorToTensor(t *testing.T) {
	d, want := directoryOf(tiny(true), safetensors.F32, 1)
	name := "model.layers.1.input_layernorm.weight"
	want[name] = slices.Repeat([]float32{-1.5}, 16)
	d.change(name, func(x *tensor) { *x = stored(safetensors.F16, []int64{16}, want[name]) })
	sameBits(t, load(t, d.write(t), tiny(true)), want)
}

func TestATensorOfManyPiecesIsReadWhole(t *testing.T) {
	cfg := tiny(true)
	cfg.Vocab, cfg.Layers = 70_001, 1 // 4.3 pieces of the embedding
	d, want := directoryOf(cfg, safetensors.BF16, 1)
	sameBits(t, load(t, d.write(t), cfg), want)
}

// The files are those of tools/golden/huggingface/make.py; hashes are of what
// safetensors' own reader gave, widened by PyTorch.
func TestWeightsThatTransformersWroteAreRead(t *testing.T) {
	for name, wantType := range map[string]string{"fp32-sharded": "float32", "bf16": "bfloat16", "fp16": "float16"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("testdata", "transformers", name)
			source, err := model.Resolve("./" + dir)
			check(t, err)
			var expect struct {
				Tensors map[string]struct {
					Type, SHA256 string
					Shape        []int
				}
			}
			text, err := os.ReadFile(filepath.Join(dir, "expect.json"))
			check(t, err)
			check(t, json.Unmarshal(text, &expect))
			got := load(t, dir, source.Config)
			if len(got) != len(expect.Tensors) || len(got) == 0 {
				t.Errorf("%d parameters, want %d", len(got), len(expect.Tensors))
			}
			for tensor, want := range expect.Tensors {
				var data []byte
				for _, v := range got[tensor] {
					data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
				}
				if hash := sha256.Sum256(data); hex.EncodeToString(hash[:]) != want.SHA256 {
					t.Errorf("%s has other bits than PyTorch read", tensor)
				}
				if want.Type != wantType {
					t.Errorf("%s is %s, the test wants %s", tensor, want.Type, wantType)
				}
			}
		})
	}
}

func TestAFrequencyThatOldExportersStoredIsPassedOver(t *testing.T) {
	d, want := directoryOf(tiny(false), safetensors.F32, 2)
	old := tensor{safetensors.F32, []int64{2}, make([]byte, 8)}
	d[safetensors.ShardFile(1, 2)]["model.layers.0.self_attn.rotary_emb.inv_freq"] = old
	d[safetensors.ShardFile(2, 2)]["model.rotary_emb.inv_freq"] = old
	sameBits(t, load(t, d.write(t), tiny(false)), want)
}

func TestATiedHeadThatIsACopyIsPassedOver(t *testing.T) {
	d, want := directoryOf(tiny(true), safetensors.BF16, 1)
	d[safetensors.SingleFile]["lm_head.weight"] = d[safetensors.SingleFile][model.EmbedName]
	sameBits(t, load(t, d.write(t), tiny(true)), want)
}

// What does not fit is refused, each with the file, the tensor, what is
// expected and what was found.
func TestWhatDoesNotFitIsRefused(t *testing.T) {
	const norm = "model.layers.1.post_attention_layernorm.weight"
	for sentence, c := range map[string]struct {
		tied   bool
		change func(d directory)
		says   []string // DIR stands for the directory
	}{
		"a missing tensor": {
			true, func(d directory) { d.remove(norm) },
			[]string{"DIR: tensor " + norm + " is missing, expected with the shape [16]"},
		},
		"a missing head, which may mean a tied one": {
			false, func(d directory) { d.remove("lm_head.weight") },
			[]string{"DIR: tensor lm_head.weight is missing, expected with the shape [33 16]", `"tie_word_embeddings": true`},
		},
		"a wrong shape": {true, func(d directory) {
			d.change(norm, func(x *tensor) { x.shape = []int64{4, 4} })
		}, []string{"DIR/model.safetensors: tensor " + norm + " has the shape [4 4], expected [16]"}},
		"a transposed matrix": {true, func(d directory) {
			d.change(model.EmbedName, func(x *tensor) { x.shape = []int64{16, 33} })
		}, []string{"DIR/model.safetensors: tensor " + model.EmbedName + " has the shape [16 33], expected [33 16]"}},
		"a wrong type": {true, func(d directory) {
			d.change(norm, func(x *tensor) { x.typ = safetensors.I32 })
		}, []string{"DIR/model.safetensors: tensor " + norm + " has the type I32, expected F32, BF16 or F16"}},
		"a tensor that no qwen2 has": {true, func(d directory) {
			d[safetensors.SingleFile]["model.layers.0.self_attn.q_norm.weight"] = tensor{safetensors.F16, []int64{4}, make([]byte, 8)}
		}, []string{"DIR/model.safetensors: tensor model.layers.0.self_attn.q_norm.weight, F16 [4], is not expected", "qwen2"}},
		"a block too many": {true, func(d directory) {
			d[safetensors.SingleFile]["model.layers.2.input_layernorm.weight"] = d[safetensors.SingleFile][norm]
		}, []string{"DIR/model.safetensors: tensor model.layers.2.input_layernorm.weight, F32 [16], is not expected"}},
		"a name that only ends like a frequency": {true, func(d directory) {
			d[safetensors.SingleFile]["my_rotary_emb.inv_freq"] = d[safetensors.SingleFile][norm]
		}, []string{"tensor my_rotary_emb.inv_freq, F32 [16], is not expected"}},
		"a tied head that differs": {true, func(d directory) {
			other := d[safetensors.SingleFile][model.EmbedName]
			other.data = slices.Clone(other.data)
			other.data[len(other.data)-1] ^= 1
			d[safetensors.SingleFile]["lm_head.weight"] = other
		}, []string{"DIR/model.safetensors: tensor lm_head.weight is expected to be a copy of " + model.EmbedName + ", but differs", `"tie_word_embeddings": false`}},
		"a tied head of another type": {true, func(d directory) {
			embed := d[safetensors.SingleFile][model.EmbedName]
			d[safetensors.SingleFile]["lm_head.weight"] = tensor{safetensors.BF16, embed.shape, make([]byte, len(embed.data)/2)}
		}, []string{"tensor lm_head.weight is expected to be a copy"}},
		"a tied head that is transposed": {true, func(d directory) {
			other := d[safetensors.SingleFile][model.EmbedName]
			other.shape = []int64{16, 33}
			d[safetensors.SingleFile]["lm_head.weight"] = other
		}, []string{"tensor lm_head.weight is expected to be a copy"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			d, _ := directoryOf(tiny(c.tied), safetensors.F32, 1)
			c.change(d)
			dir := d.write(t)
			_, err := checkpoint.OpenWeights(dir, tiny(c.tied))
			for i := range c.says {
				c.says[i] = strings.ReplaceAll(c.says[i], "DIR", dir)
			}
			says(t, err, c.says...)
			if lines := strings.Count(err.Error(), "\n"); lines != 1 {
				t.Errorf("%d mistakes, want 1:\n%v", lines, err)
			}
			nothingOpen(t, dir)
		})
	}
}

func TestAllMistakesOfADirectoryAreInOneError(t *testing.T) {
	d, _ := directoryOf(tiny(false), safetensors.F32, 3)
	d.remove(model.NormName)
	d.remove("lm_head.weight")
	d.change("model.layers.0.mlp.up_proj.weight", func(x *tensor) { x.shape, x.typ = []int64{16, 20}, safetensors.I32 })
	d[safetensors.ShardFile(2, 3)]["transformer.h.0.attn.bias"] = tensor{safetensors.U8, []int64{1}, []byte{1}}
	dir := d.write(t)
	_, err := checkpoint.OpenWeights(dir, tiny(false))
	says(t, err, dir,
		"tensor model.norm.weight is missing", "tensor lm_head.weight is missing",
		"tensor model.layers.0.mlp.up_proj.weight has the shape [16 20], expected [20 16]",
		"tensor model.layers.0.mlp.up_proj.weight has the type I32",
		dir+"/"+safetensors.ShardFile(2, 3)+": tensor transformer.h.0.attn.bias, U8 [1], is not expected")
	if lines := strings.Count(err.Error(), "\n"); lines != 5 {
		t.Errorf("%d mistakes, want 5:\n%v", lines, err)
	}
}

func TestTheWeightsOfAnotherModelGiveAShortError(t *testing.T) {
	d, _ := directoryOf(tiny(true), safetensors.F32, 1)
	cfg := tiny(true)
	cfg.Hidden, cfg.HeadSize, cfg.Layers = 32, 8, 40
	_, err := checkpoint.OpenWeights(d.write(t), cfg)
	says(t, err, "has the shape [33 16], expected [33 32]", "\nand ")
	if lines := strings.Count(err.Error(), "\n"); lines != 21 {
		t.Errorf("%d lines about mistakes, want 20 and a count:\n%v", lines, err)
	}
}

func TestATruncatedShardIsRefused(t *testing.T) {
	d, _ := directoryOf(tiny(true), safetensors.F32, 3)
	dir := d.write(t)
	path := filepath.Join(dir, safetensors.ShardFile(2, 3))
	whole, err := os.ReadFile(path)
	check(t, err)
	for _, size := range []int{0, 4, 100, len(whole) - 1} {
		check(t, os.WriteFile(path, whole[:size], 0o666))
		_, err := checkpoint.OpenWeights(dir, tiny(true))
		says(t, err, dir, path, "truncated")
	}
}

func TestADirectoryWithoutWeightsIsRefusedByName(t *testing.T) {
	dir := t.TempDir()
	_, err := checkpoint.OpenWeights(dir, tiny(true))
	says(t, err, dir, "model.safetensors")
}

func TestReadingMoreThanAParameterHasPanics(t *testing.T) {
	d, _ := directoryOf(tiny(true), safetensors.F32, 1)
	w, err := checkpoint.OpenWeights(d.write(t), tiny(true))
	check(t, err)
	defer w.Close()
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, model.EmbedName) {
			t.Errorf("the panic says %q, want the parameter's name", said)
		}
	}()
	w.Read(model.EmbedName, 1, make([]float32, tiny(true).Vocab*tiny(true).Hidden))
}
