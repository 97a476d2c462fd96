package launcher

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// markVariable marks all processes of one test, so that none is overlooked.
const markVariable = "GOFSDP_TEST_MARK"

// ownVariable is what the agent gives each rank of its own.
const ownVariable = "GOFSDP_TEST_OWN"

// deadline and startWithin are those of runs in which nobody falls silent: longer than a busy machine keeps a
// process waiting. Where somebody does, the deadline is waited for, and hang is that.
const (
	deadline    = 20 * time.Second * slowness
	startWithin = 5 * deadline
	hang        = 5 * time.Second * slowness
)

// TestMain makes this binary a launcher, an agent or a rank, by its argument.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "launcher":
			os.Exit(launcherMain())
		case "agent":
			os.Exit(RunAgent(told(), []string{os.Args[0], "rank"}, Node{Files: func(first Start) (files []*os.File, err error) {
				for _, name := range []string{fmt.Sprintf("gofsdp-test-%d-ranks-", first.LocalRanks), "gofsdp-test-mesh-" + first.Mesh} {
					f, err := os.CreateTemp("", name)
					if err != nil {
						return files, err
					}
					files = append(files, f)
					if err := os.Remove(f.Name()); err != nil {
						return files, err
					}
				}
				return files, nil
			}, Environment: func(rank Start, job []string) ([]string, error) {
				var s script
				if err := json.Unmarshal(rank.Config, &s); err != nil {
					return nil, err
				}
				if s.Act == "unprepared" && s.Rank == rank.Rank {
					return nil, errors.New("nobody knows its environment")
				}
				return []string{fmt.Sprintf("%s=rank %d, job %v", ownVariable, rank.Rank, job)}, nil
			}}))
		case "rank":
			os.Exit(rankMain())
		}
	}
	if signal.Ignored(os.Interrupt) { // in a shell's background; the processes of the tests must not inherit it
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	goleak.VerifyTestMain(m)
}

// script is what the ranks of a test do; it travels as the configuration.
type script struct {
	Steps int // then all is done; 0 for no end
	Nodes int // of two ranks; 0 is 1
	Rank  int // the one that acts

	Missing bool // all nodes but the first are asked for and never come

	Deadline time.Duration // 0 is deadline

	// Act is what all do: "chatter" prints much, "deaf" never ends when asked,
	// "environment" prints ownVariable; "unprepared" is Rank, which its agent cannot start;
	// or Rank, when done: "linger"; or Rank at step 3: "done 4" (a word with
	// that code), "exit 7", "panic 0", "garbage 0" (to its agent).
	Act string

	Dir string // where each rank leaves its process's number
}

func (s script) job(t testing.TB) Job {
	config, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	job := Job{
		Settings: Settings{Deadline: cmp.Or(s.Deadline, deadline), StartWithin: startWithin},
		Run:      "test", Nodes: max(s.Nodes, 1), Ranks: 2, Mesh: "2x1", Config: config, Dir: s.Dir,
		Placer: Local{Command: []string{os.Args[0], "agent"}, Stderr: os.Stderr},
	}
	if s.Missing {
		job.Placer = &onlyFirst{Placer: job.Placer}
	}
	return job
}

// onlyFirst places the first agent, and waits for machines for the others.
type onlyFirst struct {
	Placer
	placed bool
}

func (o *onlyFirst) Place(environment []string) (Placement, error) {
	if o.placed {
		return awaited{make(chan struct{})}, nil
	}
	o.placed = true
	return o.Placer.Place(environment)
}

// awaited is an agent whose machine has not come.
type awaited struct{ ended chan struct{} }

func (awaited) Running() bool            { return false }
func (a awaited) Ended() <-chan struct{} { return a.ended }
func (awaited) How() (string, bool)      { return "was not wanted any more", false }
func (a awaited) Kill()                  { close(a.ended) }

// interrupted is a cause as the command line has it.
type interrupted struct{ code int }

func (i interrupted) Error() string { return "interrupted" }
func (i interrupted) ExitCode() int { return i.code }

// told returns a context that the first signal ends, as the command line does:
// the second one has its plain effect.
func told() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		got := <-signals
		signal.Stop(signals)
		code := exitInterrupted
		if got == syscall.SIGTERM {
			code = exitTerminated
		}
		cancel(interrupted{code})
	}()
	return ctx
}

// launcherMain runs the job of its script, until signals stop it.
func launcherMain() int {
	var s script
	if err := json.Unmarshal([]byte(os.Args[2]), &s); err != nil {
		panic(err)
	}
	job := s.job(nil)
	job.Stdout, job.Stderr = os.Stdout, os.Stderr
	outcome, err := Run(told(), job)
	if err != nil {
		panic(err)
	}
	text, _ := json.Marshal(outcome)
	os.WriteFile(filepath.Join(s.Dir, "outcome"), text, 0o666)
	return outcome.Code
}

// rankMain exchanges its step until it is told to end, and acts by its script.
func rankMain() int {
	c, err := Join()
	if err != nil {
		panic(err)
	}
	var s script
	if err := json.Unmarshal(c.Start().Config, &s); err != nil {
		panic(err)
	}
	me := c.Start().Rank
	ctx := told()
	context.AfterFunc(ctx, func() { c.Told(context.Cause(ctx).Error()) })
	pid := filepath.Join(s.Dir, "pid-"+strconv.Itoa(me))
	os.WriteFile(pid+".new", []byte(strconv.Itoa(os.Getpid())), 0o666)
	os.Rename(pid+".new", pid)
	if s.Act == "environment" {
		fmt.Println(os.Getenv(ownVariable))
	}
	code, reason := rankSteps(c, s, me)
	if err := c.Done(code, reason); err != nil {
		panic(err)
	}
	if s.Act == "linger" && me == s.Rank {
		time.Sleep(time.Hour)
	}
	return code
}

