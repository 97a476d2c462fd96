package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/record"
)

// session is the program as a process of its own, in a directory with a shape,
// text and a run.yaml.
type session struct {
	t     *testing.T
	dir   string
	run   *exec.Cmd
	lines chan string
	out   bytes.Buffer // what came from lines
	err   bytes.Buffer
}

const (
	sessionShape = `{"model_type": "qwen2", "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
  "max_position_embeddings": 128, "tie_word_embeddings": true}`
	sessionConfig = `
model: shape
data: {path: [text], holdout: 0.25, sequence_length: 64, tokenizer: train, vocab_size: 270}
train: {steps: 1000000, batch: 4, baseline: none}
run: {name: mine}
`
)

// begin starts the program.
func begin(t *testing.T, env []string, args ...string) *session {
	t.Helper()
	s := &session{t: t, dir: t.TempDir(), lines: make(chan string, 1000)}
	files := map[string]string{"shape/config.json": sessionShape, "run.yaml": sessionConfig}
	for i := range 8 {
		files[fmt.Sprintf("text/%d.txt", i)] = strings.Repeat(fmt.Sprintf("the %d cats and the old dogs run. ", i), 60)
	}
	for name, text := range files {
		path := filepath.Join(s.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	s.run = exec.Command("gofsdp", args...)
	s.run.Dir = s.dir
	s.run.Env = append(append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(s.dir, ".cache")), env...)
	s.run.Stderr = &s.err
	out, err := s.run.StdoutPipe()
	if err == nil {
		err = s.run.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.run.Process.Kill() })
	go func() {
		defer close(s.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.lines <- lines.Text()
		}
	}()
	return s
}

// until waits for a line that contains text.
func (s *session) until(text string) {
	s.t.Helper()
	for line := range s.lines {
		fmt.Fprintln(&s.out, line)
		if strings.Contains(line, text) {
			return
		}
	}
	s.t.Fatalf("the program never printed %q, but\n%s%s", text, &s.out, &s.err)
}

func (s *session) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.run.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// end waits for the end and returns how it came.
func (s *session) end() syscall.WaitStatus {
	for line := range s.lines {
		fmt.Fprintln(&s.out, line)
	}
	s.run.Wait() // its error is the status
	return s.run.ProcessState.Sys().(syscall.WaitStatus)
}

func TestASignalEndsTrainingAfterTheStepWithEverythingWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGINT, exitInterrupted}, {syscall.SIGTERM, exitTerminated}} {
		s := begin(t, nil, "train", "run.yaml")
		s.until("step ")
		s.signal(c.signal)
		if status := s.end(); status.ExitStatus() != c.code || s.err.Len() > 0 {
			t.Fatalf("%v: exit code %d, want %d and no word; it said\n%s%s", c.signal, status.ExitStatus(), c.code, &s.out, &s.err)
		}
		dir, err := record.Open(filepath.Join(s.dir, "runs", "mine"))
		if err != nil {
			t.Fatal(err)
		}
		run, err := dir.ReadRun()
		if err != nil {
			t.Fatal(err)
		}
		if code, _ := run.Outcome.ExitCode.Get(); run.Outcome.State != record.Interrupted || code != c.code || run.Outcome.Reason != "interrupted by "+unix.SignalName(c.signal) {
			t.Errorf("%v: recorded as %+v", c.signal, run.Outcome)
		}
		steps, _ := run.Figures.Steps.Get()
		if want := fmt.Sprintf("stopped after step %d; the weights are in runs/mine/model\n", steps); steps == 0 || !strings.HasSuffix(s.out.String(), want) {
			t.Errorf("%v: the last line is not %q:\n%s", c.signal, want, &s.out)
		}
		progress, err := os.ReadFile(dir.ProgressFile())
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(progress, []byte("\n")); int64(lines) != steps+1 {
			t.Errorf("%v: progress.csv has %d lines for %d steps", c.signal, lines, steps)
		}
		result, err := dir.ReadResult()
		if err != nil {
			t.Fatal(err)
		}
		if !result.Done || int64(result.TrainingIteration) != steps {
			t.Errorf("%v: the result says step %d, done %v; want %d, true", c.signal, result.TrainingIteration, result.Done, steps)
		}
		use := exec.Command("gofsdp", "generate", dir.ModelDir(), "-p", "the", "-n", "3")
		if out, err := use.CombinedOutput(); err != nil {
			t.Errorf("%v: the weights cannot be used: %v\n%s", c.signal, err, out)
		}
	}
}

