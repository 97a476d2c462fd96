package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/record"
)

var (
	failureSeed  = flag.Uint64("failure-seed", 0, "of the drawn failures; 0 takes a fresh one")
	failureCases = flag.Int("failure-cases", 0, "number of drawn failures; 0: 22, or 120 where FULL=1")
)

// All of these runs end within their deadline of what happens to them, the
// shortest that there is; failureSlack is what a loaded machine may add.
const (
	failureDeadline = time.Second
	failureSlack    = time.Minute
)

// falseAlarm is what a run says that ends because the machine is so loaded that a
// process was not heard in time. It is done again with a longer deadline.
var falseAlarm = regexp.MustCompile(`has not been heard for|has not answered for|was stopped for|waited .* for ranks .*: the deadline passed|ended with exit code 6 before|lost: rpc error: code = Canceled`)

// failure is one thing that goes wrong with one process of a run of the whole
// program at one moment.
type failure struct {
	process string // "rank 2", "agent 0", "launcher"
	kind    string // a signal, or garbage
	moment  moment
	after   time.Duration // since the moment came
	spreadOut
}

// spreadOut is where the ranks are.
type spreadOut struct {
	ranks, nodes int
	mesh         string
}

var spreads = []spreadOut{{2, 1, "1x2"}, {3, 1, "1x3"}, {4, 1, "2x2"}, {2, 2, "2x1"}, {4, 2, "2x2"}}

const garbage = "garbage"

var signals = map[string]syscall.Signal{
	"SIGKILL": syscall.SIGKILL, "SIGSTOP": syscall.SIGSTOP, "SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT,
}

// moment is how far a run has come.
type moment string

const (
	placed     moment = "the agent is placed"
	loading    moment = "the ranks load"
	stepping   moment = "a step"
	evaluating moment = "an evaluation"
	exporting  moment = "the export"
	sampling   moment = "a sample"
	ending     moment = "the end"
)

func (f failure) String() string {
	return fmt.Sprintf("%s gets %s %v after %s with %d ranks on %d nodes", f.process, f.kind, f.after.Round(time.Millisecond), f.moment, f.ranks, f.nodes)
}

// drawFailure returns case i: every pair of process and kind comes in turn, the
// rest is drawn.
func drawFailure(i int, random *rand.Rand) failure {
	f := failure{
		kind:      []string{"SIGKILL", "SIGSTOP", garbage, "SIGTERM", "SIGINT"}[i/4%5],
		after:     time.Duration(random.Int64N(int64(100 * time.Millisecond))),
		spreadOut: spreads[random.IntN(len(spreads))],
	}
	moments := []moment{loading, stepping, evaluating, exporting, sampling, ending}
	switch i % 4 {
	case 0:
		f.process = "rank 0"
	case 1:
		f.process = fmt.Sprintf("rank %d", 1+random.IntN(f.ranks-1))
	case 2:
		f.process = fmt.Sprintf("agent %d", random.IntN(f.nodes))
		if f.kind != garbage {
			moments = append(moments, placed)
		}
	case 3:
		f.process = "launcher"
		moments = append(moments, placed)
	}
	if f.moment = moments[random.IntN(len(moments))]; f.late() || f.moment == placed {
		f.after /= 10
	}
	return f
}

// late is where the run may have ended before it is met.
func (f failure) late() bool { return f.moment == exporting || f.moment == ending }

