package model

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/internal/golden"
)

// The fields of published files, in the order and with the oddities that they have there.
const (
	publishedQwen2 = `{
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 1536, "initializer_range": 0.02,
  "intermediate_size": 8960, "max_position_embeddings": 131072, "max_window_layers": 28,
  "model_type": "qwen2", "num_attention_heads": 12, "num_hidden_layers": 28,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 131072, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 151936
}`
	publishedQwen3 = `{
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936
}`
	publishedSmolLM2 = `{
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576,
  "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true,
  "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
  "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.40.1", "use_cache": true, "vocab_size": 49152
}`
	publishedLlama31 = `{
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
  "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
  "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.43.0", "use_cache": true, "vocab_size": 128256
}`
)

// The least that each family's file must say.
const (
	leastQwen2 = `{"model_type": "qwen2", "vocab_size": 33, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 37}`
	leastQwen3 = `{"model_type": "qwen3", "vocab_size": 33, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 37}`
	leastLlama = `{"model_type": "llama", "vocab_size": 33, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 37}`
)

// with adds fields to a file, or puts new values to the fields it has.
func with(file string, fields ...string) string {
	body := strings.TrimSuffix(strings.TrimPrefix(file, "{"), "}")
	for _, field := range fields {
		key, _, _ := strings.Cut(field, ":")
		if i := strings.Index(body, key+":"); i >= 0 {
			end := strings.IndexByte(body[i:], ',')
			if end < 0 {
				end = len(body) - i
			}
			body = body[:i] + field + body[i+end:]
			continue
		}
		body += ", " + field
	}
	return "{" + body + "}"
}

