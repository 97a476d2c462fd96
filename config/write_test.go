package config_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/gofsdp/gofsdp/config"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// drawRun draws a configuration within its limits, with texts of all kinds.
func drawRun(t *rapid.T) run {
	var r run
	config.Bind(&r)
	text := rapid.OneOf(
		rapid.String(),
		rapid.StringMatching(`[ -~]{0,120}`),
		rapid.SampledFrom([]string{
			"", " ", "#", "a # b", "a: b", "- a", "~", "null", "Yes", "n", "1e3", "0x1f", ".inf", "*a", "&a", "!a",
			"%", "@", "`", "|", ">", "'", `"`, `\`, `\n`, "a\nb", "\n", "\t", "\r\n", " a", "a ", "\u2028", "\u0085",
			"\ufeff", "\U0001f469\u200d\U0001f680", "--- ", "...", "{a", "[a", "a]", "a,b", "?", ":", "\x00", "\x7f",
		}),
	).Filter(utf8.ValidString)
	list := rapid.SliceOfN(text, 0, 6)
	r.Model.Path = text.Draw(t, "path")
	r.Model.Dropout = rapid.Bool().Draw(t, "dropout")
	r.Data.Paths = list.Draw(t, "paths")
	r.Data.Include = list.Draw(t, "include")
	r.Data.Stages = rapid.SliceOfN(rapid.SampledFrom([]string{"train", "eval"}), 0, 30).Draw(t, "stages")
	r.Data.SequenceLength = rapid.IntRange(1, 1<<20).Draw(t, "sequence_length")
	r.Data.Seed = rapid.Int64().Draw(t, "seed")
	r.Train.Precision = rapid.SampledFrom([]string{"auto", "fp32", "bf16"}).Draw(t, "precision")
	r.Train.Every = time.Duration(rapid.Int64Range(int64(time.Second), int64(24*time.Hour)).Draw(t, "every"))
	r.Train.Batch = rapid.IntMin(1).Draw(t, "batch")
	r.Train.Optimizer.LearningRate = rapid.Float64Min(0).Draw(t, "learning_rate")
	r.Train.Optimizer.Decay = rapid.Float64Range(0, 1).Draw(t, "decay")
	r.Scaling.Workers = rapid.IntMin(1).Draw(t, "workers")
	r.Run.Name = text.Draw(t, "name")
	r.Run.StoragePath = text.Draw(t, "storage_path")
	return r
}

// mistakes returns what is wrong with what b loaded, without what Check methods find.
func mistakes(b *config.Binding) (list []error) {
	joined, _ := b.Check().(interface{ Unwrap() []error })
	if joined == nil {
		return nil
	}
	for _, err := range joined.Unwrap() {
		if !errors.As(err, new(finding)) {
			list = append(list, err)
		}
	}
	return list
}

// load binds a new struct to a text without a mistake.
func load(t interface{ Fatalf(string, ...any) }, text []byte) run {
	var r run
	b := config.Bind(&r)
	b.Load("resolved.yaml", text)
	if list := mistakes(b); list != nil {
		t.Fatalf("%v\nin\n%s", list, text)
	}
	return r
}

// copyInto gives the values of from to a bound struct.
func copyInto(from run) *config.Binding {
	r := new(run)
	b := config.Bind(r)
	*r = from
	return b
}

func TestWhatMarshalWritesLoadsToTheSameValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRun(t)
		text := copyInto(want).Marshal()
		// An empty list and none are the same setting.
		if diff := cmp.Diff(want, load(t, text), emptyIsNil); diff != "" {
			t.Fatalf("%s\nin\n%s", diff, text)
		}
	})
}

func TestWhatMarshalWritesIsTheSameToAnotherReader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRun(t)
		text := copyInto(want).Marshal()
		var got struct {
			Model struct{ Path string }
			Data  struct {
				Paths []string
				Seed  int64
			}
			Train struct {
				Optimizer struct {
					LearningRate float64 `yaml:"learning_rate"`
				}
			}
		}
		if err := yaml.Unmarshal(text, &got); err != nil {
			t.Fatalf("%v\nin\n%s", err, text)
		}
		if got.Model.Path != want.Model.Path || got.Data.Seed != want.Data.Seed ||
			got.Train.Optimizer.LearningRate != want.Train.Optimizer.LearningRate ||
			!cmp.Equal(got.Data.Paths, want.Data.Paths, emptyIsNil) {
			t.Fatalf("read %+v from\n%s", got, text)
		}
	})
}

func TestSourcesInCommentsChangeNoValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.String(), rapid.Just("run\n.yaml"), rapid.Just("a # b")).Draw(t, "name")
		want := drawRun(t)
		text := copyInto(want).Marshal()
		var r run
		b := config.Bind(&r)
		b.Load(name, text)
		if diff := cmp.Diff(load(t, text), load(t, b.MarshalSources()), emptyIsNil); diff != "" {
			t.Fatalf("%s\nin\n%s", diff, b.MarshalSources())
		}
	})
}

var emptyIsNil = cmp.Transformer("emptyIsNil", func(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return list
})

func TestTheTemplateIsTheDefaultsWithTheirHelp(t *testing.T) {
	var want run
	b := config.Bind(&want)
	template := b.Template()
	if diff := cmp.Diff(want, load(t, template), emptyIsNil); diff != "" {
		t.Error(diff)
	}
	b.Set("data.seed=5")
	if string(b.Template()) != string(template) {
		t.Error("the template follows what was set")
	}
	for line := range strings.Lines(string(template)) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 90 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	const data = `# What it is trained on.
data:
  # Texts.
  paths: []

  # Patterns of the files that are read in a directory.
  include: ["*.txt", "*.md"]

  # Parts. One of train, eval.
  stages: [train]

  # Tokens in a pack. From 1 to 1048576.
  sequence_length: 512

  # Of the order of documents.
  seed: 0

train:
  # Type of the products. One of auto, fp32, bf16.
  precision: auto

  # Time between reports. From 1s to 24h.
  every: 1m
`
	if !strings.Contains(string(template), data) {
		t.Errorf("the template is\n%s", template)
	}
}

func TestTheSchemaAcceptsTheTemplateAndRefusesWhatLoadRefuses(t *testing.T) {
	var r run
	b := config.Bind(&r)
	var schema map[string]any
	if err := json.Unmarshal(b.JSONSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	if got := schema["$schema"]; got != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("draft %v", got)
	}
	// Each text is judged by the schema and by Load.
	for text, valid := range map[string]bool{
		string(b.Template()):                 true,
		"data:\n":                            true,
		"data: {paths: [a], stages: [eval]}": true,
		"train: {every: 1h30m, optimizer: {decay: 0.5}}": true,
		"data: {pats: [a]}":                        false,
		"rum: {}":                                  false,
		"data: {paths: a}":                         false,
		"data: {paths: [1]}":                       false,
		"data: {stages: [evil]}":                   false,
		"data: {sequence_length: 0}":               false,
		"data: {sequence_length: 1048577}":         false,
		"data: {sequence_length: 1.5}":             false,
		"data: {sequence_length: '1'}":             false,
		"data: 3":                                  false,
		"train: {precision: fp16}":                 false,
		"train: {every: soon}":                     false,
		"train: {every: 30}":                       false,
		"train: {optimizer: {decay: 1.5}}":         false,
		"train: {optimizer: {learning_rate: '1'}}": false,
		"model: {dropout: 1}":                      false,
		"model: {path: 1}":                         false,
		"scaling: {workers: 1, name: a}":           false,
	} {
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		if why := violation(schema, value); (why == "") != valid {
			t.Errorf("%q: the schema says %q", text, why)
		}
		var r run
		b := config.Bind(&r)
		b.Load("run.yaml", []byte(text))
		if list := mistakes(b); (list == nil) != valid {
			t.Errorf("%q: Load says %v", text, list)
		}
	}
}

func TestTheSchemaDescribesAValueInFull(t *testing.T) {
	var r run
	text := string(config.Bind(&r).JSONSchema())
	const want = `        "sequence_length": {
          "description": "Tokens in a pack.",
          "type": "integer",
          "minimum": 1,
          "maximum": 1048576,
          "default": 512
        },
`
	if !strings.Contains(text, want) {
		t.Errorf("the schema is\n%s", text)
	}
	if strings.Index(text, `"paths"`) > strings.Index(text, `"include"`) {
		t.Error("the keys are not in the order of the struct")
	}
}
