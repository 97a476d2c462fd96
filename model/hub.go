package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Source is where a model comes from.
type Source struct {
	Name       string // as it was asked for
	Dir        string // the directory with config.json; empty for a built-in shape
	Config     Config
	HasWeights bool   // Dir has safetensors, all of them
	Revision   string // the commit of a Hub model; empty for others
}

// Resolve finds a model by name, on this machine alone: a built-in shape; a directory with a
// config.json (write ./tiny for one that is called like a built-in shape); or a Hub name such as
// Qwen/Qwen2.5-1.5B or Qwen/Qwen2.5-1.5B@REVISION in the local Hugging Face cache, the revision
// being a branch, a tag or a commit. The error tells where it looked and how to get the model.
func Resolve(name string) (Source, error) {
	if c, ok := Builtin(name); ok {
		return Source{Name: name, Config: c}, nil
	}
	if info, err := os.Stat(name); err == nil {
		if !info.IsDir() {
			return Source{}, fmt.Errorf("model %q is a file; give the directory that has config.json", name)
		}
		return fromDir(name, name)
	}
	if hubName.MatchString(name) {
		return fromCache(name)
	}
	return Source{}, fmt.Errorf("model %q is neither a directory nor a Hub name such as Qwen/Qwen2.5-1.5B, nor a built-in shape, which are %s%s",
		name, strings.Join(BuiltinNames(), ", "), suggestion(name))
}

