package safetensors

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shards writes a directory of two shards, tensors a and b in the first, c in
// the second, and returns their index.
func shards(t *testing.T, dir string) map[string]string {
	t.Helper()
	one, two := ShardFile(1, 2), ShardFile(2, 2)
	write(t, filepath.Join(dir, one), Entry{"b", U8, []int64{4}}, Entry{"a", F32, []int64{2}})
	write(t, filepath.Join(dir, two), Entry{"c", BF16, []int64{3}})
	return map[string]string{"a": one, "b": one, "c": two}
}

func TestADirectoryOfShardsReadsLikeOneFile(t *testing.T) {
	dir := t.TempDir()
	if err := WriteIndex(dir, shards(t, dir), 18); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if got := d.Names(); !slices.Equal(got, []string{"b", "a", "c"}) {
		t.Errorf("names %q", got)
	}
	if got := len(d.Files()); got != 2 {
		t.Errorf("%d files", got)
	}
	got, ok := d.Tensor("c")
	if !ok || got.DType != BF16 || len(got.Data) != 6 || got.File != filepath.Join(dir, ShardFile(2, 2)) {
		t.Errorf("c is %+v (found: %v)", got, ok)
	}
	if _, ok := d.Tensor("nobody"); ok {
		t.Error("a tensor was found that is not there")
	}
}

func TestTheIndexIsWhatHuggingFaceToolsExpect(t *testing.T) {
	dir := t.TempDir()
	if err := WriteIndex(dir, map[string]string{"b": "2", "a": "1"}, 18); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "model.safetensors.index.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"metadata\": {\n    \"total_size\": 18\n  },\n  \"weight_map\": {\n    \"a\": \"1\",\n    \"b\": \"2\"\n  }\n}\n"
	if string(text) != want {
		t.Errorf("got %s", text)
	}
	if got := files(t, dir); len(got) != 1 {
		t.Errorf("the directory holds %q", got)
	}
}

func TestATensorThatTheIndexDoesNotListIsNotThere(t *testing.T) {
	dir := t.TempDir()
	weights := shards(t, dir)
	delete(weights, "a")
	if err := WriteIndex(dir, weights, 10); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, ok := d.Tensor("a"); ok || !slices.Equal(d.Names(), []string{"b", "c"}) {
		t.Errorf("names %q", d.Names())
	}
}

func TestASingleFileComesBeforeAnIndex(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, SingleFile), Entry{"only", U8, []int64{1}})
	if err := WriteIndex(dir, shards(t, dir), 18); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if got := d.Names(); !slices.Equal(got, []string{"only"}) {
		t.Errorf("names %q", got)
	}
}

func TestAllMistakesOfAnIndexAreToldAtOnce(t *testing.T) {
	dir := t.TempDir()
	weights := shards(t, dir)
	weights["d"] = ShardFile(1, 2)
	weights["c"] = ShardFile(1, 2)
	weights["e"] = "absent.safetensors"
	weights["f"] = "../outside.safetensors"
	weights["g"] = ""
	weights["h"] = "broken.safetensors"
	weights["i"] = ".."
	weights["j"] = "inside/x.safetensors"
	if err := os.WriteFile(filepath.Join(dir, "broken.safetensors"), image("{", 0), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteIndex(dir, weights, 0); err != nil {
		t.Fatal(err)
	}
	_, err := OpenDir(dir)
	for _, want := range []string{
		filepath.Join(dir, IndexFile), `tensor "d" is not in model-00001-of-00002.safetensors`, `tensor "c" is not in`,
		"absent.safetensors: no such file", `"../outside.safetensors", which is no plain file name`, `the file ""`, `the file ".."`, `the file "inside/x.safetensors"`, "broken.safetensors",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestABrokenIndexIsRefusedWithTheOffset(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"an empty file":            {"", "offset 0"},
		"no map":                   {`{"metadata":{"total_size":1}}`, "no weight_map"},
		"a map that is a list":     {`{"weight_map":[]}`, "offset 15"},
		"a file that is a number":  {`{"weight_map":{"a":1}}`, `tensor "a"`},
		"a tensor twice":           {`{"weight_map":{"a":"x","a":"y"}}`, `duplicate key "a"`},
		"two maps":                 {`{"weight_map":{},"weight_map":{}}`, "duplicate key"},
		"JSON that ends early":     {`{"weight_map":{"a":"x"`, "unexpected EOF"},
		"something after the end":  {`{"weight_map":{}} 1`, "after the end"},
		"metadata that is no JSON": {`{"metadata":{,"weight_map":{}}`, "invalid JSON"},
		"bytes that are not UTF-8": {"{\"weight_map\":{\"\xff\":\"x\"}}", "offset 16: not UTF-8"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, IndexFile), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := OpenDir(dir)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), IndexFile) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestADirectoryWithoutWeightsIsRefusedByName(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenDir(dir); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), IndexFile) {
		t.Errorf("got %v", err)
	}
}

func TestOtherKeysOfAnIndexAreIgnored(t *testing.T) {
	dir := t.TempDir()
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1.5e10}, "weight_map": shards(t, dir), "more": []int{1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, IndexFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, ok := d.Tensor("a"); ok || len(d.Names()) != 0 {
		t.Error("there are tensors after Close")
	}
}
