package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

func TestAKilledRankLeavesTheOthersWithTheCollectiveTheyWaitIn(t *testing.T) {
	t.Parallel()
	for long := time.Second; ; long *= 4 {
		s, dir, f := awaitedAndKilled(t, long)
		if !strings.HasPrefix(f.At(), "waiting in ") && long < 10*time.Second {
			t.Logf("a busy machine: the other rank did not come to wait within %v, it was %s", long, f.At())
			continue
		}
		if !strings.HasPrefix(f.At(), "waiting in ") || f.World != 2 || !strings.Contains(f.Reason, "was killed by signal 9") {
			t.Errorf("rank %d of %d was %s; reason: %s", f.Rank, f.World, f.At(), f.Reason)
		}
		told := fmt.Sprintf("%s; flight recorder: %s\n", f.At(), filepath.Join("runs", "mine", "logs", fmt.Sprintf("flight-rank-%03d.json", f.Rank)))
		log, err := os.ReadFile(filepath.Join(dir.LogsDir(), fmt.Sprintf("rank-%d.log", f.Rank)))
		if err != nil || !bytes.Contains(log, []byte(told)) || !strings.Contains(s.out.String(), told) {
			t.Errorf("%v; neither the log nor the output may be without %q:\n%s\n%s", err, told, log, &s.out)
		}
		if hint := "where the ranks stood: gofsdp flight " + filepath.Join("runs", "mine") + "\n"; !strings.Contains(s.out.String(), hint) {
			t.Errorf("it does not say %q:\n%s", hint, &s.out)
		}
		report, err := exec.Command("gofsdp", "flight", filepath.Join(s.dir, "runs", "mine")).CombinedOutput()
		missing := fmt.Sprintf("and these had not come:\n  rank %d: left no flight recorder", 1-f.Rank)
		if err != nil || !strings.Contains(string(report), missing) {
			t.Errorf("%v; the report does not say %q:\n%s", err, missing, report)
		}
		return
	}
}

// awaitedAndKilled stops one of two ranks that train, and kills it when the other has had long to come to wait
// for it. It returns what that one left.
func awaitedAndKilled(t *testing.T, long time.Duration) (*session, *record.Dir, *record.Flight) {
	t.Helper()
	mark := markOf(t)
	s := begin(t, []string{mark}, "train", "run.yaml", "--ranks", "2", "--set", "run.processes.deadline=1m")
	s.until("step ")
	victim := 0
	for _, pid := range marked(t, mark) {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("\x00rank\x00")) {
			victim = pid
		}
	}
	if victim == 0 {
		t.Fatal("there are no ranks")
	}
	syscall.Kill(victim, syscall.SIGSTOP)
	time.Sleep(long)
	syscall.Kill(victim, syscall.SIGKILL)
	if status := s.end(); status.ExitStatus() != exitLost {
		t.Fatalf("exit code %d, want %d\n%s%s", status.ExitStatus(), exitLost, &s.out, &s.err)
	}
	dir, err := record.Open(filepath.Join(s.dir, "runs", "mine"))
	if err != nil {
		t.Fatal(err)
	}
	flights, err := dir.ReadFlights()
	if err != nil || len(flights) != 1 {
		t.Fatalf("%d recorders, %v\n%s%s", len(flights), err, &s.out, &s.err)
	}
	return s, dir, flights[0]
}

func TestSIGQUITLeavesTheFlightRecorderAndTheStacks(t *testing.T) {
	t.Parallel()
	s := begin(t, nil, "train", "run.yaml")
	s.until("step ")
	s.signal(syscall.SIGQUIT)
	if status := s.end(); status.ExitStatus() != 2 || !strings.Contains(s.err.String(), "goroutine ") {
		t.Errorf("exit code %d; it said\n%s%s", status.ExitStatus(), &s.out, &s.err)
	}
	dir, err := record.Open(filepath.Join(s.dir, "runs", "mine"))
	if err != nil {
		t.Fatal(err)
	}
	flights, err := dir.ReadFlights()
	if err != nil || len(flights) != 1 || flights[0].Reason != "SIGQUIT: quit" || len(flights[0].Streams) == 0 || len(flights[0].Streams[0].Ops) == 0 {
		t.Errorf("%v, %+v", err, flights)
	}
}

// recorderIn returns the recorder of the second of three ranks in a directory of
// its own, and what is printed.
func recorderIn(t *testing.T) (*flight, *bytes.Buffer) {
	t.Helper()
	dir, err := record.Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	out := &bytes.Buffer{}
	return &flight{Flight: fsdp.NewFlight(), app: &app{ctx: context.Background(), out: out}, dir: dir, rank: 1, world: 3}, out
}

func TestAPanicLeavesTheFlightRecorderAndGoesOn(t *testing.T) {
	f, _ := recorderIn(t)
	var went any
	func() {
		defer func() { went = recover() }()
		defer f.panicked()
		panic("the invariant is broken")
	}()
	flights, err := f.dir.ReadFlights()
	if err != nil || len(flights) != 1 || flights[0].Reason != "panic: the invariant is broken" || flights[0].Rank != 1 || flights[0].World != 3 {
		t.Errorf("%v, %+v", err, flights)
	}
	if went != "the invariant is broken" {
		t.Errorf("the panic became %v", went)
	}
}

func TestTheFlightRecorderIsLeftForFailuresOfTheWorkAndNoOthers(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		finite bool
		want   int
	}{
		"none":                                 {nil, true, 0},
		"the user stops it":                    {interruption{syscall.SIGINT}, true, 0},
		"the disk is full":                     {errors.New("no space left"), true, 0},
		"a collective":                         {fmt.Errorf("step 3: %w", &collective.Error{Err: collective.ErrDeadline}), true, 1},
		"a gradient that is not finite":        {&train.NotFinite{Step: 3}, true, 1},
		"a held-out loss that is not finite":   {errors.New("the held-out loss is not finite"), false, 1},
		"stopped, but with what is not finite": {context.Canceled, false, 0},
	} {
		f, out := recorderIn(t)
		f.note(c.err, c.finite)
		flights, err := f.dir.ReadFlights()
		if err != nil || len(flights) != c.want || strings.Count(out.String(), "flight recorder: ") != c.want {
			t.Errorf("%s: %d recorders, %v; it said %q", name, len(flights), err, out)
		}
	}
}

func TestTheFlightRecorderKeepsTheFirstReason(t *testing.T) {
	f, out := recorderIn(t)
	f.write() // nothing to write yet
	f.stand(errors.New("the first"))
	f.stand(errors.New("the second"))
	f.write()
	f.write()
	flights, err := f.dir.ReadFlights()
	if err != nil || len(flights) != 1 || flights[0].Reason != "the first" {
		t.Errorf("%v, %+v", err, flights)
	}
	if want := "before its first operation; flight recorder: " + f.dir.FlightFile(1) + "\n"; out.String() != want {
		t.Errorf("it said %q, want %q", out, want)
	}
}
