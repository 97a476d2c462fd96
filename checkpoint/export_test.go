package checkpoint_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/internal/golden"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/safetensors"
)

// export is an Export of the formula's values.
func export(cfg model.Config) checkpoint.Export {
	values := formula(cfg)
	return checkpoint.Export{Config: cfg, Weight: giving(values)}
}

// giving gives an Export values.
func giving(values map[string][]float32) func(string, int, []float32) error {
	return func(name string, first int, dst []float32) error {
		copy(dst, values[name][first:])
		return nil
	}
}

// written writes x and returns where.
func written(t *testing.T, x checkpoint.Export) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	check(t, checkpoint.WriteHuggingFace(dir, x))
	return dir
}

// resolved is the configuration that a reader of the directory comes to.
func resolved(t *testing.T, dir string) model.Config {
	t.Helper()
	source, err := model.Resolve(dir)
	check(t, err)
	if !source.HasWeights {
		t.Errorf("%s has no weights", dir)
	}
	return source.Config
}

func TestWhatIsWrittenIsReadBackBitForBit(t *testing.T) {
	cases, err := golden.Names()
	check(t, err)
	for _, name := range cases {
		c, err := golden.Load(name)
		check(t, err)
		cfg, err := model.ParseConfig(c.Config, name)
		check(t, err)
		for _, limit := range []int64{0, 10_000, 1} {
			t.Run(fmt.Sprintf("%s, at most %d a file", name, limit), func(t *testing.T) {
				x := export(cfg)
				x.MaxShard = limit
				dir := written(t, x)
				if got := resolved(t, dir); got.JSON() == nil || string(got.JSON()) != string(cfg.JSON()) {
					t.Errorf("config.json is\n%s\nwant\n%s", got.JSON(), cfg.JSON())
				}
				sameBits(t, load(t, dir, cfg), c.Weights())
			})
		}
	}
}

func TestEveryBitPatternSurvives(t *testing.T) {
	cfg := tiny(true)
	x := export(cfg)
	strange := []float32{
		float32(math.NaN()), math.Float32frombits(0xff812345), float32(math.Inf(-1)),
		math.Float32frombits(1 << 31), math.SmallestNonzeroFloat32, -math.MaxFloat32, 0,
	}
	want := map[string][]float32{}
	for _, p := range cfg.Params() {
		want[p.Name] = slices.Repeat(strange, p.Len()/len(strange)+1)[:p.Len()]
	}
	x.Weight = giving(want)
	sameBits(t, load(t, written(t, x), cfg), want)
}

func TestATensorOfManyPiecesIsWrittenWhole(t *testing.T) {
	cfg := tiny(true)
	cfg.Vocab, cfg.Layers = 70_001, 1
	for _, typ := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
		_, values := directoryOf(cfg, typ, 1)
		x := checkpoint.Export{Config: cfg, Type: typ, Weight: giving(values)}
		sameBits(t, load(t, written(t, x), cfg), values)
	}
}

func TestBrainFloatsOutAreTheRoundedWeights(t *testing.T) {
	cfg := tiny(false)
	x := export(cfg)
	x.Type, x.MaxShard = safetensors.BF16, 4000
	dir := written(t, x)
	want := formula(cfg)
	for _, values := range want {
		for i, v := range values {
			// To nearest even, by the value: scaled so that a bfloat16 is a whole number.
			_, exp := math.Frexp(float64(v))
			values[i] = float32(math.Ldexp(math.RoundToEven(math.Ldexp(float64(v), 8-exp)), exp-8))
		}
	}
	sameBits(t, load(t, dir, cfg), want)
	if text := file(t, dir, "config.json"); !strings.Contains(text, `"torch_dtype": "bfloat16"`) {
		t.Errorf("config.json does not name the type:\n%s", text)
	}
}

