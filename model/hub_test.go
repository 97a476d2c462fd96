package model

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const (
	firstCommit  = "8faed761d45a263340a0528343f099c05c9a4323"
	secondCommit = "8faed76000000000000000000000000000000000"
)

// cache lays out a Hub cache with two snapshots of Qwen/Qwen2.5-1.5B and returns its directory.
// The second is only reachable by its commit and a branch, and has no weights.
func cache(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, key := range []string{"HF_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(key, "")
	}
	t.Setenv("HF_HUB_CACHE", dir)
	repo := filepath.Join(dir, "models--Qwen--Qwen2.5-1.5B")
	blob := filepath.Join(repo, "blobs", "0e8c8aa8")
	put(t, blob, publishedQwen2)
	for _, commit := range []string{firstCommit, secondCommit} {
		snapshot := filepath.Join(repo, "snapshots", commit)
		if err := os.MkdirAll(snapshot, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../blobs/0e8c8aa8", filepath.Join(snapshot, "config.json")); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(repo, "snapshots", firstCommit, "model.safetensors"), "")
	put(t, filepath.Join(repo, "refs", "main"), firstCommit)
	put(t, filepath.Join(repo, "refs", "refs", "pr", "7"), secondCommit)
	return dir
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, name string, wants ...string) {
	t.Helper()
	source, err := Resolve(name)
	if err == nil {
		t.Fatalf("%s: resolved to %+v", name, source)
	}
	for _, want := range wants {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %q does not say %q", name, err, want)
		}
	}
}

func TestABuiltInNameIsAShapeWithoutWeights(t *testing.T) {
	got, err := Resolve("qwen2.5-0.5b")
	if err != nil {
		t.Fatal(err)
	}
	shape, _ := Builtin("qwen2.5-0.5b")
	if want := (Source{Name: "qwen2.5-0.5b", Config: shape}); !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, want %+v", got, want)
	}
}

func TestADirectoryIsReadWhereverItsWeightsLie(t *testing.T) {
	index := `{"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}`
	for name, test := range map[string]struct {
		files   map[string]string
		weights bool
	}{
		"a shape alone":    {map[string]string{}, false},
		"one file":         {map[string]string{"model.safetensors": ""}, true},
		"several, indexed": {map[string]string{"model.safetensors.index.json": index, "model-1.safetensors": "", "model-2.safetensors": ""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, filepath.Join(dir, "config.json"), leastLlama)
			for file, text := range test.files {
				put(t, filepath.Join(dir, file), text)
			}
			got, err := Resolve(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got.Dir != dir || got.Name != dir || got.HasWeights != test.weights || got.Revision != "" || got.Config.MLP != 37 {
				t.Fatalf("%+v", got)
			}
		})
	}
}

func TestADirectoryThatIsNotWholeIsRefused(t *testing.T) {
	index := `{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}`
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no config.json":           {map[string]string{"config.json": ""}, "not valid JSON"},
		"a configuration refused":  {map[string]string{"config.json": with(leastLlama, `"hidden_act": "gelu"`)}, `config.json: hidden_act: "gelu"`},
		"weights of PyTorch's own": {map[string]string{"pytorch_model.bin": ""}, "pytorch_model.bin: weights in PyTorch's own format are not read"},
		"a shard missing":          {map[string]string{"model.safetensors.index.json": index, "model-1.safetensors": ""}, "names files that are not there: model-2.safetensors"},
		"a shard elsewhere":        {map[string]string{"model.safetensors.index.json": `{"weight_map": {"a": "../x"}}`}, `"../x" lies outside the directory`},
		"an index of nothing":      {map[string]string{"model.safetensors.index.json": `{}`}, "weight_map names no tensor"},
		"an index that is broken":  {map[string]string{"model.safetensors.index.json": `{`}, "model.safetensors.index.json: "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, filepath.Join(dir, "config.json"), leastLlama)
			for file, text := range test.files {
				put(t, filepath.Join(dir, file), text)
			}
			refused(t, dir, test.want)
		})
	}
	empty := t.TempDir()
	refused(t, empty, "there is no "+filepath.Join(empty, "config.json"))
	file := filepath.Join(empty, "model.safetensors")
	put(t, file, "")
	refused(t, file, "is a file; give the directory")
}

