package scenario

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// TestMain makes this program a side where it is called as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == fakeSide {
		os.Exit(fake(os.Args[2], os.Args[3:]))
	}
	os.Exit(m.Run())
}

// fakeSide as the first argument is followed by what the side is to do.
const fakeSide = "fake-side"

// fake is a side that behaves in some way. Its last two arguments are --task and
// the file, but for a start-up.
func fake(way string, args []string) int {
	switch way {
	case "start":
		fmt.Fprintln(os.Stderr, "joining")
		fmt.Printf("first step of 1\nfirst step of 2\n")
		return 0
	case "sleep": // as a worker that heeds nobody, in a session of its own
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("asleep")
		time.Sleep(time.Hour)
	}
	var task Task
	text, err := os.ReadFile(args[len(args)-1])
	if err == nil {
		err = json.Unmarshal(text, &task)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	write := func(text string) int {
		if err := os.WriteFile(task.Out, []byte(text), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	switch way {
	case "takes": // SECONDS LOSS
		seconds, _ := strconv.ParseFloat(args[0], 64)
		loss, _ := strconv.ParseFloat(args[1], 64)
		m := Sample{Format: TaskFormat, Versions: map[string]string{"fake": "1"}}
		for _, c := range task.Work.Cases {
			m.Cases = append(m.Cases, Case{
				Name: c.Name, Tokens: task.Work.tokensOf(c), Losses: []float64{5, loss}, Seconds: []float64{seconds}, Peak: []int64{7},
			})
		}
		text, _ := json.Marshal(m)
		return write(string(text))
	case "says": // to standard error, and fails
		for i := range 100 {
			fmt.Fprintf(os.Stderr, "line %d\n", i)
		}
		fmt.Fprintln(os.Stderr, args[0])
		return 3
	case "tells where": // its task lies and it runs, and fails
		dir, _ := os.Getwd()
		home, _ := os.UserHomeDir()
		fmt.Fprintf(os.Stderr, "task %s, program %s/side.py, others %sish/side.py, home %s/.cache\n", task.Out, dir, dir, home)
		return 3
	case "tells": // what it is to compute on, and fails
		fmt.Fprintf(os.Stderr, "device %q, GPUs %q\n", task.Device, os.Getenv("CUDA_VISIBLE_DEVICES"))
		return 3
	case "kills itself":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Hour)
	case "writes":
		return write(args[0])
	case "hangs": // with a worker, whose number it writes to a file
		worker := exec.Command(os.Args[0], fakeSide, "sleep")
		worker.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := worker.StdoutPipe()
		if err == nil {
			err = worker.Start()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		bufio.NewReader(out).ReadString('\n')
		if err := os.WriteFile(args[0], []byte(fmt.Sprint(os.Getpid(), " ", worker.Process.Pid, "\n")), 0o600); err != nil {
			return 1
		}
		if args[1] == "forever" {
			time.Sleep(time.Hour)
		}
		return write(args[2])
	}
	return 0 // "nothing"
}

// machine is a device of which only the limits are there. They are higher each
// time that all are measured, and lower with each of the readings of one time.
type machine struct {
	device.Device
	read *float64 // how often
}

func (m machine) limit() float64 {
	times, more := math.Modf((*m.read - 1) / readings)
	return 100*(times+1) + 1 - 10*more
}

func (machine) Info() device.Info { return device.Info{Name: "fake", Threads: 2} }
func (machine) Close() error      { return nil }
func (m machine) PeakFLOPS(typ device.DType, d time.Duration) float64 {
	if d == reading && typ == device.F32 {
		*m.read++
	}
	return m.limit()
}
func (m machine) CopyBandwidth(time.Duration) float64  { return m.limit() }
func (m machine) TriadBandwidth(time.Duration) float64 { return m.limit() }

// runner returns a runner of fakes, and what it says.
func runner(t *testing.T) (*Runner, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	said, read := &bytes.Buffer{}, 0.0
	r := &Runner{
		Open:   func(int) (device.Device, error) { return machine{read: &read}, nil },
		Gofsdp: self, Python: self, Dir: t.TempDir(), Within: time.Minute, Command: []string{"test"}, Log: io.Discard,
		Say: func(format string, args ...any) { fmt.Fprintf(said, format+"\n", args...) },
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, said
}

// comparison returns a scenario of fake sides.
func comparison(rounds int, sides ...Side) *Scenario {
	return &Scenario{
		Name: "fakes", Title: "Fakes", Rounds: rounds, Sides: sides, Agree: 0.01,
		Work: Work{
			Kind: Steps, Model: "tiny", Precision: "f32", Length: 8, Sequences: 1, Ranks: 2, Threads: 1, Warm: 1, Timed: 1,
			Cases: []StepCase{{Name: "plain", Strategy: "full_shard"}},
		},
	}
}

func side(name string, does ...string) Side {
	return Side{Name: name, Command: append([]string{"gofsdp", fakeSide}, does...)}
}

func TestSidesTakeTurnsAndAreJudgedByRound(t *testing.T) {
	r, said := runner(t)
	var log bytes.Buffer
	r.Log = &log
	s := comparison(3, side("a", "takes", "1", "4"), side("b", "takes", "2", "4"), side("c", "takes", "4", "4"))
	s.Ratios = []Ratio{{Of: "a", Against: "c", By: BySpeed, Firm: 3, Aim: 4}, {Of: "a", Against: "b", By: ByMemory}}
	s.Shares = []Share{{Of: "a"}}
	res, err := r.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Err(); err != nil {
		t.Error(err)
	}
	var order []string
	for _, round := range res.Rounds {
		for _, run := range round.Runs {
			order = append(order, run.Side)
		}
	}
	if want := []string{"a", "b", "c", "b", "c", "a", "c", "a", "b"}; !slices.Equal(order, want) {
		t.Errorf("sides ran as %v, want %v", order, want)
	}
	// Readings are 101, 201, ...: a run has the mean of the one before it and the one after.
	for i, run := range slices.Concat(res.Rounds[0].Runs, res.Rounds[1].Runs) {
		if want := float64(151 + 100*i); run.Limits != (Limits{want, want, want}) {
			t.Errorf("run %d has limits %v, want %v each", i, run.Limits, want)
		}
	}
	f := res.Ratios[0]
	if !near(f.Pairs, []float64{4, 4, 4}) || f.Verdict != Aimed || res.Ratios[1].Spread.Median != 1 {
		t.Errorf("the ratios are %+v", res.Ratios)
	}
	// 16 tokens in a second, in the first round at 151 FLOP/s.
	if want := 16 * res.FLOPsPerToken / 151; res.FLOPsPerToken == 0 || !near(res.Shares[0].Values[:1], []float64{want}) {
		t.Errorf("the first share is %v, want %v", res.Shares[0].Values, want)
	}
	if res.Parameters != 3_150_144 || res.Device.Name != "fake" || res.Rounds[0].Runs[0].Sample.Versions["fake"] != "1" {
		t.Errorf("the result describes %d parameters on %q by %v", res.Parameters, res.Device.Name, res.Rounds[0].Runs[0].Sample.Versions)
	}
	if want := "fakes: round 2 of 3: b: 2 s a step\n"; !strings.Contains(said.String(), want) {
		t.Errorf("it says\n%s\nwant %s", said, want)
	}
	if n := strings.Count(log.String(), "=== fakes: "); n != 9 {
		t.Errorf("the log has %d runs, want 9:\n%s", n, &log)
	}
	path := filepath.Join(t.TempDir(), "fakes.json")
	if err := res.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	var read Result
	if text, err := os.ReadFile(path); err != nil || json.Unmarshal(text, &read) != nil || len(read.Rounds) != 3 || read.Ratios[0].Spread != f.Spread {
		t.Errorf("the file holds %+v: %v", read, err)
	}
}

func TestASideThatFailsIsRecordedAsWhatItDiedOf(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		does   []string
		reason string
		text   string
		tries  int // of two rounds
	}{
		"memory that PyTorch misses":  {[]string{"says", "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"}, OutOfMemory, "line 99\nRuntimeError", 1},
		"memory that Python misses":   {[]string{"says", "MemoryError"}, OutOfMemory, "MemoryError", 1},
		"memory that Go misses":       {[]string{"says", "fatal error: runtime: out of memory"}, OutOfMemory, "out of memory", 1},
		"an error":                    {[]string{"says", "ValueError: no"}, Failed, "line 99\nValueError: no", 2},
		"where it lies":               {[]string{"tells where"}, Failed, "task TASK/sample.json, program ./side.py, others ", 2},
		"a signal without a word":     {[]string{"kills itself"}, Failed, "signal: killed", 2},
		"no sample":                   {[]string{"nothing"}, Failed, "it ended well but wrote no sample", 2},
		"garbage":                     {[]string{"writes", "not JSON"}, Failed, "its sample cannot be read: invalid character", 2},
		"a number that JSON has none": {[]string{"writes", `{"format": 1, "cases": [{"name": "plain", "losses": [NaN]}]}`}, Failed, "its sample cannot be read: ", 2},
		"a key that nobody knows":     {[]string{"writes", `{"format": 1, "speed": 3}`}, Failed, `its sample cannot be read: json: unknown field "speed"`, 2},
		"a sample of other work":      {[]string{"writes", `{"format": 1, "cases": [{"name": "x", "seconds": [1]}]}`}, Failed, `its sample does not fit the task: there is no case "x"`, 2},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, said := runner(t)
			var log bytes.Buffer
			r.Log = &log
			s := comparison(2, side("good", "takes", "1", "4"), side("bad", c.does...))
			s.Ratios = []Ratio{{Of: "good", Against: "bad", By: BySpeed, Firm: 1}}
			res, err := r.Run(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			for i := range res.Rounds {
				run := res.Rounds[i].of("bad")
				if f := run.Failure; run.Sample != nil || f == nil || f.Reason != c.reason || !strings.Contains(f.Text, c.text) || strings.Contains(f.Text, "line 50") {
					t.Errorf("round %d: %+v, want %s with the text %q", i+1, run.Failure, c.reason, c.text)
				}
				if res.Rounds[i].of("good").Sample == nil {
					t.Errorf("round %d: the other side failed too", i+1)
				}
			}
			if n := strings.Count(log.String(), "=== fakes: bad"); n != c.tries {
				t.Errorf("it was run %d times, want %d", n, c.tries)
			}
			if f := res.Ratios[0]; f.Failure != "bad: "+c.reason || f.Verdict != NoTarget {
				t.Errorf("the ratio is %+v", f)
			}
			if err := res.Err(); (err == nil) != (c.reason == OutOfMemory) {
				t.Errorf("the error at the end is %v", err)
			}
			if want := "round 1 of 2: bad: " + c.reason; !strings.Contains(said.String(), want) {
				t.Errorf("it says\n%s\nwant %s", said, want)
			}
		})
	}
}

func TestLossesThatDisagreeAreAnErrorBesideTheResult(t *testing.T) {
	r, _ := runner(t)
	res, err := r.Run(t.Context(), comparison(1, side("a", "takes", "1", "4"), side("b", "takes", "1", "4.1")))
	if err != nil {
		t.Fatal(err)
	}
	const want = "the losses of a and b disagree at step 2 of plain: 4 and 4.1 differ by 0.024"
	if err := res.Err(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

func TestAStartUpEndsWithTheMarkedLine(t *testing.T) {
	r, _ := runner(t)
	s := &Scenario{
		Name: "start", Rounds: 1, Work: Work{Kind: Startup, Ranks: 2},
		Sides: []Side{
			{Name: "out", Command: []string{"gofsdp", fakeSide, "start", "{scratch}/x"}, Marker: "^first step of 2$"},
			{Name: "err", Command: []string{"gofsdp", fakeSide, "start"}, Marker: "joining"},
			{Name: "never", Command: []string{"gofsdp", fakeSide, "start"}, Marker: "^step"},
		},
		Ratios: []Ratio{{Of: "out", Against: "err", By: BySpeed}},
	}
	var log bytes.Buffer
	r.Log = &log
	res, err := r.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"out", "err"} {
		run := res.Rounds[0].of(name)
		if run.Sample == nil || len(run.Sample.Cases) != 1 || run.Sample.Cases[0].Name != "first step" {
			t.Fatalf("%s: %+v, %+v", name, run.Sample, run.Failure)
		}
		if s := run.Sample.Cases[0].Seconds; len(s) != 1 || s[0] <= 0 || s[0] > run.Seconds {
			t.Errorf("%s: the start-up took %v of %v s", name, s, run.Seconds)
		}
	}
	if f := res.Rounds[0].of("never").Failure; f == nil || f.Reason != Failed || !strings.Contains(f.Text, `it wrote no line that "^step" matches`) {
		t.Errorf("a start-up without its line: %+v", f)
	}
	if len(res.Ratios[0].Pairs) != 1 {
		t.Errorf("the ratio is %+v", res.Ratios[0])
	}
	if strings.Contains(log.String(), "{scratch}") || !strings.Contains(log.String(), "first step of 1\n") {
		t.Errorf("the log is\n%s", &log)
	}
}

// gone waits until processes have ended, and fails where they never do.
func gone(t *testing.T, pids string) {
	t.Helper()
	for _, pid := range strings.Fields(pids) {
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			text, err := os.ReadFile("/proc/" + pid + "/stat")
			if _, state, _ := strings.Cut(string(text), ") "); err != nil || strings.HasPrefix(state, "Z") {
				break // a zombie is its parent's to wait for
			}
			if time.Since(began) > time.Minute {
				t.Errorf("process %s is still there: %s", pid, text)
				break
			}
		}
	}
}

func TestASideThatTakesTooLongIsRecordedAsThat(t *testing.T) {
	t.Parallel()
	r, said := runner(t)
	r.Within = 200 * time.Millisecond
	res, err := r.Run(t.Context(), comparison(2, side("slow", "sleep")))
	if err != nil {
		t.Fatal(err)
	}
	for i, round := range res.Rounds {
		if f := round.Runs[0].Failure; f == nil || f.Reason != TimedOut {
			t.Errorf("round %d: %+v", i+1, f)
		}
	}
	if res.Rounds[1].Runs[0].Seconds != 0 {
		t.Error("what took too long was run again")
	}
	if err := res.Err(); err == nil || !strings.Contains(err.Error(), "slow timed out in round 1") || strings.Count(err.Error(), "slow") != 1 {
		t.Errorf("the error is %v; it said %s", err, said)
	}
}

func TestWhatASideLeavesRunningEndsWithIt(t *testing.T) {
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("processes are found in /proc, which is Linux's")
	}
	t.Parallel()
	r, _ := runner(t)
	pids := filepath.Join(t.TempDir(), "pids")
	res, err := r.Run(t.Context(), comparison(1, side("a", "hangs", pids, "once", "{}")))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(pids)
	if err != nil {
		t.Fatalf("%v: %+v", err, res.Rounds[0].Runs[0].Failure)
	}
	gone(t, string(text))
}

func TestAnInterruptionLeavesNothingBehind(t *testing.T) {
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("processes are found in /proc, which is Linux's")
	}
	t.Parallel()
	r, _ := runner(t)
	pids := filepath.Join(t.TempDir(), "pids")
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() {
		await(pids)
		cancel()
	})
	res, err := r.Run(ctx, comparison(2, side("a", "hangs", pids, "forever")))
	wait.Wait()
	if res != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v and %v", res, err)
	}
	text, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	gone(t, string(text))
	dir := r.starts.dir
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

// await waits until a file is there, for a minute.
func await(path string) {
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
		if text, err := os.ReadFile(path); err == nil && bytes.HasSuffix(text, []byte("\n")) {
			return
		}
	}
}

func TestNothingRunsWithoutItsPrograms(t *testing.T) {
	r, _ := runner(t)
	r.Python = filepath.Join(r.Dir, ".venv/peers/bin/python")
	err := r.Check(&Scenario{Name: "x", Sides: []Side{
		{Name: "ours", Command: []string{"gofsdp", "bench", "side"}},
		{Name: "theirs", Command: []string{"python", "bench/peers/none.py"}},
	}})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"x: side theirs needs " + r.Python + ", which is not there; make it with: make bench-peers",
		"x: side theirs runs bench/peers/none.py, which is not in " + r.Dir,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "ours") {
		t.Errorf("what is there is refused: %v", err)
	}
}

func TestACommandThatCannotStartIsAnError(t *testing.T) {
	r, _ := runner(t)
	r.Gofsdp = filepath.Join(r.Dir, "none")
	if _, err := r.Run(t.Context(), comparison(1, side("a", "nothing"))); err == nil || !strings.Contains(err.Error(), "fakes: a: starting ") {
		t.Errorf("the error is %v", err)
	}
}