func TestWeightsThatCameInAsBrainFloatsGoOutTheSame(t *testing.T) {
	from := filepath.Join("testdata", "transformers", "bf16")
	source, err := model.Resolve("./" + from)
	check(t, err)
	values := load(t, from, source.Config)
	dir := written(t, checkpoint.Export{
		Config: source.Config, Type: safetensors.BF16, From: from,
		Weight: giving(values),
	})
	in, err := safetensors.OpenDir(from)
	check(t, err)
	defer in.Close()
	out, err := safetensors.OpenDir(dir)
	check(t, err)
	defer out.Close()
	if len(in.Names()) != len(out.Names()) {
		t.Errorf("%d tensors, want %d", len(out.Names()), len(in.Names()))
	}
	for _, name := range in.Names() {
		a, _ := in.Tensor(name)
		b, ok := out.Tensor(name)
		if !ok || a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) || string(a.Data) != string(b.Data) {
			t.Errorf("%s is not what it was", name)
		}
	}
}

func TestAnExportIsSplitIntoShardsWithAnIndex(t *testing.T) {
	cfg := tiny(false)
	x := export(cfg)
	x.MaxShard = 3000
	dir := written(t, x)
	var index struct {
		Metadata struct {
			TotalSize int64 `json:"total_size"`
		} `json:"metadata"`
		Map map[string]string `json:"weight_map"`
	}
	check(t, json.Unmarshal([]byte(file(t, dir, safetensors.IndexFile)), &index))
	if want := 4 * cfg.NumParams(); index.Metadata.TotalSize != want {
		t.Errorf("total_size %d, want %d", index.Metadata.TotalSize, want)
	}
	shards, err := filepath.Glob(filepath.Join(dir, "model-*.safetensors"))
	check(t, err)
	if len(shards) < 4 {
		t.Fatalf("%d shards, want several", len(shards))
	}
	found := map[string]string{}
	for i, path := range shards {
		if want := safetensors.ShardFile(i+1, len(shards)); filepath.Base(path) != want {
			t.Errorf("shard %s, want %s", filepath.Base(path), want)
		}
		f, err := safetensors.Open(path)
		check(t, err)
		defer f.Close()
		if f.Metadata()["format"] != "pt" {
			t.Errorf("%s has the metadata %v", path, f.Metadata())
		}
		var bytes int
		for _, name := range f.Names() {
			tensor, _ := f.Tensor(name)
			bytes += len(tensor.Data)
			found[name] = filepath.Base(path)
		}
		if bytes > 3000 && len(f.Names()) > 1 {
			t.Errorf("%s has %d bytes of weights in %d tensors", path, bytes, len(f.Names()))
		}
	}
	if len(found) != len(cfg.Params()) || len(index.Map) != len(found) {
		t.Errorf("%d tensors in shards, %d in the index, want %d", len(found), len(index.Map), len(cfg.Params()))
	}
	for name, in := range found {
		if index.Map[name] != in {
			t.Errorf("the index has %s in %q, it is in %s", name, index.Map[name], in)
		}
	}
}