func TestPublishedFilesAreRead(t *testing.T) {
	llama31 := Config{
		Family: "llama", Vocab: 128256, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadSize: 128, MLP: 14336,
		MaxPositions: 131072, NormEps: 1e-5, RopeTheta: 500000, InitStd: 0.02,
		RopeScaling: &Llama3Scaling{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 8192},
	}
	shape := func(name string) Config {
		c, ok := Builtin(name)
		if !ok {
			t.Fatalf("no built-in shape %s", name)
		}
		return c
	}
	for name, test := range map[string]struct {
		file string
		want Config
	}{
		"Qwen2.5 1.5B is the built-in shape":  {publishedQwen2, shape("qwen2.5-1.5b")},
		"Qwen3 0.6B is the built-in shape":    {publishedQwen3, shape("qwen3-0.6b")},
		"SmolLM2 135M is the built-in shape":  {publishedSmolLM2, shape("smollm2-135m")},
		"Llama 3.1 8B has scaled frequencies": {publishedLlama31, llama31},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseConfig([]byte(test.file), "config.json")
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Fatalf("read  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func TestWhatAFileLeavesOutIsWhatTransformersFillsIn(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		want Config
	}{
		"qwen2": {leastQwen2, Config{
			Family: "qwen2", Vocab: 33, Hidden: 96, Layers: 2, Heads: 6, KVHeads: 2, HeadSize: 16, MLP: 37,
			MaxPositions: 32768, NormEps: 1e-6, RopeTheta: 10000, QKVBias: true, InitStd: 0.02,
		}},
		"qwen3 has heads of 128": {leastQwen3, Config{
			Family: "qwen3", Vocab: 33, Hidden: 96, Layers: 2, Heads: 6, KVHeads: 2, HeadSize: 128, MLP: 37,
			MaxPositions: 32768, NormEps: 1e-6, RopeTheta: 10000, QKNorm: true, InitStd: 0.02,
		}},
		"llama has a key head for each query head": {leastLlama, Config{
			Family: "llama", Vocab: 33, Hidden: 96, Layers: 2, Heads: 6, KVHeads: 6, HeadSize: 16, MLP: 37,
			MaxPositions: 2048, NormEps: 1e-6, RopeTheta: 10000, InitStd: 0.02,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseConfig([]byte(test.file), "config.json")
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Fatalf("read  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func TestFilesOfTransformers5AreReadAndComeBackEqual(t *testing.T) {
	names, err := golden.Names()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		c, err := golden.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseConfig(c.Config, name+"/config.json")
		if err != nil {
			t.Error(err)
			continue
		}
		if scaled := name == "llama-scaled" || name == "packed"; (got.RopeScaling != nil) != scaled {
			t.Errorf("%s: scaling %+v", name, got.RopeScaling)
		}
		again, err := ParseConfig(got.JSON(), "written")
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%s: wrote %s\nread back %+v, %v\nwant %+v", name, got.JSON(), again, err, got)
		}
	}
}

func TestEveryBuiltInShapeComesBackEqualFromItsFile(t *testing.T) {
	for _, name := range BuiltinNames() {
		c, _ := Builtin(name)
		got, err := ParseConfig(c.JSON(), name)
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%s: read back %+v, %v\nwant %+v", name, got, err, c)
		}
	}
}

// It runs only where GOFSDP_PYTHON names a Python that has transformers 5.
func TestTransformersLoadsWhatIsWritten(t *testing.T) {
	python := os.Getenv("GOFSDP_PYTHON")
	if python == "" {
		t.Skip("GOFSDP_PYTHON names no Python with transformers")
	}
	configs := map[string]string{}
	for _, name := range BuiltinNames() {
		c, _ := Builtin(name)
		configs[name] = string(c.JSON())
	}
	scaled, err := ParseConfig([]byte(publishedLlama31), "config.json")
	if err != nil {
		t.Fatal(err)
	}
	configs["llama3"] = string(scaled.JSON())
	names, err := golden.Names()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names { // of each family one at least, which may have no built-in shape
		c, err := golden.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := ParseConfig(c.Config, name)
		if err != nil {
			t.Fatal(err)
		}
		configs[name] = string(parsed.JSON())
	}
	for name, text := range configs {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/config.json", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(python, "-c", `
import sys, transformers
c = transformers.AutoConfig.from_pretrained(sys.argv[1])
c.save_pretrained(sys.argv[1])
`, dir).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
			continue
		}
		saved, err := os.ReadFile(dir + "/config.json")
		if err != nil {
			t.Fatal(err)
		}
		want, _ := ParseConfig([]byte(text), name)
		got, err := ParseConfig(saved, name)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: transformers saved %s\nread as %+v, %v\nwant %+v", name, saved, got, err, want)
		}
	}
}

func TestWhatWouldChangeTheNumbersIsRefusedByNameAndValue(t *testing.T) {
	for name, test := range map[string]struct{ file, want string }{
		"another activation":                {with(leastQwen2, `"hidden_act": "gelu"`), `hidden_act: "gelu" is not supported, only "silu"`},
		"a sliding window in use":           {with(leastQwen2, `"use_sliding_window": true`), `use_sliding_window: true is not supported, only false`},
		"a llama's sliding window":          {with(leastLlama, `"sliding_window": 512`), `sliding_window: 512 is not supported`},
		"attention biases of a llama":       {with(leastLlama, `"attention_bias": true`), `attention_bias: true is not supported, only false`},
		"attention biases of a qwen3":       {with(leastQwen3, `"attention_bias": true`), `attention_bias: true is not supported, only false`},
		"a qwen2 without biases":            {with(leastQwen2, `"attention_bias": false`), `attention_bias: false is not supported, only true`},
		"biases in the MLP":                 {with(leastLlama, `"mlp_bias": true`), `mlp_bias: true is not supported, only false`},
		"dropout":                           {with(leastQwen2, `"attention_dropout": 0.1`), `attention_dropout: 0.1 is not supported, only 0`},
		"quantised weights":                 {with(leastQwen2, `"quantization_config": {"bits": 4}`), `quantization_config: {"bits":4} is not supported`},
		"YaRN":                              {with(leastQwen2, `"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 32}`), `rope_scaling.rope_type: "yarn" is not supported, only default and llama3`},
		"linear scaling, newly written":     {with(leastQwen2, `"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}`), `rope_parameters.rope_type: "linear" is not supported, only default and llama3`},
		"two kinds of scaling":              {with(leastQwen2, `"rope_scaling": {"type": "llama3", "rope_type": "default"}`), `rope_scaling.type: "llama3" differs from rope_type, "default"`},
		"scaling said in two places":        {with(leastQwen2, `"rope_scaling": {"type": "default"}`, `"rope_parameters": {"rope_type": "default"}`), `rope_scaling: is there beside rope_parameters`},
		"scaling without its factor":        {with(leastLlama, `"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4}`), `rope_scaling.factor: is missing`},
		"scaling by less than one":          {with(leastLlama, `"rope_parameters": {"rope_type": "llama3", "factor": 0.5, "low_freq_factor": 1, "high_freq_factor": 4}`), `rope_parameters.factor: 0.5 is not 1 or more`},
		"frequencies the wrong way round":   {with(leastLlama, `"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}`), `rope_scaling.low_freq_factor: 4 is not between 0 and high_freq_factor, 1`},
		"a factor of unscaled positions":    {with(leastLlama, `"rope_scaling": {"rope_type": "default", "factor": 8}`), `rope_scaling.factor: 8: the field is unknown`},
		"positions for each kind of layer":  {with(leastQwen2, `"rope_parameters": {"full_attention": {"rope_type": "default"}}`), `rope_parameters.full_attention: {"rope_type":"default"}: the field is unknown`},
		"two bases":                         {with(leastQwen2, `"rope_theta": 1e6`, `"rope_parameters": {"rope_theta": 1e4}`), `rope_parameters.rope_theta: 10000 differs from the file's own rope_theta, 1e+06`},
		"part of a head turned":             {with(leastQwen2, `"partial_rotary_factor": 0.5`), `partial_rotary_factor: 0.5 is not supported, only 1`},
		"pairs interleaved":                 {with(leastLlama, `"rope_interleaved": true`), `rope_interleaved: true is not supported, only false`},
		"a layer that slides":               {with(leastQwen2, `"layer_types": ["full_attention", "sliding_attention"]`), `layer_types: entry 1: "sliding_attention" is not supported, only full_attention`},
		"too few kinds of layers":           {with(leastQwen2, `"layer_types": ["full_attention"]`), `layer_types: has 1 entries for num_hidden_layers 2`},
		"experts":                           {with(leastQwen2, `"num_experts": 8`), `num_experts: 8: the field is unknown`},
		"a mixture of experts":              {with(leastQwen2, `"model_type": "qwen3_moe"`), `model_type: "qwen3_moe" is not supported, only qwen2, qwen3 and llama`},
		"code of the model's own":           {with(leastQwen2, `"auto_map": {"AutoModel": "m.M"}`), `auto_map: {"AutoModel":"m.M"}: the field is unknown`},
		"a head tied both ways":             {"{" + `"tie_word_embeddings": true, "tie_word_embeddings": false, ` + leastQwen2[1:], `tie_word_embeddings: is there twice: true and false`},
		"no family":                         {`{"vocab_size": 33}`, `model_type: is missing`},
		"a family that is a number":         {`{"model_type": 2}`, `model_type: 2 is not a string`},
		"key heads that do not divide":      {with(leastQwen2, `"num_key_value_heads": 4`), `num_key_value_heads: 4 does not divide num_attention_heads, 6`},
		"an odd head":                       {with(leastQwen3, `"head_dim": 15`), `head_dim: 15 is odd`},
		"a head of no size":                 {with(leastQwen2, `"num_attention_heads": 5`, `"num_key_value_heads": 5`), `head_dim: is missing, and hidden_size 96 is no multiple of num_attention_heads 5`},
		"a llama that transformers refuses": {with(leastLlama, `"num_attention_heads": 5`, `"head_dim": 16`), `hidden_size: 96 is no multiple of num_attention_heads, 5`},
		"a negative width":                  {with(leastQwen2, `"hidden_size": -96`), `hidden_size: -96 is not between 1 and`},
		"an immense vocabulary":             {with(leastQwen2, `"vocab_size": 99999999999`), `vocab_size: 99999999999 is not between 1 and 16777216`},
		"immense heads":                     {with(leastQwen3, `"head_dim": 4000000`), `head_dim: 6 heads of 4000000 are more than 4194304 elements`},
		"half a layer":                      {with(leastQwen2, `"num_hidden_layers": 1.5`), `num_hidden_layers: 1.5 is not a whole number`},
		"a width in words":                  {with(leastQwen2, `"hidden_size": "wide"`), `hidden_size: "wide" is not a whole number`},
		"a base of nought":                  {with(leastQwen2, `"rope_theta": 0`), `rope_theta: 0 is not above 1`},
		"a negative epsilon":                {with(leastQwen2, `"rms_norm_eps": -1e-6`), `rms_norm_eps: -1e-06 is not between 0 and 1`},
		"a spread above one":                {with(leastQwen2, `"initializer_range": 2`), `initializer_range: 2 is not between 0 and 1`},
		"scaling that is no object":         {with(leastQwen2, `"rope_scaling": 8`), `rope_scaling: 8 is not an object`},
		"a list":                            {`[]`, `config.json:1: not valid JSON: it is no object`},
		"half a file":                       {"{\"model_type\":\n \"qwen2\",\n", `config.json:3: not valid JSON: the file ends too early`},
		"a comma too many":                  {"{\"model_type\": \"qwen2\",\n}", `config.json:2: not valid JSON`},
		"a second object":                   {leastQwen2 + "{}", `config.json:1: not valid JSON: there is more after the object`},
		"an empty file":                     {"", `config.json:1: not valid JSON: the file ends too early`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseConfig([]byte(test.file), "config.json")
			if err == nil {
				t.Fatal("accepted")
			}
			var lines []string
			for line := range strings.SplitSeq(err.Error(), "\n") {
				lines = append(lines, line)
			}
			if len(lines) != 1 {
				t.Errorf("one mistake, %d errors:\n%v", len(lines), err)
			}
			if !strings.HasPrefix(lines[0], "config.json:") || !strings.Contains(lines[0], test.want) {
				t.Errorf("error %q\nwant %q", err, test.want)
			}
		})
	}
}

func TestWhatChangesNoNumberIsAccepted(t *testing.T) {
	want, err := ParseConfig([]byte(leastQwen2), "config.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{
		`"attention_dropout": 0`, `"sliding_window": 4096`, `"max_window_layers": 1`, `"use_sliding_window": false`,
		`"layer_types": null`, `"layer_types": ["full_attention", "full_attention"]`, `"quantization_config": null`,
		`"pad_token_id": 3`, `"image_token_id": 9`, `"dtype": "bfloat16"`, `"unsloth_version": "2025.1"`, `"num_experts": null`,
		`"rope_scaling": null`, `"rope_scaling": {"type": "default"}`, `"rope_scaling": {}`, `"head_dim": 16`, `"head_dim": null`,
		`"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}`,
	} {
		got, err := ParseConfig([]byte(with(leastQwen2, field)), "config.json")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", field, got, err)
		}
	}
}

