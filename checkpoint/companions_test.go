package checkpoint_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/model"
)

// fields reads a JSON object.
func fields(t *testing.T, dir, name string) map[string]any {
	t.Helper()
	var got map[string]any
	check(t, json.Unmarshal([]byte(file(t, dir, name)), &got))
	return got
}

func TestATokenizerOfOurOwnGetsWhatTransformersNeeds(t *testing.T) {
	tokenizer, err := os.ReadFile(filepath.Join("..", "data", "tokenizer", "testdata", "trained.tokenizer.json"))
	check(t, err)
	x := export(tiny(true))
	x.Tokenizer, x.EndOfText = tokenizer, "<|endoftext|>"
	dir := written(t, x)
	if file(t, dir, "tokenizer.json") != string(tokenizer) {
		t.Error("tokenizer.json has changed")
	}
	for name, want := range map[string]map[string]any{
		"tokenizer_config.json": {
			"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
			"model_max_length": 64.0, "clean_up_tokenization_spaces": false,
			"model_input_names": []any{"input_ids", "attention_mask"},
		},
		"generation_config.json": {"eos_token_id": 898.0},
	} {
		if got := fields(t, dir, name); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
		if text := file(t, dir, name); strings.Contains(text, "\\u") {
			t.Errorf("%s is hard to read:\n%s", name, text)
		}
	}
	if got := fields(t, dir, "config.json")["eos_token_id"]; got != 898.0 {
		t.Errorf("config.json has the end of text %v", got)
	}
	want := []string{"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
	if got := listing(t, dir); !slices.Equal(got, want) {
		t.Errorf("there is %q, want %q", got, want)
	}
	resolved(t, dir)
}

func TestAnEndOfTextMayBeATokenLikeOthers(t *testing.T) {
	x := export(tiny(true))
	x.Tokenizer, x.EndOfText = []byte(`{"added_tokens":[{"id":5,"content":"<pad>"}],"model":{"vocab":{"a":0,"</s>":2}}}`), "</s>"
	dir := written(t, x)
	if got := fields(t, dir, "generation_config.json")["eos_token_id"]; got != 2.0 {
		t.Errorf("generation ends at %v, want 2", got)
	}
}

func TestATokenizerWithoutAnEndOfTextSaysNothingOfOne(t *testing.T) {
	x := export(tiny(true))
	x.Tokenizer = []byte(`{"added_tokens":[]}`)
	dir := written(t, x)
	if got := fields(t, dir, "tokenizer_config.json"); got["eos_token"] != nil {
		t.Errorf("tokenizer_config.json is %v", got)
	}
	want := []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
	if got := listing(t, dir); !slices.Equal(got, want) {
		t.Errorf("there is %q, want %q", got, want)
	}
}

func TestTheFilesOfTheModelThatItCameFromGoAlong(t *testing.T) {
	from := filepath.Join("testdata", "transformers", "fp32-sharded")
	source, err := model.Resolve("./" + from)
	check(t, err)
	x := export(source.Config)
	x.From = from
	dir := written(t, x)
	carried := []string{"chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
	for _, name := range carried {
		if file(t, dir, name) != file(t, from, name) {
			t.Errorf("%s has changed", name)
		}
	}
	want := append([]string{"config.json", "model.safetensors"}, carried...)
	slices.Sort(want)
	if got := listing(t, dir); !slices.Equal(got, want) {
		t.Errorf("there is %q, want %q", got, want)
	}
	got, was := fields(t, dir, "config.json"), fields(t, from, "config.json")
	for _, key := range []string{"bos_token_id", "eos_token_id", "pad_token_id"} {
		if !reflect.DeepEqual(got[key], was[key]) {
			t.Errorf("config.json has the %s %v, it was %v", key, got[key], was[key])
		}
	}
	if len(was) == 0 || was["bos_token_id"] != 3.0 {
		t.Errorf("the source has the beginning of text %v", was["bos_token_id"])
	}
	if got["torch_dtype"] != "float32" {
		t.Errorf("config.json has the type %v", got["torch_dtype"])
	}
	if string(resolved(t, dir).JSON()) != string(source.Config.JSON()) {
		t.Errorf("config.json is another model's:\n%s", file(t, dir, "config.json"))
	}
}

func TestAnIDThatTheSourceLeavesToTransformersStaysSo(t *testing.T) {
	x := export(tiny(true))
	x.From = t.TempDir()
	check(t, os.WriteFile(filepath.Join(x.From, "config.json"), []byte(`{"eos_token_id": [7, 8], "pad_token_id": null}`), 0o666))
	got := fields(t, written(t, x), "config.json")
	if want := []any{7.0, 8.0}; !reflect.DeepEqual(got["eos_token_id"], want) {
		t.Errorf("eos_token_id is %v, want %v", got["eos_token_id"], want)
	}
	if id, ok := got["pad_token_id"]; !ok || id != nil {
		t.Errorf("pad_token_id is %v, %v, want null", id, ok)
	}
	if id, ok := got["bos_token_id"]; ok {
		t.Errorf("bos_token_id is %v, want none", id)
	}
}

// A Llama's end of text would be token 2 where none is named.
func TestIDsThatNobodyKnowsAreNull(t *testing.T) {
	got := fields(t, written(t, export(tiny(true))), "config.json")
	for _, key := range []string{"bos_token_id", "eos_token_id", "pad_token_id"} {
		if id, ok := got[key]; !ok || id != nil {
			t.Errorf("%s is %v, %v, want null", key, id, ok)
		}
	}
}

func TestEveryFileThatATokenizerMayHaveGoesAlongThroughLinks(t *testing.T) {
	blobs, from := t.TempDir(), t.TempDir()
	names := []string{
		"added_tokens.json", "chat_template.jinja", "chat_template.json", "generation_config.json", "merges.txt",
		"special_tokens_map.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json",
	}
	for _, name := range append(names, "README.md", "optimizer.pt", "model.safetensors", "pytorch_model.bin") {
		check(t, os.WriteFile(filepath.Join(blobs, name), []byte("this is "+name), 0o666))
		check(t, os.Symlink(filepath.Join(blobs, name), filepath.Join(from, name)))
	}
	x := export(tiny(true))
	x.From = from
	dir := written(t, x)
	for _, name := range names {
		if got := file(t, dir, name); got != "this is "+name {
			t.Errorf("%s is %q", name, got)
		}
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s is no file of its own", name)
		}
	}
	if got := len(listing(t, dir)); got != len(names)+2 {
		t.Errorf("there is %q, want the files above, config.json and the weights", listing(t, dir))
	}
	sameBits(t, load(t, dir, x.Config), formula(x.Config))
}