func TestARunWhoseWeightsCannotBeWrittenHasFailed(t *testing.T) {
	t.Parallel()
	s := begin(t, nil, "train", "run.yaml")
	s.until("step ")
	if err := os.Mkdir(filepath.Join(s.dir, "runs", "mine", "model"), 0o777); err != nil {
		t.Fatal(err)
	}
	s.signal(syscall.SIGINT)
	const want = "gofsdp: writing the model: runs/mine/model exists already; choose another directory or remove it\n"
	if status := s.end(); status.ExitStatus() != exitFailure || s.err.String() != want {
		t.Errorf("exit code %d, want %d and %q; it said\n%s%s", status.ExitStatus(), exitFailure, want, &s.out, &s.err)
	}
	run, err := record.LoadRun(filepath.Join(s.dir, "runs", "mine", "run.json"))
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := run.Outcome.ExitCode.Get(); run.Outcome.State != record.Failed || code != exitFailure || "gofsdp: "+run.Outcome.Reason+"\n" != want {
		t.Errorf("recorded as %+v", run.Outcome)
	}
}

func TestASecondCtrlCEndsAtOnce(t *testing.T) {
	t.Parallel()
	// A step of these takes seconds, so the second one is at work when the
	// signals come. How soon the first is noticed depends on the machine's
	// load: the second is sent until it is. Where the step has ended before,
	// a longer one is taken.
	for batch := 40_000; ; batch *= 4 {
		s := begin(t, nil, "train", "run.yaml", "--set", "train.batch="+strconv.Itoa(batch), "--set", "scaling.threads=1")
		s.until("step ")
		time.Sleep(500 * time.Millisecond) // between two steps one would be enough
		s.signal(syscall.SIGINT)
		ended := make(chan struct{})
		go func() {
			for {
				select {
				case <-ended:
					return
				case <-time.After(200 * time.Millisecond):
					s.run.Process.Signal(syscall.SIGINT) // an ended process refuses it
				}
			}
		}()
		status := s.end()
		close(ended)
		if status.Signaled() && status.Signal() == syscall.SIGINT {
			return
		}
		if status.ExitStatus() != exitInterrupted || batch > 500_000 {
			t.Fatalf("the program ended with %v, want at once by the signal\n%s%s", status, &s.out, &s.err)
		}
		t.Logf("a step of %d ended before the second signal came", batch)
	}
}

func TestASignalDuringPreparationLeavesNoRun(t *testing.T) {
	t.Parallel()
	// The go command of this directory is asked where Go's sources are, and
	// never answers.
	bin := t.TempDir()
	fake := "#!/bin/sh\ntouch \"$0.asked\"\nexec sleep 600\n"
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(fake), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"train", "run.yaml", "--set", "data.path=gosource"},
		{"data", "tokenizer", "gosource"},
	} {
		s := begin(t, []string{"PATH=" + bin + ":" + os.Getenv("PATH")}, args...)
		asked := filepath.Join(bin, "go.asked")
		for deadline := time.Now().Add(time.Minute); os.Remove(asked) != nil; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: preparation never began\n%s", args, &s.err)
			}
		}
		began := time.Now()
		s.signal(syscall.SIGINT)
		if status := s.end(); status.ExitStatus() != exitInterrupted || s.err.Len() > 0 || time.Since(began) > time.Minute {
			t.Errorf("%s: exit code %d after %v, want %d at once and no word; it said\n%s%s", args, status.ExitStatus(), time.Since(began), exitInterrupted, &s.out, &s.err)
		}
		left, err := os.ReadDir(s.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range left {
			if name := file.Name(); name != ".cache" && name != "shape" && name != "text" && name != "run.yaml" {
				t.Errorf("%s: %s is there", args, name)
			}
		}
	}
}

