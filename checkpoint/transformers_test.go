package checkpoint_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/internal/golden"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/safetensors"
)

// Everything that an Export can be is written and given to transformers, which
// must read the same bits and come to the golden numbers. See check.py for how
// to run it.
func TestTransformersReadsWhatIsWritten(t *testing.T) {
	python := os.Getenv("GOFSDP_PYTHON")
	if python == "" {
		t.Skip("GOFSDP_PYTHON names no Python with tools/golden/model/requirements.txt")
	}
	cases, err := golden.Dir()
	check(t, err)
	names, err := golden.Names()
	check(t, err)
	root := t.TempDir()
	args := []string{filepath.Join("..", "tools", "golden", "huggingface", "check.py"), cases}
	write := func(kind, other, name string, x checkpoint.Export) {
		dir := filepath.Join(root, name)
		check(t, checkpoint.WriteHuggingFace(dir, x))
		args = append(args, kind, other, dir)
	}
	for _, name := range names {
		c, err := golden.Load(name)
		check(t, err)
		cfg, err := model.ParseConfig(c.Config, name)
		check(t, err)
		x := export(cfg)
		write("weights", name, name+" in one file", x)
		x.MaxShard = 20_000
		write("weights", name, name+" in shards", x)
		x.Type = safetensors.BF16
		write("weights", name, name+" in bf16 shards", x)
	}

	ours := filepath.Join("..", "data", "tokenizer", "testdata", "trained.tokenizer.json")
	for _, family := range []string{"qwen2", "qwen3", "llama"} {
		cfg := tiny(true)
		cfg.Family, cfg.QKVBias, cfg.QKNorm = family, family == "qwen2", family == "qwen3"
		cfg.Vocab = 900
		x := export(cfg)
		x.Tokenizer, err = os.ReadFile(ours)
		check(t, err)
		x.EndOfText = "<|endoftext|>"
		write("tokenizer", ours, family+" with a tokenizer of our own", x)
	}

	from := filepath.Join("testdata", "transformers", "fp32-sharded")
	source, err := model.Resolve("./" + from)
	check(t, err)
	values := load(t, from, source.Config)
	write("carried", from, "fine-tuned", checkpoint.Export{
		Config: source.Config, From: from,
		Weight: giving(values),
	})

	out, err := exec.Command(python, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := fmt.Sprintf("%d directories checked", (len(args)-2)/3); !strings.Contains(string(out), want) {
		t.Errorf("the script does not say %q", want)
	}
	t.Logf("%s", out)
}