// TestWhateverHappensToOneProcessEndsTheRunWithItsReason draws cases over
// process, kind and moment, with all of the program in them.
func TestWhateverHappensToOneProcessEndsTheRunWithItsReason(t *testing.T) {
	t.Parallel()
	cases := *failureCases
	full := os.Getenv("FULL") == "1"
	switch {
	case cases == 0 && full:
		cases = 120
	case cases == 0:
		cases = 22
	}
	first := *failureSeed
	if first == 0 {
		first = rand.Uint64()
	}
	t.Logf("replay by: go test ./cmd/gofsdp -run %s -args -failure-seed=%d -failure-cases=%d", t.Name(), first, cases)
	random := rand.New(rand.NewPCG(first, 0))
	common := newCommon(t)
	var mutex sync.Mutex
	var slowest time.Duration
	what := "none"
	t.Run("drawn", func(t *testing.T) {
		for i := range cases {
			f := drawFailure(i, random)
			again := full || i%4 == 3
			t.Run(fmt.Sprintf("%03d %s", i, f), func(t *testing.T) {
				t.Parallel()
				took := f.run(t, common, again)
				mutex.Lock()
				defer mutex.Unlock()
				if took > slowest {
					slowest, what = took, f.String()
				}
			})
		}
	})
	t.Logf("the slowest of %d took %v: %s", cases, slowest.Round(time.Millisecond), what)
}

// run makes it happen, and returns how long all took to end.
func (f failure) run(t *testing.T, common string, again bool) time.Duration {
	for deadline := failureDeadline; ; deadline *= 3 {
		took, alarm := f.try(t, common, deadline, again)
		if alarm == "" {
			return took
		}
		if deadline > 20*failureDeadline {
			t.Fatal(alarm)
		}
		t.Logf("a deadline of %v is too short for this machine now: %s", deadline, alarm)
	}
}

// try runs it with a deadline. An alarm says that it came to nothing.
func (f failure) try(t *testing.T, common string, deadline time.Duration, again bool) (took time.Duration, alarm string) {
	w := beginWhole(t, common, f, deadline)
	if !w.until(f) {
		if said := w.lastWord(); falseAlarm.MatchString(said) {
			return 0, said
		}
		t.Fatalf("%s never came", f.moment)
	}
	time.Sleep(f.after)
	began := time.Now()
	failed := f.happen(w)
	if f.process == "launcher" && f.kind == "SIGSTOP" {
		// It may have ended before it was stopped.
		w.await("nothing but the launcher is left", func() bool {
			return !slices.ContainsFunc(marked(t, w.mark), func(pid int) bool { return pid != w.run.Process.Pid })
		})
		took = time.Since(began)
		syscall.Kill(w.run.Process.Pid, syscall.SIGCONT)
		began = time.Now()
	}
	w.await("the launcher has ended", w.hasEnded)
	w.await("nothing is left", func() bool { return len(marked(t, w.mark)) == 0 })
	took = max(took, time.Since(began))
	code, said := w.run.ProcessState.ExitCode(), w.lastWord()
	if !slices.ContainsFunc(f.outcomes(), func(o outcome) bool { return o.code == code && o.why.MatchString(said) }) {
		if falseAlarm.MatchString(said) {
			return 0, said
		}
		t.Errorf("exit code %d and %q, want one of %v", code, said, f.outcomes())
	}
	if failed != nil && !f.late() {
		t.Error(failed)
	}
	f.checkRecord(t, w, code, said)
	if again {
		w.again()
	}
	return took, ""
}

// happen does to the process what is to happen to it, unless that is over.
func (f failure) happen(w *whole) error {
	t := w.t
	pid := w.pid(f.process)
	switch {
	case pid <= 0: // it has ended, and so will all
		return nil
	case f.kind != garbage:
		if err := syscall.Kill(pid, signals[f.kind]); err != nil {
			t.Logf("%s cannot be signalled: %v", f.process, err)
		}
		return nil
	}
	switch {
	case f.process == "launcher":
		// It goes on as if nothing were.
		defer w.run.Process.Signal(syscall.SIGINT)
		return visitors(t, filepath.Join(w.runDir(), "control.json"))
	case strings.HasPrefix(f.process, "agent"):
		return spoil(t, pid, unix.AF_INET)
	case f.speaksTCP():
		return spoil(t, pid, unix.AF_INET) // towards other ranks
	case f.after%2 == 0:
		return spoil(t, pid, unix.AF_UNIX) // towards its agent
	default: // of its agent, towards all ranks of the node
		return spoil(t, parentOf(pid), unix.AF_UNIX)
	}
}