func TestRanksEndTogetherAfterASignal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGINT, exitInterrupted}, {syscall.SIGTERM, exitTerminated}} {
		s := begin(t, nil, "train", "run.yaml", "--ranks", "2")
		s.until("step ")
		s.signal(c.signal)
		if status := s.end(); status.ExitStatus() != c.code || s.err.Len() > 0 {
			t.Fatalf("%v: exit code %d, want %d and no word; it said\n%s%s", c.signal, status.ExitStatus(), c.code, &s.out, &s.err)
		}
		run, err := record.LoadRun(filepath.Join(s.dir, "runs", "mine", "run.json"))
		if err != nil {
			t.Fatal(err)
		}
		if code, _ := run.Outcome.ExitCode.Get(); run.Outcome.State != record.Interrupted || code != c.code {
			t.Errorf("%v: recorded as %+v", c.signal, run.Outcome)
		}
		steps, _ := run.Figures.Steps.Get()
		if want := fmt.Sprintf("stopped after step %d; the weights are in runs/mine/model\n", steps); steps == 0 || !strings.HasSuffix(s.out.String(), want) {
			t.Errorf("%v: the last line is not %q:\n%s", c.signal, want, &s.out)
		}
	}
}

func TestAKilledRankEndsTheRunWithItsNameAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	for _, rank := range []int{0, 1} {
		mark := markOf(t) + strconv.Itoa(rank)
		s := begin(t, []string{mark}, "train", "run.yaml", "--ranks", "2", "--set", "run.processes.deadline=30s")
		s.until("step ")
		var ranks []int
		for _, pid := range marked(t, mark) {
			if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("\x00rank\x00")) {
				ranks = append(ranks, pid)
			}
		}
		if len(ranks) != 2 {
			t.Fatalf("the ranks are %v", ranks)
		}
		syscall.Kill(ranks[rank], syscall.SIGKILL)
		status := s.end()
		if status.ExitStatus() != exitLost || strings.Count(s.err.String(), "gofsdp: ") != 1 || !strings.Contains(s.err.String(), "was killed by signal 9") {
			t.Errorf("exit code %d, want %d and one word of who was killed; it said\n%s%s", status.ExitStatus(), exitLost, &s.out, &s.err)
		}
		await(t, "the end of all", func() bool { return len(marked(t, mark)) == 0 })
		run, err := record.LoadRun(filepath.Join(s.dir, "runs", "mine", "run.json"))
		if err != nil {
			t.Fatal(err)
		}
		if code, _ := run.Outcome.ExitCode.Get(); run.Outcome.State != record.Failed || code != exitLost {
			t.Errorf("recorded as %+v", run.Outcome)
		}
	}
}

// await waits until something holds, for much longer than any deadline.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// markOf returns a mark for the environment of a test's processes, which those of no other have, be it the same
// one in another process.
func markOf(t *testing.T) string {
	return fmt.Sprintf("GOFSDP_TEST_MARK=%d-%s-", os.Getpid(), t.Name())
}

// marked returns the processes that have a mark in their environment, in the order in which they began.
func marked(t *testing.T, mark string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || len(files) == 0 {
		t.Skip("this system does not show the environment of processes")
	}
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && bytes.Contains(text, []byte(mark+"\x00")) {
			var pid int
			if _, err := fmt.Sscanf(f, "/proc/%d/environ", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	// Numbers of processes begin again where they end.
	slices.SortFunc(pids, func(a, b int) int { return cmp.Or(cmp.Compare(beganAt(a), beganAt(b)), cmp.Compare(a, b)) })
	return pids
}

// statOf returns what /proc says of a process behind its name, which may hold anything: its state, its parent and
// what follows; nothing of one that has ended.
func statOf(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// beganAt is when a process began, in the system's ticks.
func beganAt(pid int) (ticks uint64) {
	if f := statOf(pid); len(f) > 19 {
		ticks, _ = strconv.ParseUint(f[19], 10, 64)
	}
	return ticks
}