// A Hub name is OWNER/NAME and maybe a revision.
var hubName = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[A-Za-z0-9][\w./-]*)?$`)

func suggestion(name string) string {
	if near := nearestBuiltin(name); near != "" {
		return fmt.Sprintf("; did you mean the built-in shape %s?", near)
	}
	return ""
}

// fromDir reads a directory in Hugging Face's layout.
func fromDir(name, dir string) (Source, error) {
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		remedy := "a model's directory has config.json, and its weights as model*.safetensors"
		within := filepath.Join(dir, "model")
		if _, err := os.Stat(filepath.Join(within, "config.json")); err == nil { // dir is a run's
			remedy = "did you mean " + within + "?"
		}
		return Source{}, fmt.Errorf("model %q: there is no %s; %s", name, path, remedy)
	}
	if err != nil {
		return Source{}, fmt.Errorf("model %q: %w", name, err)
	}
	c, err := ParseConfig(text, path)
	if err != nil {
		return Source{}, fmt.Errorf("model %q cannot be used:\n%w", name, err)
	}
	weights, err := hasWeights(dir)
	if err != nil {
		return Source{}, fmt.Errorf("model %q: %w", name, err)
	}
	return Source{Name: name, Dir: dir, Config: c, HasWeights: weights}, nil
}

// hasWeights tells whether dir holds weights as safetensors: in one file, or in the shards that an
// index lists. Some shards missing, or weights only in PyTorch's own format, is an error: training
// such a model from random weights is not what anybody wants.
func hasWeights(dir string) (bool, error) {
	if exists(filepath.Join(dir, "model.safetensors")) {
		return true, nil
	}
	index := filepath.Join(dir, "model.safetensors.index.json")
	text, err := os.ReadFile(index)
	if errors.Is(err, fs.ErrNotExist) {
		if old, _ := filepath.Glob(filepath.Join(dir, "pytorch_model*.bin")); len(old) > 0 {
			return false, fmt.Errorf("%s: weights in PyTorch's own format are not read; save the model once more with transformers, which writes safetensors", old[0])
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var list struct {
		Files map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return false, fmt.Errorf("%s: %w", index, err)
	}
	if len(list.Files) == 0 {
		return false, fmt.Errorf("%s: weight_map names no tensor", index)
	}
	var missing []string
	for _, file := range slices.Compact(slices.Sorted(maps.Values(list.Files))) {
		if !filepath.IsLocal(file) {
			return false, fmt.Errorf("%s: weight_map: %q lies outside the directory", index, file)
		}
		if !exists(filepath.Join(dir, file)) {
			missing = append(missing, file)
		}
	}
	if missing != nil {
		return false, fmt.Errorf("%s names files that are not there: %s; fetch them", index, strings.Join(missing, ", "))
	}
	return true, nil
}

// fromCache looks a Hub name up in the Hugging Face cache: models--OWNER--NAME has refs/BRANCH,
// each a file with a commit, and snapshots/COMMIT, each a directory of links.
// Layout: huggingface_hub's guide "Understand caching".
func fromCache(name string) (Source, error) {
	repo, revision, given := strings.Cut(name, "@")
	fetch := "hf download " + repo
	if given {
		fetch += " --revision " + revision
	} else {
		revision = "main"
	}
	cache, because, err := cacheDir()
	if err != nil {
		return Source{}, fmt.Errorf("model %q: %w", name, err)
	}
	remedy := fmt.Sprintf("fetch it with Hugging Face's command line, %q (from the Python package huggingface_hub), or give a directory%s", fetch, suggestion(repo))

	dir := filepath.Join(cache, "models--"+strings.ReplaceAll(repo, "/", "--"))
	if !exists(dir) {
		return Source{}, fmt.Errorf("model %q is neither a directory here nor in the Hugging Face cache: there is no %s (%s); %s", name, dir, because, remedy)
	}
	commit, looked := findCommit(dir, revision)
	if commit == "" {
		return Source{}, fmt.Errorf("model %q is in the Hugging Face cache, but not its revision %s: looked at %s (%s); %s",
			name, revision, strings.Join(looked, " and "), because, remedy)
	}
	snapshot := filepath.Join(dir, "snapshots", commit)
	if !exists(filepath.Join(snapshot, "config.json")) {
		return Source{}, fmt.Errorf("model %q is in the Hugging Face cache, but incomplete: there is no %s (%s); %s",
			name, filepath.Join(snapshot, "config.json"), because, remedy)
	}
	source, err := fromDir(name, snapshot)
	source.Revision = commit
	if err != nil {
		return Source{}, fmt.Errorf("%w (the model can be fetched anew with %q)", err, fetch)
	}
	return source, nil
}

// findCommit turns a revision into the name of a snapshot, a commit where Hugging Face's tools made
// it: by refs, else by the name itself or an unambiguous beginning of at least seven hexadecimal
// digits. Without one it returns the paths it looked at.
func findCommit(dir, revision string) (commit string, looked []string) {
	if !filepath.IsLocal(revision) {
		return "", []string{revision + ", which is no revision"}
	}
	ref := filepath.Join(dir, "refs", filepath.FromSlash(revision))
	snapshots := filepath.Join(dir, "snapshots")
	has := func(name string) bool {
		return name == filepath.Base(name) && filepath.IsLocal(name) && name != "." && exists(filepath.Join(snapshots, name))
	}
	if text, err := os.ReadFile(ref); err == nil {
		commit := strings.TrimSpace(string(text))
		if hexDigits.MatchString(commit) || has(commit) {
			return commit, nil
		}
		return "", []string{fmt.Sprintf("%s, which holds %.60q and no commit", ref, commit)}
	}
	if has(revision) {
		return revision, nil
	}
	if hexDigits.MatchString(revision) {
		found, _ := filepath.Glob(filepath.Join(snapshots, revision+"*"))
		if len(found) == 1 {
			return filepath.Base(found[0]), nil
		}
	}
	return "", []string{ref, filepath.Join(snapshots, revision)}
}

var hexDigits = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

// cacheDir is the Hub cache's directory by the rules of huggingface_hub, and why it is that one.
func cacheDir() (dir, because string, err error) {
	home, homeErr := os.UserHomeDir()
	expand := func(path string) string {
		if rest, ok := strings.CutPrefix(path, "~/"); ok && homeErr == nil {
			return filepath.Join(home, rest)
		}
		return path
	}
	if dir := os.Getenv("HF_HUB_CACHE"); dir != "" {
		return expand(dir), "from HF_HUB_CACHE", nil
	}
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return filepath.Join(expand(dir), "hub"), "from HF_HOME", nil
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(expand(dir), "huggingface", "hub"), "from XDG_CACHE_HOME", nil
	}
	if homeErr != nil {
		return "", "", fmt.Errorf("where is the Hugging Face cache? Set HF_HOME: %w", homeErr)
	}
	return filepath.Join(home, ".cache", "huggingface", "hub"), "the default; HF_HUB_CACHE or HF_HOME change it", nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