// speaksTCP says whether a rank that speaks garbage does so to other ranks.
func (f failure) speaksTCP() bool {
	return f.nodes > 1 && (f.moment == stepping || f.moment == evaluating || f.moment == sampling)
}

// outcome is a way in which a run may end.
type outcome struct {
	code int
	why  *regexp.Regexp // of the launcher's last word
}

func (o outcome) String() string { return fmt.Sprintf("%d by %q", o.code, o.why) }

// outcomes are the ways in which the run may end.
func (f failure) outcomes() (all []outcome) {
	add := func(code int, why string) {
		all = append(all, outcome{code, regexp.MustCompile("(?s)^(?:" + why + ")$")})
	}
	who, agent := f.process, strings.HasPrefix(f.process, "agent")
	if agent {
		who = strings.Replace(who, "agent", "the agent of node", 1)
	}
	if f.late() {
		add(0, "")
	}
	signal := signals[f.kind]
	switch {
	case f.process == "launcher" && f.kind == "SIGKILL":
		add(-1, "")
	case f.process == "launcher" && f.kind == "SIGSTOP":
		add(4, `the launcher was stopped for .*`)
		// It counts from what it did last, its agents from what they heard last.
		add(4, `the agent of node \d: the launcher has not been heard for .*`)
	case f.process == "launcher" && f.kind == "SIGTERM":
		add(exitTerminated, "")
	case f.process == "launcher": // garbage, too, which changes nothing
		add(exitInterrupted, "")
	case agent && f.kind == garbage:
		add(5, who+` was lost: .*`)
	case f.kind == garbage && f.speaksTCP():
		add(5, `rank \d: .* it sent bytes that are no .*`)
	case f.kind == garbage:
		add(5, who+` speaks garbage to its agent: .*`)
		add(5, `rank \d: its agent speaks garbage to it: .*`)
	case f.kind == "SIGSTOP":
		add(4, who+` has not been heard for .*`)
		if _, n, rank := strings.Cut(f.process, "rank "); rank { // its peers may notice first
			add(4, `rank \d: .* for ranks \[`+n+`\]: the deadline passed.*`)
		}
	case f.kind == "SIGKILL":
		add(5, who+` was killed by signal 9 .*`)
	default:
		add(5, who+` was told to end: interrupted by `+f.kind)
		if f.moment == placed || f.moment == loading { // before it hears signals
			add(5, fmt.Sprintf(`%s was killed by signal %d .*`, who, signal))
		}
	}
	return all
}

// checkRecord compares what the run's record says with how the launcher ended.
func (f failure) checkRecord(t *testing.T, w *whole, code int, said string) {
	run, err := record.LoadRun(filepath.Join(w.runDir(), "run.json"))
	if err != nil {
		t.Error(err)
		return
	}
	if code < 0 { // nobody was left to write, but for a first rank that had done all
		if s := run.Outcome.State; s != record.Running && !f.late() {
			t.Errorf("recorded as %+v after the launcher was killed", run.Outcome)
		}
		return
	}
	want := record.OutcomeOf(code, "")
	if got, known := run.Outcome.ExitCode.Get(); !known || got != code || run.Outcome.State != want.State {
		t.Errorf("recorded as %+v, want %s with %d", run.Outcome, want.State, code)
	}
	if said != "" && run.Outcome.Reason != said {
		t.Errorf("recorded because of %q, the launcher said %q", run.Outcome.Reason, said)
	}
	if n := len(run.Attempts); n != 1 || run.Attempts[0].Outcome != run.Outcome && code != 0 {
		t.Errorf("recorded as %+v after the attempts %+v", run.Outcome, run.Attempts)
	}
	if _, ended := run.Ended.Get(); !ended {
		t.Error("the record has no end")
	}
	left, err := filepath.Glob(filepath.Join(w.runDir(), ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	if _, err := os.Stat(filepath.Join(w.runDir(), "control.json")); err == nil {
		t.Error("the secret is left")
	}
}
