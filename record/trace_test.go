package record

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// traceOf returns a part with one operation and its rank's name.
func traceOf(rank int, origin time.Time, at, d Micros) *Trace {
	return &Trace{
		World: 3, Ranks: []TraceRank{{Rank: rank, Origin: origin, Steps: []TraceStep{{Step: 3, Seconds: 0.5, Compute: 0.9, Host: 0.1}}}},
		Events: []TraceEvent{
			{Name: "process_name", Phase: TraceMeta, Rank: rank, Args: json.RawMessage(`{"name":"rank"}`)},
			{Name: "MatMul", Category: "operation", Phase: TraceComplete, At: at, Duration: &d, Rank: rank, Stream: 2, Args: json.RawMessage(`{"flops":7}`)},
			{Name: "wait", Phase: TraceFlowTo, At: at, Rank: rank, Stream: 2, Flow: int64(rank)<<32 + 1, Binds: "e"},
		},
	}
}

func TestRanksPartsBecomeOneTraceOnOneTime(t *testing.T) {
	dir, err := Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := dir.MergeTrace(); got != nil || err != nil {
		t.Errorf("of no parts it makes %v, %v", got, err)
	}
	if _, err := os.Stat(dir.TraceFile()); !os.IsNotExist(err) {
		t.Errorf("a trace is there: %v", err)
	}
	origin := time.Date(2026, 3, 4, 5, 6, 7, 123456789, time.UTC)
	for _, p := range []*Trace{traceOf(2, origin, 1500, 2001), traceOf(0, origin.Add(40*time.Microsecond), 1, 0)} {
		if err := dir.WriteTracePart(p); err != nil {
			t.Fatal(err)
		}
	}
	head, err := dir.MergeTrace()
	if err != nil {
		t.Fatal(err)
	}
	got, err := dir.ReadTrace()
	if err != nil {
		t.Fatal(err)
	}
	want := mergeTraces([]*Trace{traceOf(0, origin, 40001, 0), traceOf(2, origin, 1500, 2001)})
	want.Format, want.Unit, want.Clock = TraceFormat, "ms", TraceClock
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the file does not hold what was written:\n%s", diff)
	}
	if len(head.Ranks) != 2 || head.World != 3 || head.Events != nil {
		t.Errorf("it returns %+v", head)
	}
	if left, err := os.ReadDir(filepath.Join(dir.Path(), "trace")); !os.IsNotExist(err) {
		t.Errorf("the parts are still there: %v, %v", left, err)
	}
	text, err := os.ReadFile(dir.TraceFile())
	if want := `{"name":"MatMul","cat":"operation","ph":"X","ts":1.500,"dur":2.001,"pid":2,"tid":2,"args":{"flops":7}}`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("%v; %s is not in\n%s", err, want, text)
	}
}

func TestAPartThatCannotBeReadIsNamedAndStays(t *testing.T) {
	for what, c := range map[string]struct{ text, want string }{
		"a newer one":      {`{"format": 2}`, "it has format 2, this program reads up to 1"},
		"one of two ranks": {`{"format": 1, "ranks": [{}, {}]}`, "it is of 2 ranks"},
		"half of one":      {`{"format": 1, "ranks"`, "unexpected end of JSON input"},
	} {
		dir, err := Create(filepath.Join(t.TempDir(), "run"))
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.WriteTracePart(traceOf(1, time.Now(), 1, 1)); err != nil {
			t.Fatal(err)
		}
		part := dir.TracePart(1)
		if err := os.WriteFile(part, []byte(c.text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := dir.MergeTrace(); err == nil || !strings.Contains(err.Error(), part+": "+c.want) {
			t.Errorf("%s: %v, want %s: %s", what, err, part, c.want)
		}
		if _, err := os.Stat(part); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(dir.TraceFile()); !os.IsNotExist(err) {
			t.Errorf("%s: a trace is there: %v", what, err)
		}
	}
}

func TestTheMeanOfStepsWeighsThemByTheirTime(t *testing.T) {
	got := TraceRank{Steps: []TraceStep{{Step: 3, Seconds: 3, Compute: 1}, {Step: 4, Seconds: 1, Compute: 0.5, Gather: 0.25, Reduce: 0.125, Agree: 0.0625, Host: 0.03125, Start: 0.03125}}}.Mean()
	want := TraceStep{Step: 3, Seconds: 2, Compute: 0.875, Gather: 0.0625, Reduce: 0.03125, Agree: 0.015625, Host: 0.0078125, Start: 0.0078125}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := (TraceRank{}).Mean(); got != (TraceStep{}) {
		t.Errorf("of no steps: %+v", got)
	}
}