func TestAHubNameIsFoundInTheCache(t *testing.T) {
	dir := cache(t)
	snapshots := filepath.Join(dir, "models--Qwen--Qwen2.5-1.5B", "snapshots")
	for name, commit := range map[string]string{
		"Qwen/Qwen2.5-1.5B":                     firstCommit,
		"Qwen/Qwen2.5-1.5B@main":                firstCommit,
		"Qwen/Qwen2.5-1.5B@" + firstCommit:      firstCommit,
		"Qwen/Qwen2.5-1.5B@" + firstCommit[:8]:  firstCommit,
		"Qwen/Qwen2.5-1.5B@refs/pr/7":           secondCommit,
		"Qwen/Qwen2.5-1.5B@" + secondCommit[:8]: secondCommit,
	} {
		got, err := Resolve(name)
		if err != nil {
			t.Error(err)
			continue
		}
		shape, _ := Builtin("qwen2.5-1.5b")
		want := Source{Name: name, Dir: filepath.Join(snapshots, commit), Config: shape, HasWeights: commit == firstCommit, Revision: commit}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// huggingface_hub takes any name, and so do caches that are filled by other tools or by hand.
func TestASnapshotMayHaveAnyName(t *testing.T) {
	repo := filepath.Join(cache(t), "models--Qwen--Qwen2.5-1.5B")
	put(t, filepath.Join(repo, "snapshots", "mine", "config.json"), publishedQwen2)
	got, err := Resolve("Qwen/Qwen2.5-1.5B@mine")
	if err != nil || got.Dir != filepath.Join(repo, "snapshots", "mine") || got.Revision != "mine" {
		t.Errorf("by its name: %+v, %v", got, err)
	}
	put(t, filepath.Join(repo, "refs", "main"), "mine\n")
	if got, err = Resolve("Qwen/Qwen2.5-1.5B"); err != nil || got.Revision != "mine" {
		t.Errorf("by the branch main: %+v, %v", got, err)
	}
}

func TestTheCacheLiesWhereHuggingFaceHasIt(t *testing.T) {
	hub := cache(t)
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, ".cache", "huggingface"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(hub, filepath.Join(home, ".cache", "huggingface", "hub")); err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string]map[string]string{
		"HF_HUB_CACHE":                {"HF_HUB_CACHE": hub, "HF_HOME": "/nowhere"},
		"HF_HUB_CACHE, from the home": {"HF_HUB_CACHE": "~/.cache/huggingface/hub"},
		"HF_HOME":                     {"HF_HOME": filepath.Join(home, ".cache", "huggingface"), "XDG_CACHE_HOME": "/nowhere"},
		"XDG_CACHE_HOME":              {"XDG_CACHE_HOME": filepath.Join(home, ".cache")},
		"the home":                    {},
	} {
		t.Run(name, func(t *testing.T) {
			for _, key := range []string{"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"} {
				t.Setenv(key, env[key])
			}
			t.Setenv("HOME", home)
			if _, err := Resolve("Qwen/Qwen2.5-1.5B"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAModelThatIsNotThereComesWithWhereItWasSoughtAndTheRemedy(t *testing.T) {
	dir := cache(t)
	repo := filepath.Join(dir, "models--Qwen--Qwen2.5-1.5B")
	refused(t, "Qwen/Qwen2.5-3B",
		"there is no "+filepath.Join(dir, "models--Qwen--Qwen2.5-3B"), "HF_HUB_CACHE",
		`"hf download Qwen/Qwen2.5-3B"`, "did you mean the built-in shape qwen2.5-3b?")
	refused(t, "Qwen/Qwen2.5-1.5B@v2",
		filepath.Join(repo, "refs", "v2"), filepath.Join(repo, "snapshots", "v2"),
		`"hf download Qwen/Qwen2.5-1.5B --revision v2"`)
	refused(t, "Qwen/Qwen2.5-1.5B@8faed76", "but not its revision 8faed76") // two snapshots begin so
	refused(t, "Qwen/Qwen2.5-1.5B@../../x", "neither a directory nor a Hub name")
	refused(t, "Qwen/Qwen2.5-1.5B@a/../../x", "which is no revision")
	refused(t, "qwen2.5-05b", "neither a directory nor a Hub name", "tiny, bench-27m", "did you mean the built-in shape qwen2.5-0.5b?")
	refused(t, "./missing", "neither a directory nor a Hub name")
	refused(t, "", "neither a directory nor a Hub name")
}

func TestADownloadThatWasBrokenOffIsRefused(t *testing.T) {
	dir := cache(t)
	repo := filepath.Join(dir, "models--Qwen--Qwen2.5-1.5B")
	if err := os.Remove(filepath.Join(repo, "blobs", "0e8c8aa8")); err != nil {
		t.Fatal(err)
	}
	refused(t, "Qwen/Qwen2.5-1.5B", "incomplete", filepath.Join(repo, "snapshots", firstCommit, "config.json"), `"hf download Qwen/Qwen2.5-1.5B"`)

	for _, nonsense := range []string{"nonsense", "", ".", "..", "../snapshots", "a/b"} {
		put(t, filepath.Join(repo, "refs", "main"), nonsense)
		refused(t, "Qwen/Qwen2.5-1.5B", "but not its revision main", filepath.Join(repo, "refs", "main")+`, which holds "`+nonsense+`" and no commit`)
	}
}