func TestTwoShardsHaveAnIndexAndOneHasNone(t *testing.T) {
	cfg := tiny(true)
	all := 4 * cfg.NumParams()
	for limit, want := range map[int64][]string{
		all:     {"config.json", "model.safetensors"},
		all - 1: {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", safetensors.IndexFile},
	} {
		x := export(cfg)
		x.MaxShard = limit
		dir := written(t, x)
		if got := listing(t, dir); !slices.Equal(got, want) {
			t.Errorf("of %d bytes a file there is %q, want %q", limit, got, want)
		}
		sameBits(t, load(t, dir, cfg), formula(cfg))
	}
}

func TestATiedModelWritesNoHead(t *testing.T) {
	for _, tied := range []bool{true, false} {
		d, err := safetensors.OpenDir(written(t, export(tiny(tied))))
		check(t, err)
		defer d.Close()
		if _, has := d.Tensor("lm_head.weight"); has == tied {
			t.Errorf("tied %v: lm_head.weight is there: %v", tied, has)
		}
	}
}

func TestWeightIsAskedForTheParametersInOrder(t *testing.T) {
	x := export(tiny(true))
	x.MaxShard = 3000
	var asked, want []string
	give := x.Weight
	x.Weight = func(name string, first int, dst []float32) error {
		asked = append(asked, name)
		return give(name, first, dst)
	}
	dir := written(t, x)
	for _, p := range x.Config.Params() {
		want = append(want, p.Name)
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked for %v, want %v", asked, want)
	}
	sameBits(t, load(t, dir, x.Config), formula(x.Config))
}

// Whatever fails, the directory does not appear and nothing stays beside it.
func TestAFailedExportLeavesNothing(t *testing.T) {
	for sentence, c := range map[string]struct {
		change func(t *testing.T, x *checkpoint.Export)
		says   string
	}{
		"values that cannot be had": {func(t *testing.T, x *checkpoint.Export) {
			give := x.Weight
			x.Weight = func(name string, first int, dst []float32) error {
				if name == model.NormName {
					return errors.New("the device is gone")
				}
				return give(name, first, dst)
			}
		}, "the device is gone"},
		"a tokenizer that is no JSON": {func(t *testing.T, x *checkpoint.Export) {
			x.Tokenizer, x.EndOfText = []byte("{"), "<|endoftext|>"
		}, "tokenizer.json: "},
		"an end of text that the tokenizer lacks": {func(t *testing.T, x *checkpoint.Export) {
			x.Tokenizer, x.EndOfText = []byte(`{"added_tokens":[{"id":1,"content":"</s>"}]}`), "<|endoftext|>"
		}, "tokenizer.json has no token <|endoftext|>, the end of text"},
		"a source whose config.json is broken": {func(t *testing.T, x *checkpoint.Export) {
			x.From = t.TempDir()
			check(t, os.WriteFile(filepath.Join(x.From, "config.json"), []byte("["), 0o666))
		}, "config.json: "},
		"a source whose tokenizer is a link that leads nowhere": {func(t *testing.T, x *checkpoint.Export) {
			x.From = t.TempDir()
			check(t, os.Symlink("gone", filepath.Join(x.From, "tokenizer.json")))
		}, "tokenizer.json: no such file"},
		"a source whose vocabulary is a directory": {func(t *testing.T, x *checkpoint.Export) {
			x.From = t.TempDir()
			check(t, os.Mkdir(filepath.Join(x.From, "vocab.json"), 0o777))
		}, "vocab.json: not a regular file"},
		"a source that is not there": {func(t *testing.T, x *checkpoint.Export) {
			x.From = "no/such/directory"
		}, "no/such/directory, to take the tokenizer from, is no directory"},
		"two tokenizers": {func(t *testing.T, x *checkpoint.Export) {
			x.From, x.Tokenizer = t.TempDir(), []byte("{}")
		}, "both a tokenizer and a directory"},
		"a type that is not written": {func(t *testing.T, x *checkpoint.Export) {
			x.Type = safetensors.F16
		}, "not as F16"},
		"a shard of less than nothing": {func(t *testing.T, x *checkpoint.Export) {
			x.MaxShard = -1
		}, "-1 bytes"},
	} {
		t.Run(sentence, func(t *testing.T) {
			x := export(tiny(true))
			c.change(t, &x)
			parent := t.TempDir()
			err := checkpoint.WriteHuggingFace(filepath.Join(parent, "model"), x)
			says(t, err, c.says)
			nothingOpen(t, parent)
			if got := listing(t, parent); len(got) != 0 {
				t.Errorf("%q stay behind", got)
			}
		})
	}
}

func TestAPanicOfWeightLeavesNothing(t *testing.T) {
	parent := t.TempDir()
	x := export(tiny(true))
	x.MaxShard = 3000
	give := x.Weight
	x.Weight = func(name string, first int, dst []float32) error {
		if name == "model.layers.1.self_attn.q_proj.weight" {
			panic("gone")
		}
		return give(name, first, dst)
	}
	defer func() {
		if got := recover(); got != "gone" {
			t.Errorf("recovered %v", got)
		}
		if got := listing(t, parent); len(got) != 0 {
			t.Errorf("%q stay behind", got)
		}
	}()
	checkpoint.WriteHuggingFace(filepath.Join(parent, "model"), x)
}

// The limit on a file's size stands for a disk that is full: a write fails in
// the midst of a shard. It holds for a whole process, hence one of its own.
func TestADiskThatIsFullLeavesNothing(t *testing.T) {
	const inside = "GOFSDP_TEST_SMALL_FILES"
	if os.Getenv(inside) == "" {
		test := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		test.Env = append(os.Environ(), inside+"=1")
		if out, err := test.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	parent := t.TempDir()
	check(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 5000, Max: unix.RLIM_INFINITY}))
	x := export(tiny(true))
	asked, give := 0, x.Weight
	x.Weight = func(name string, first int, dst []float32) error {
		asked++
		return give(name, first, dst)
	}
	err := checkpoint.WriteHuggingFace(filepath.Join(parent, "model"), x)
	if asked == len(x.Config.Params()) {
		t.Error("all weights were asked for, long after the disk was full")
	}
	if !errors.Is(err, unix.EFBIG) {
		t.Errorf("the error is %v, want a file that is too large", err)
	}
	says(t, err, "writing the model to "+filepath.Join(parent, "model"), safetensors.SingleFile)
	if got := listing(t, parent); len(got) != 0 {
		t.Errorf("%q stay behind", got)
	}
}

func TestAPlaceThatCannotBeWrittenIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(file, nil, 0o666))
	dir := filepath.Join(file, "model")
	err := checkpoint.WriteHuggingFace(dir, export(tiny(true)))
	says(t, err, "writing the model to "+dir)
	if !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("the error is %v, want one about the parent, which is no directory", err)
	}
	dir = filepath.Join(t.TempDir(), "no", "model")
	err = checkpoint.WriteHuggingFace(dir, export(tiny(true)))
	says(t, err, dir)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the error is %v, want one about the parent, which is not there", err)
	}
}

func TestAnExistingDirectoryIsRefusedByName(t *testing.T) {
	parent := t.TempDir()
	for name, put := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o777) },
		"file":      func(path string) error { return os.WriteFile(path, nil, 0o666) },
		"link":      func(path string) error { return os.Symlink("nowhere", path) },
	} {
		dir := filepath.Join(parent, name)
		check(t, put(dir))
		says(t, checkpoint.WriteHuggingFace(dir, export(tiny(true))), dir+" exists already")
	}
	if got := listing(t, parent); !slices.Equal(got, []string{"directory", "file", "link"}) {
		t.Errorf("there is %q now", got)
	}
}

func TestADirectoryMadeMeanwhileIsNotOverwritten(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "model")
	x := export(tiny(true))
	give := x.Weight
	x.Weight = func(name string, first int, dst []float32) error {
		check(t, os.MkdirAll(filepath.Join(dir, "theirs"), 0o777))
		return give(name, first, dst)
	}
	says(t, checkpoint.WriteHuggingFace(dir, x), dir)
	if got := listing(t, parent); !slices.Equal(got, []string{"model"}) {
		t.Errorf("there is %q", got)
	}
	if got := listing(t, dir); !slices.Equal(got, []string{"theirs"}) {
		t.Errorf("the other directory has %q", got)
	}
}

func TestANameWithASlashAtItsEndIsTheSameDirectory(t *testing.T) {
	parent := t.TempDir()
	check(t, checkpoint.WriteHuggingFace(parent+"/model/", export(tiny(true))))
	if got := listing(t, parent); !slices.Equal(got, []string{"model"}) {
		t.Errorf("there is %q", got)
	}
	if got := listing(t, filepath.Join(parent, "model")); !slices.Equal(got, []string{"config.json", "model.safetensors"}) {
		t.Errorf("the model has %q", got)
	}
}

func file(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	check(t, err)
	return string(text)
}
