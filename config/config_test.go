package config_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/gofsdp/gofsdp/config"
	"github.com/google/go-cmp/cmp"
)

// TestTranscripts runs testdata/*.txt: below each command stand files, each after its name, which are
// loaded in order (cluster.yaml replaces scaling and run; set holds one assignment a line), and
// below ---- what the user reads, or what was set. go test ./config -args -rewrite refreshes them.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var r run
			b := config.Bind(&r)
			for _, part := range strings.Split("\n"+d.Input, "\n-- ")[1:] {
				name, text, _ := strings.Cut(part, " --\n")
				switch name {
				case "set":
					for line := range strings.SplitSeq(text, "\n") {
						b.Set(line)
					}
				case "cluster.yaml":
					b.Replace(name, []byte(text), "scaling", "run")
				default:
					b.Load(name, []byte(text))
				}
			}
			if err := b.Check(); err != nil {
				return err.Error() + "\n"
			}
			var set []string
			for line := range strings.Lines(string(b.MarshalSources())) {
				if strings.Contains(line, "  # ") {
					set = append(set, strings.TrimSpace(line))
				}
			}
			return strings.Join(set, "\n") + "\n"
		})
	})
}

func TestEveryFieldStartsAtItsDefault(t *testing.T) {
	var r run
	r.Data.SequenceLength = 7 // is overwritten
	config.Bind(&r)
	want := run{
		Model:   modelSettings{Path: "tiny"},
		Data:    dataSettings{Include: []string{"*.txt", "*.md"}, Stages: []string{"train"}, SequenceLength: 512},
		Train:   trainSettings{Precision: "auto", Every: time.Minute, Batch: 8},
		Scaling: scalingSettings{Workers: 1},
		Run:     runSettings{StoragePath: "runs"},
	}
	want.Train.Optimizer.LearningRate, want.Train.Optimizer.Decay = 1e-3, 0.1
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
}

func TestADefaultListIsNotSharedWithTheStruct(t *testing.T) {
	var first, second run
	b := config.Bind(&first)
	first.Data.Include[0] = "changed"
	if strings.Contains(string(b.Template()), "changed") {
		t.Error("a change of the struct changed the default")
	}
	config.Bind(&second)
	if second.Data.Include[0] != "*.txt" {
		t.Error("a change of one struct reached another")
	}
}

func TestKeysAndSourcesNameEveryValueOnce(t *testing.T) {
	var r run
	b := config.Bind(&r)
	b.Load("run.yaml", []byte("data:\n\n  paths: [a]\n"))
	b.Set("train.optimizer.decay=0.2")
	want := []string{
		"model.path", "model.dropout", "data.paths", "data.include", "data.stages", "data.sequence_length",
		"data.seed", "train.precision", "train.every", "train.batch", "train.optimizer.learning_rate",
		"train.optimizer.decay", "scaling.workers", "run.name", "run.storage_path",
	}
	if diff := cmp.Diff(want, b.Keys()); diff != "" {
		t.Error(diff)
	}
	sources := b.Sources()
	if len(sources) != len(want) {
		t.Errorf("%d sources for %d keys", len(sources), len(want))
	}
	for key, from := range map[string]string{
		"data.paths": "run.yaml:3", "train.optimizer.decay": "--set", "model.path": "default",
	} {
		if got := sources[key].String(); got != from {
			t.Errorf("%s comes from %s, want %s", key, got, from)
		}
	}
}

func TestReplaceForgetsWhatItsSectionsHadBefore(t *testing.T) {
	var r run
	b := config.Bind(&r)
	b.Load("run.yaml", []byte("{data: {paths: [a], seed: 3}, scaling: {workers: 4}, run: {name: first}}"))
	b.Replace("cluster.yaml", []byte("scaling:\n  workers: 2\n"), "scaling", "run")
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	if r.Scaling.Workers != 2 || r.Run.Name != "" || r.Data.Seed != 3 {
		t.Errorf("got %+v", r)
	}
}

func TestAFileThatCannotBeReadIsAMistakeByName(t *testing.T) {
	var r run
	b := config.Bind(&r)

	b.LoadFile(filepath.Join("testdata", "missing.yaml"))
	b.ReplaceFile("testdata", "run")
	err := b.Check()
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
	want := "testdata/missing.yaml: cannot be read: no such file or directory\ntestdata: cannot be read: is a directory"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %v", err, want)
	}
}

func TestEveryErrorOfCheckIsAMistake(t *testing.T) {
	var r run
	b := config.Bind(&r)
	b.Load("run.yaml", []byte("data: {seeed: 1}\nscaling: {workers: 3}\n"))
	joined, ok := b.Check().(interface{ Unwrap() []error })
	if !ok {
		t.Fatal("Check does not join")
	}
	var keys []string
	for _, err := range joined.Unwrap() {
		var m *config.Mistake
		if !errors.As(err, &m) {
			t.Fatalf("%v is a %T", err, err)
		}
		keys = append(keys, m.Key)
	}
	if want := []string{"data.seeed", "data.paths", "train.batch", ""}; !slices.Equal(keys, want) {
		t.Errorf("keys %q, want %q", keys, want)
	}
}

func TestAHostileFileCostsLittle(t *testing.T) {
	for name, text := range map[string]string{
		"open brackets":    "a: " + strings.Repeat("[", 200_000),
		"open braces":      strings.Repeat("{a: ", 60_000),
		"dashes in a line": strings.Repeat("- ", 100_000),
		"question marks":   strings.Repeat("? ", 100_000),
		"too long":         strings.Repeat("# comment\n", 100_000),
	} {
		var r run
		b := config.Bind(&r)
		start := time.Now()
		b.Load("run.yaml", []byte(text))
		if err := b.Check(); err == nil || !strings.Contains(err.Error(), "run.yaml") {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s took %v", name, d)
		}
	}
}

func TestABrokenStructIsFoundWhenItIsBound(t *testing.T) {
	for name, root := range map[string]any{
		"no pointer": run{},
		"no tag":     &struct{ A int }{},
		"no help": &struct {
			A int `yaml:"a"`
		}{},
		"a name with a dot": &struct {
			A int `yaml:"a.b" help:"h"`
		}{},
		"a field not exported": &struct {
			a int `yaml:"a" help:"h"`
		}{},
		"a type without a kind": &struct {
			A map[string]int `yaml:"a" help:"h"`
		}{},
		"a default of no sense": &struct {
			A int `yaml:"a" default:"x" help:"h"`
		}{},
		"a default below min": &struct {
			A int `yaml:"a" default:"0" min:"1" help:"h"`
		}{},
		"a zero value in no enum": &struct {
			A string `yaml:"a" enum:"x,y" help:"h"`
		}{},
		"an enum of numbers": &struct {
			A int `yaml:"a" enum:"1,2" help:"h"`
		}{},
		"a min of a text": &struct {
			A string `yaml:"a" min:"1" help:"h"`
		}{},
		"a min of no sense": &struct {
			A int `yaml:"a" min:"1.5" help:"h"`
		}{},
		"one name twice": &struct {
			A int `yaml:"a" help:"h"`
			B int `yaml:"a" help:"h"`
		}{},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("Bind accepted it")
				}
			}()
			config.Bind(root)
		})
	}
}