func TestAllMistakesOfAFileAreNamedAtOnce(t *testing.T) {
	_, err := ParseConfig([]byte(`{
		"model_type": "llama", "vocab_size": 0, "num_attention_heads": 9, "num_key_value_heads": 3,
		"intermediate_size": "x", "hidden_act": "gelu", "surprise": [1, 2], "mlp_bias": true,
		"rope_scaling": {"rope_type": "llama3", "factor": 0}}`), "some/config.json")
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		t.Fatalf("error %v", err)
	}
	want := []string{
		"hidden_size: is missing", "num_hidden_layers: is missing", `intermediate_size: "x" is not a whole number`,
		"rope_scaling.low_freq_factor: is missing", "rope_scaling.high_freq_factor: is missing",
		"hidden_act: ", "mlp_bias: ", "surprise: [1,2]: the field is unknown",
		"vocab_size: 0 is not between 1 and", "rope_scaling.factor: 0 is not 1 or more",
	}
	got := joined.Unwrap()
	if len(got) != len(want) {
		t.Errorf("%d errors, want %d:\n%v", len(got), len(want), err)
	}
	for i := range min(len(got), len(want)) {
		if !strings.HasPrefix(got[i].Error(), "some/config.json: "+want[i]) {
			t.Errorf("error %d is %q, want %q", i, got[i], want[i])
		}
	}
}

func TestWritingAnInconsistentConfigPanics(t *testing.T) {
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "num_key_value_heads: 4 does not divide") {
			t.Fatalf("panic %q", said)
		}
	}()
	c, _ := Builtin("tiny")
	c.KVHeads = 4
	c.JSON()
}

func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{
		publishedQwen2, publishedQwen3, publishedSmolLM2, publishedLlama31, leastQwen2, leastQwen3, leastLlama,
		`{"model_type": "qwen2", "vocab_size": 1e400}`, `{"a": {"a": 1, "a": 2}}`, "{\"\xff\": 1}", `[`, ``,
		with(leastLlama, `"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}`),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseConfig(text, "config.json")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "config.json:") {
				t.Fatalf("error does not begin with the file: %v", err)
			}
			return
		}
		if mistakes := c.check(); mistakes != nil {
			t.Fatalf("accepted with %v", mistakes)
		}
		again, err := ParseConfig(c.JSON(), "written")
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%+v was written as\n%s\nand read back as %+v, %v", c, c.JSON(), again, err)
		}
	})
}
