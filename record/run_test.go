package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

func TestAValueIsWrittenPlainOrWithTheReasonItIsUnknown(t *testing.T) {
	cases := map[string]struct {
		value json.Marshaler
		want  string
	}{
		"a number":               {Known(3.5), `3.5`},
		"nought, which is known": {Known(0), `0`},
		"an empty string":        {Known(""), `""`},
		"a truth":                {Known(false), `false`},
		"nobody set it":          {Value[int]{}, `{"unknown":"not recorded"}`},
		"a reason":               {Unknown[int]("no such file"), `{"unknown":"no such file"}`},
		"an error":               {ValueOf(1, errors.New("no such file")), `{"unknown":"no such file"}`},
		"no error":               {ValueOf(1, nil), `1`},
		"not a number":           {Known(math.NaN()), `{"unknown":"not finite: NaN"}`},
		"an infinity":            {Known(math.Inf(-1)), `{"unknown":"not finite: -Inf"}`},
	}
	for name, c := range cases {
		text, err := json.Marshal(c.value)
		if err != nil || string(text) != c.want {
			t.Errorf("%s: got %s (%v), want %s", name, text, err, c.want)
		}
	}
}

func TestAValueIsReadAsItWasWritten(t *testing.T) {
	cases := map[string]struct {
		text   string
		known  bool
		value  int
		reason string
	}{
		"a number":          {`7`, true, 7, ""},
		"null":              {`null`, false, 0, "not recorded"},
		"a reason":          {`{"unknown":"lost"}`, false, 0, "lost"},
		"nought":            {`0`, true, 0, ""},
		"an unknown nobody": {`{"unknown":""}`, false, 0, "not recorded"},
	}
	for name, c := range cases {
		v := Known(99)
		if err := json.Unmarshal([]byte(c.text), &v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		value, known := v.Get()
		if known != c.known || value != c.value || v.Reason() != c.reason {
			t.Errorf("%s: got %d, %v, %q", name, value, known, v.Reason())
		}
	}
	var v Value[int]
	for _, text := range []string{`"7"`, `{}`, `{"unknown":1}`, `{"unknown":"a","b":1}`} {
		if err := json.Unmarshal([]byte(text), &v); err == nil {
			t.Errorf("%s was read as a number", text)
		}
	}
}

func TestAValueSaysWhatItIs(t *testing.T) {
	if got := fmt.Sprint(Known(3), " ", Unknown[int]("lost")); got != "3 unknown (lost)" {
		t.Errorf("got %q", got)
	}
}

func TestANewRecordKnowsTheProgramAndTheHost(t *testing.T) {
	d := create(t)
	r := NewRun()
	if err := d.WriteRun(r); err != nil {
		t.Fatal(err)
	}
	got, err := d.ReadRun()
	if err != nil {
		t.Fatal(err)
	}
	if got.Format != RunFormat || got.Outcome.State != Running || got.Gofsdp.Go == "" || len(got.Command) == 0 || got.Host.CPUs < 1 || !got.Started.Equal(r.Started) {
		t.Errorf("the record is %+v", got)
	}
	if memory, known := got.Host.Memory.Get(); !known || memory < 64<<20 {
		t.Errorf("the memory is %v", got.Host.Memory)
	}
	if name, known := got.Host.Name.Get(); !known || name == "" {
		t.Errorf("the host's name is %v", got.Host.Name)
	}
	for what, reason := range map[string]string{
		"end": got.Ended.Reason(), "exit code": got.Outcome.ExitCode.Reason(),
		"loss": got.Figures.Loss.Reason(), "parameters": got.Model.Parameters.Reason(),
	} {
		if reason == "" {
			t.Errorf("the %s is known before anything ran", what)
		}
	}
}

func TestAnOutcomeFollowsFromTheExitCode(t *testing.T) {
	for code, want := range map[int]State{0: Succeeded, 1: Failed, 2: Failed, 5: Failed, 130: Interrupted, 143: Interrupted} {
		d := create(t)
		r := NewRun()
		r.Figures.Loss = Known(math.NaN())
		r.End(OutcomeOf(code, "because"))
		if err := d.WriteRun(r); err != nil {
			t.Fatal(err)
		}
		got, err := d.ReadRun()
		if err != nil {
			t.Fatal(err)
		}
		exit, known := got.Outcome.ExitCode.Get()
		if got.Outcome.State != want || !known || exit != code || got.Outcome.Reason != "because" {
			t.Errorf("exit code %d gives %+v", code, got.Outcome)
		}
		if ended, known := got.Ended.Get(); !known || ended.Before(got.Started) {
			t.Errorf("it ended at %v", got.Ended)
		}
		if got.Figures.Loss.Reason() != "not finite: NaN" {
			t.Errorf("the loss is %v", got.Figures.Loss)
		}
	}
}

// The golden files are of format 1 as it was first written. They are never
// rewritten: what they say must stay readable, under the same names.
func TestRecordsOfFormatOneStayReadable(t *testing.T) {
	run, err := LoadRun("testdata/run.v1.json")
	if err != nil {
		t.Fatal(err)
	}
	keeps(t, "testdata/run.v1.json", run)
	result, err := readResult("testdata/result.v1.json")
	if err != nil {
		t.Fatal(err)
	}
	keeps(t, "testdata/result.v1.json", result)
	if loss, _ := run.Figures.Loss.Get(); loss != 2.5 {
		t.Errorf("the loss is %v", run.Figures.Loss)
	}
}

// keeps checks that everything in the file is in v's JSON.
func keeps(t *testing.T, path string, v any) {
	t.Helper()
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal(golden, &want), json.Unmarshal(again, &got)); err != nil {
		t.Fatal(err)
	}
	compareTree(t, path, want, got)
}

