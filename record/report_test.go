package record

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAResultHasRaysKeysAndTheMetricsBesideThem(t *testing.T) {
	d := create(t)
	start := time.Date(2026, 11, 30, 4, 0, 0, 0, time.Local)
	clock := start
	r, err := d.CreateResults(start, map[string]any{"train": map[string]int{"batch": 8}})
	if err != nil {
		t.Fatal(err)
	}
	r.now = func() time.Time { return clock }
	clock = start.Add(2 * time.Second)
	if err := r.Report(1, Metrics{"loss": 9}, false); err != nil {
		t.Fatal(err)
	}
	clock = start.Add(5 * time.Second)
	if err := r.Report(2, Metrics{"loss": 2.5, "eval_loss": math.NaN(), "tokens": 300_000}, true); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(d.ResultFile())
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	hostname, _ := os.Hostname()
	for key, want := range map[string]any{
		"format": 1.0, "training_iteration": 2.0, "time_this_iter_s": 3.0, "time_total_s": 5.0, "timestamp": float64(clock.Unix()),
		"date": "2026-11-30_04-00-05", "hostname": hostname, "pid": float64(os.Getpid()), "done": true, "loss": 2.5, "tokens": 300_000.0,
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	result, err := d.ReadResult()
	if err != nil {
		t.Fatal(err)
	}
	if result.TrainingIteration != 2 || len(result.Metrics) != 3 || result.Metrics["loss"] != 2.5 || !math.IsNaN(result.Metrics["eval_loss"]) {
		t.Errorf("read back: %+v", result)
	}
}

func TestAMetricMayNotTakeAKeyOfRays(t *testing.T) {
	d := create(t)
	r, err := d.CreateResults(time.Now(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Report(1, Metrics{"loss": 1}, false); err != nil {
		t.Fatal(err)
	}
	says(t, r.Report(2, Metrics{"pid": 1}, false), d.ResultFile(), `"pid"`)
	if got, err := d.ReadResult(); err != nil || got.TrainingIteration != 1 {
		t.Errorf("the report before is %+v (%v)", got, err)
	}
}

func TestProgressIsATableThatGrowsByWholeLines(t *testing.T) {
	d := create(t)
	p, err := d.CreateProgress("training_iteration", "loss", "eval_loss")
	if err != nil {
		t.Fatal(err)
	}
	want := "training_iteration,loss,eval_loss\n"
	for _, step := range []struct {
		metrics Metrics
		line    string
	}{
		{Metrics{"training_iteration": 1, "loss": 2.125}, "1,2.125,\n"},
		{Metrics{"training_iteration": 3_000_000, "loss": 1e-9, "eval_loss": math.NaN()}, "3000000,1e-09,NaN\n"},
		{Metrics{}, ",,\n"},
	} {
		if err := p.Append(step.metrics); err != nil {
			t.Fatal(err)
		}
		want += step.line
		if got, err := os.ReadFile(d.ProgressFile()); err != nil || string(got) != want {
			t.Fatalf("the file is %q (%v), want %q", got, err, want)
		}
	}
	says(t, p.Append(Metrics{"loss": 1, "los": 1}), d.ProgressFile(), `"los" is no column`, "training_iteration, loss, eval_loss")
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(d.ProgressFile())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if rows, err := csv.NewReader(file).ReadAll(); err != nil || len(rows) != 4 {
		t.Errorf("read back: %q (%v)", rows, err)
	}
}

func TestProgressNeedsDistinctColumnsAndItsOwnFile(t *testing.T) {
	d := create(t)
	for _, columns := range [][]string{{"a", "b", "a"}, {"a", ""}} {
		_, err := d.CreateProgress(columns...)
		says(t, err, d.ProgressFile(), "empty or there twice")
	}
	if got := names(t, d.Path()); len(got) != 1 {
		t.Errorf("the directory holds %q", got)
	}
	p, err := d.CreateProgress("a")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = d.CreateProgress("a")
	says(t, err, d.ProgressFile(), "exists")
}

func TestALineThatFailsLeavesNoPartOfIt(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	d := create(t)
	p, err := d.CreateProgress("loss")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Append(Metrics{"loss": 1}); err != nil {
		t.Fatal(err)
	}
	limitFileSize(t, 10) // two bytes of the next line fit
	says(t, p.Append(Metrics{"loss": 0.123456789}), d.ProgressFile())
	if got, err := os.ReadFile(d.ProgressFile()); err != nil || string(got) != "loss\n1\n" {
		t.Errorf("the file is %q (%v)", got, err)
	}
	if err := p.Append(Metrics{"loss": 2}); err != nil {
		t.Errorf("a line that fits is refused: %v", err)
	}
}

func TestAFullDiskIsNamedWithTheRemedy(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("this system has no /dev/full")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	_, progress := newProgress(full, []string{"loss"})
	_, events := newEvents(full, time.Now())
	for _, err := range []error{progress, events} {
		says(t, err, "/dev/full", "no space left", "free some space")
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("the cause is lost: %v", err)
		}
		if err != nil && strings.Count(err.Error(), "\n") != 0 {
			t.Errorf("it is more than one line: %v", err)
		}
	}
}