func rankSteps(c *Client, s script, me int) (code int, reason string) {
	for step := 0; s.Steps == 0 || step < s.Steps; step++ {
		select {
		case <-c.Stopping():
			if s.Act != "deaf" {
				return exitInterrupted, ""
			}
		default:
		}
		if step == 3 && me == s.Rank {
			act, n, _ := strings.Cut(s.Act, " ")
			number, _ := strconv.Atoi(n)
			switch act {
			case "done":
				return number, "by its own word"
			case "exit":
				os.Exit(number)
			case "panic":
				panic("out of its mind")
			case "garbage":
				c.link.Conn.Write(bytes.Repeat([]byte{0xff}, 64))
			}
		}
		if s.Act == "chatter" {
			for range 20 {
				fmt.Println(strings.Repeat("x", 8000))
			}
		}
		// The loop agrees on when to stop, as training does.
		wish := "go on"
		select {
		case <-c.Stopping():
			wish = "stop"
		default:
		}
		values, err := c.Exchange(context.Background(), "step", fmt.Appendf(nil, "%d %d %s", step, me, wish))
		if err != nil {
			var stopped Stopped
			if !errors.As(err, &stopped) {
				return 1, err.Error()
			}
			return stopped.ExitCode(), err.Error()
		}
		stop := false
		for r, v := range values {
			if want := fmt.Sprintf("%d %d ", step, r); !bytes.HasPrefix(v, []byte(want)) {
				return 1, fmt.Sprintf("rank %d gave %q, want %q", r, v, want)
			}
			stop = stop || bytes.HasSuffix(v, []byte("stop"))
		}
		if stop && s.Act != "deaf" {
			return exitInterrupted, ""
		}
		c.Report("step", strconv.Itoa(step))
		time.Sleep(2 * time.Millisecond)
	}
	fmt.Println("all steps are done")
	fmt.Fprintln(os.Stderr, "no complaints")
	return 0, ""
}

// process is a launcher in a process of its own, with all that it started.
type process struct {
	t      testing.TB
	dir    string
	mark   string
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan struct{}
}

// launch starts a launcher, and sees to it that nothing is left at the end.
func launch(t testing.TB, s script) *process {
	t.Helper()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skipf("what is left of a run is looked for in /proc: %v", err)
	}
	s.Dir = t.TempDir()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, dir: s.Dir, mark: markVariable + "=" + s.Dir, ended: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], "launcher", string(text))
	p.cmd.Env = append(os.Environ(), p.mark)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = childAttributes(false)
	c, err := startChild(p.cmd, false)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-c.ended
		close(p.ended)
	}()
	t.Cleanup(func() {
		for pid := range p.alive() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		<-p.ended
		if t.Failed() {
			outcome, _ := os.ReadFile(filepath.Join(p.dir, "outcome"))
			t.Logf("the run ended with %s; the processes said:\n%s", outcome, &p.output)
		}
	})
	return p
}

// alive returns the run's processes, each with its role.
func (p *process) alive() map[int]string {
	found := map[int]string{}
	entries, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range entries {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environ, []byte(p.mark+"\x00")) {
			continue // another's, or ended meanwhile
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if words := bytes.Split(line, []byte{0}); len(words) > 1 {
			found[pid] = string(words[1])
		}
	}
	return found
}

// await polls until what is wanted holds.
func await(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}

// rank returns the process of a rank, once it is there.
func (p *process) rank(n int) (pid int) {
	p.t.Helper()
	await(p.t, time.Minute, fmt.Sprintf("rank %d runs", n), func() bool {
		pid = p.findRank(n)
		return pid > 0
	})
	return pid
}

// findRank returns the process of a rank, 0 before it is there.
func (p *process) findRank(n int) int {
	text, _ := os.ReadFile(filepath.Join(p.dir, "pid-"+strconv.Itoa(n)))
	pid, _ := strconv.Atoi(string(text))
	return pid
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// findAgent returns the process of the agent, 0 before it is there.
func (p *process) findAgent() (agent int) {
	for pid, role := range p.alive() {
		if role == "agent" {
			agent = pid
		}
	}
	return agent
}

// parent returns the process that started another.
func (p *process) parent(pid int) int {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		p.t.Fatal(err)
	}
	// The name, in parentheses, may hold anything; then come state and parent.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		p.t.Fatal(err)
	}
	return parent
}

// end waits for the launcher, and returns its exit code (-1 for a signal) and
// what it made of the run. Nothing of the run may be left then.
func (p *process) end(within time.Duration) (int, Outcome) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(within):
		p.t.Fatalf("the launcher has not ended within %v; there are %v", within, p.alive())
	}
	await(p.t, within, "nothing is left", func() bool { return len(p.alive()) == 0 })
	var o Outcome
	if text, err := os.ReadFile(filepath.Join(p.dir, "outcome")); err == nil {
		if err := json.Unmarshal(text, &o); err != nil {
			p.t.Fatal(err)
		}
	}
	return p.cmd.ProcessState.ExitCode(), o
}