func compareTree(t *testing.T, at string, want, got any) {
	t.Helper()
	members, ok := want.(map[string]any)
	if !ok {
		if !reflect.DeepEqual(want, got) {
			t.Errorf("%s: %v in the file, %v read", at, want, got)
		}
		return
	}
	mine, ok := got.(map[string]any)
	if !ok {
		t.Errorf("%s: %v in the file, %v read", at, want, got)
		return
	}
	for key, value := range members {
		compareTree(t, at+"."+key, value, mine[key])
	}
}

func TestAForeignOrNewerRecordIsRefusedByName(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"a newer format":        {`{"format":2,"host":[]}`, "format 2, this program reads up to 1"},
		"no format":             {`{"loss":1}`, "no format number"},
		"no JSON":               {`{"format":1`, "unexpected end"},
		"an empty file":         {``, "unexpected end"},
		"a value of wrong type": {`{"format":1,"command":3}`, "command"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "run.json")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := LoadRun(path)
			says(t, err, path, c.want)
		})
	}
	_, err := LoadRun("testdata/absent.json")
	says(t, err, "testdata/absent.json")
}

func TestABuildWithoutVersionControlSaysSo(t *testing.T) {
	known := buildOf(&debug.BuildInfo{
		Main:     debug.Module{Version: "v0.1.0"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	})
	if known.Version != Known("v0.1.0") || known.Commit != Known("abc") || known.Modified != Known(true) {
		t.Errorf("got %+v", known)
	}
	lost := buildOf(&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}})
	for _, reason := range []string{lost.Version.Reason(), lost.Commit.Reason(), lost.Modified.Reason()} {
		if !strings.HasPrefix(reason, "built ") {
			t.Errorf("the reason is %q", reason)
		}
	}
}

func TestTheRecordIsReplacedWhole(t *testing.T) {
	d := create(t)
	r := NewRun()
	for range 3 {
		r.Started = r.Started.Add(time.Second)
		if err := d.WriteRun(r); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, d.Path()); len(got) != 2 {
		t.Errorf("the directory holds %q", got)
	}
}
