package launcher

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"
)

var (
	seed  = flag.Uint64("seed", 0, "of the drawn failures; 0 takes a fresh one")
	cases = flag.Int("cases", 36, "number of drawn failures")
)

// slack is what a loaded machine may add to the deadline; together they are less
// than startWithin, so that no failure hides behind that.
const slack = 3 * deadline

// slowest is how long the slowest failure took to end all.
var slowest struct {
	sync.Mutex
	took time.Duration
	what string
}

func noteSlowest(what string, took time.Duration) {
	slowest.Lock()
	defer slowest.Unlock()
	if took > slowest.took {
		slowest.took, slowest.what = took, what
	}
}

// failureCase is one thing that goes wrong with one process at one moment.
type failureCase struct {
	act     string // of the ranks meanwhile
	process string // "rank 0", "rank 1", "agent", "launcher"
	signal  syscall.Signal
	moment  moment
	after   time.Duration // since the moment came
}

// moment is how far a run has come.
type moment string

const (
	agentIsPlaced moment = "its agent is placed"
	oneOfTwoIs    moment = "one of its two agents is placed"
	ranksRun      moment = "all ranks run"
)

func (c failureCase) String() string {
	return fmt.Sprintf("%s gets signal %d %v after %s %s", c.process, c.signal, c.after.Round(time.Millisecond), c.moment, c.act)
}

// drawnCase returns case i: every pair of process and signal comes in turn, the
// rest is drawn.
func drawnCase(i int, random *rand.Rand) failureCase {
	c := failureCase{
		process: []string{"rank 0", "rank 1", "agent", "launcher"}[i%4],
		signal:  []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGTERM, syscall.SIGINT}[i/4%4],
		moment:  ranksRun,
		after:   time.Duration(random.Int64N(int64(200 * time.Millisecond))),
	}
	if random.IntN(3) == 0 {
		c.act = "chatter"
	}
	if !strings.HasPrefix(c.process, "rank") {
		c.moment = []moment{agentIsPlaced, oneOfTwoIs, ranksRun, ranksRun}[random.IntN(4)]
	}
	if c.moment == agentIsPlaced {
		c.after /= 10 // it registers soon
	}
	return c
}

// TestWhateverIsKilledOrStoppedEndsAllWithItsReason draws cases over process,
// signal and moment.
func TestWhateverIsKilledOrStoppedEndsAllWithItsReason(t *testing.T) {
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	t.Logf("replay by: go test ./launcher -run %s -args -seed=%d -cases=%d", t.Name(), first, *cases)
	random := rand.New(rand.NewPCG(first, 0))
	t.Run("drawn", func(t *testing.T) {
		for i := range *cases {
			c := drawnCase(i, random)
			t.Run(c.String(), func(t *testing.T) {
				t.Parallel()
				c.run(t)
			})
		}
	})
	t.Logf("the slowest of %d took %v: %s", *cases, slowest.took.Round(time.Millisecond), slowest.what)
}

// falseAlarm is what a run says that ends because the machine is so loaded that a
// process was not heard in time. It is done again with a longer deadline.
var falseAlarm = regexp.MustCompile(`has not been heard for|was stopped for|lost: .* code = Canceled|ended with exit code 6`)

func (c failureCase) run(t *testing.T) {
	for within := time.Second; ; within *= 3 {
		alarm := c.try(t, within)
		if alarm == "" {
			return
		}
		if within > 20*time.Second {
			t.Fatal(alarm)
		}
		t.Logf("a deadline of %v is too short for this machine now: %s", within, alarm)
	}
}

// try runs the case with a deadline. An alarm says that it came to nothing.
func (c failureCase) try(t *testing.T, within time.Duration) (alarm string) {
	s := script{Act: c.act, Deadline: within}
	if c.moment == oneOfTwoIs {
		s.Nodes, s.Missing = 2, true
	}
	p := launch(t, s)
	pid := 0
	await(t, time.Minute, c.process+" is there", func() bool {
		pid = c.find(p)
		return pid > 0 || p.hasEnded()
	})
	if pid == 0 {
		_, o := p.end(within + slack)
		if !falseAlarm.MatchString(o.Reason) {
			t.Errorf("it ended before: %+v", o)
		}
		return o.Reason
	}
	time.Sleep(c.after)
	acted := time.Now()
	if err := syscall.Kill(pid, c.signal); err != nil {
		_, o := p.end(within + slack)
		if !falseAlarm.MatchString(o.Reason) {
			t.Errorf("%v: it ended before: %+v", err, o)
		}
		return o.Reason
	}
	if c.process == "launcher" && c.signal == syscall.SIGSTOP {
		await(t, within+slack, "only the launcher is left", func() bool { return len(p.alive()) == 1 })
		noteSlowest(c.String(), time.Since(acted))
		// Its agents count from the last beat that they heard, it from what it
		// last did, which may have been later.
		time.Sleep(4 * timingOf(within).every)
		acted = time.Now()
		syscall.Kill(pid, syscall.SIGCONT)
	}
	code, o := p.end(within + slack)
	wantCode, wantReason := c.outcome()
	if code != wantCode || !wantReason.MatchString(o.Reason) {
		if falseAlarm.MatchString(o.Reason) {
			return o.Reason
		}
		t.Errorf("exit code %d with %+v, want %d because %q", code, o, wantCode, wantReason)
	}
	noteSlowest(c.String(), time.Since(acted))
	if strings.Contains(p.output.String(), "context canceled") {
		t.Error("what follows from giving up a lost launcher is told as its reason")
	}
	if strings.HasPrefix(c.process, "rank") && fmt.Sprintf("rank %d", o.Rank) != c.process {
		t.Errorf("the outcome blames rank %d, want %s", o.Rank, c.process)
	}
	return ""
}

// find returns the process that it happens to, 0 before the moment has come.
func (c failureCase) find(p *process) int {
	agent := p.findAgent()
	ranks := [2]int{p.findRank(0), p.findRank(1)}
	switch {
	case agent == 0 || c.moment == ranksRun && (ranks[0] == 0 || ranks[1] == 0):
		return 0
	case c.process == "launcher":
		return p.cmd.Process.Pid
	case c.process == "agent":
		return agent
	}
	return ranks[c.process[5]-'0']
}

// outcome is how the run is to end.
func (c failureCase) outcome() (code int, why *regexp.Regexp) {
	who := c.process
	if who == "agent" {
		who = "the agent of node 0"
	}
	killed := fmt.Sprintf("^%s was killed by signal %d ", who, c.signal)
	switch {
	case c.process == "launcher" && c.signal == syscall.SIGKILL:
		return -1, regexp.MustCompile("^$")
	case c.process == "launcher" && c.signal == syscall.SIGSTOP:
		return exitHung, regexp.MustCompile("^the launcher was stopped for ")
	case c.process == "launcher" && c.signal == syscall.SIGINT:
		return exitInterrupted, regexp.MustCompile("^interrupted$")
	case c.process == "launcher":
		return exitTerminated, regexp.MustCompile("^interrupted$")
	case c.signal == syscall.SIGSTOP:
		return exitHung, regexp.MustCompile("^" + who + " has not been heard for ")
	case c.signal == syscall.SIGKILL:
		return exitLost, regexp.MustCompile(killed)
	case c.moment == ranksRun:
		return exitLost, regexp.MustCompile("^" + who + " was told to end: interrupted$")
	}
	// A process that has just begun does not hear signals yet.
	return exitLost, regexp.MustCompile("^" + who + " was told to end: interrupted$|" + killed)
}

func TestARankThatEndsEndsAllWithItsReason(t *testing.T) {
	for name, c := range map[string]struct {
		act    string
		code   int
		reason string
	}{
		"a failure that would repeat":                   {"done 1", 1, "rank 1: by its own word"},
		"the user's mistake":                            {"done 2", 2, "rank 1: by its own word"},
		"resources that never came":                     {"done 3", 3, "rank 1: by its own word"},
		"a hang that it found":                          {"done 4", 4, "rank 1: by its own word"},
		"a lost device":                                 {"done 5", 5, "rank 1: by its own word"},
		"because of another, but of nobody":             {"done 6", 5, "nobody said why: rank 1"},
		"well, but too early":                           {"done 0", 1, "rank 1 left while others exchange \"step\""},
		"without a word":                                {"exit 7", 1, "rank 1 ended with exit code 7 without a word"},
		"well without a word":                           {"exit 0", 1, "rank 1 ended with exit code 0 without a word"},
		"in a panic, which is no mistake of the user's": {"panic 0", 1, "panic: out of its mind"},
		"in garbage to its agent":                       {"garbage 0", 5, "rank 1 speaks garbage"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := launch(t, script{Act: c.act, Rank: 1})
			p.rank(1)
			code, o := p.end(deadline + slack)
			if code != c.code || !strings.Contains(o.Reason, c.reason) || o.Rank != 1 {
				t.Errorf("exit code %d with %+v, want %d because %q", code, o, c.code, c.reason)
			}
		})
	}
}

func TestALostNodeEndsTheOthersAndIsNamed(t *testing.T) {
	p := launch(t, script{Nodes: 2})
	p.rank(0)
	victim := p.parent(p.rank(3))
	syscall.Kill(victim, syscall.SIGKILL)
	code, o := p.end(deadline + slack)
	if code != exitLost || !strings.Contains(o.Reason, "the agent of node 1 was killed by signal 9") || o.Rank != -1 {
		t.Errorf("exit code %d with %+v, want %d because of the agent of node 1", code, o, exitLost)
	}
}

func TestARankThatIsDoneAndStaysIsNoFailure(t *testing.T) {
	t.Parallel()
	p := launch(t, script{Steps: 3, Act: "linger", Rank: 0, Deadline: hang})
	p.rank(0)
	if code, o := p.end(hang + slack); code != 0 {
		t.Errorf("exit code %d with %+v, want 0", code, o)
	}
}

func TestTheFirstSignalEndsAllRanksAfterTheirStep(t *testing.T) {
	for signal, want := range map[syscall.Signal]int{syscall.SIGINT: exitInterrupted, syscall.SIGTERM: exitTerminated} {
		p := launch(t, script{})
		p.rank(0)
		p.rank(1)
		syscall.Kill(p.cmd.Process.Pid, signal)
		if code, o := p.end(deadline + slack); code != want || o.Reason != "interrupted" || o.Rank != -1 {
			t.Errorf("%v: exit code %d with %+v, want %d", signal, code, o, want)
		}
	}
}

// As a service manager or a batch system does.
func TestAllProcessesToldAtOnceEndAsTheLauncherWasTold(t *testing.T) {
	p := launch(t, script{})
	p.rank(0)
	p.rank(1)
	all := p.alive()
	// It first: who comes to the others late finds the run ended by their word.
	syscall.Kill(p.cmd.Process.Pid, syscall.SIGTERM)
	for pid := range all {
		if pid != p.cmd.Process.Pid {
			syscall.Kill(pid, syscall.SIGTERM)
		}
	}
	if code, o := p.end(deadline + slack); code != exitTerminated || o.Reason != "interrupted" {
		t.Errorf("exit code %d with %+v, want %d", code, o, exitTerminated)
	}
}

func TestAnAgentThatNobodyAnswersEndsWithinTheDeadline(t *testing.T) {
	t.Parallel()
	stopped, err := net.Listen("tcp", "127.0.0.1:0") // connects, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	dir := t.TempDir()
	if err := (control{Format: controlFormat, Address: stopped.Addr().String()}).write(dir); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	agent := exec.Command(os.Args[0], "agent")
	agent.Env = append(os.Environ(), agentEnvironment(controlPath(dir), 0, hang)...)
	agent.Stderr = &said
	began := time.Now()
	agent.Run() // its error is the exit code
	if took := time.Since(began); agent.ProcessState.ExitCode() != exitLost || took > hang+slack || !strings.Contains(said.String(), "has not answered for") {
		t.Errorf("exit code %d after %v, want %d within %v; it said %q", agent.ProcessState.ExitCode(), took, exitLost, hang, said.String())
	}
}

// silent is a launcher that hears agents and never says a word.
type silent struct {
	pb.UnimplementedControlServer
	heard chan *pb.AgentMessage
}

func (s silent) Attend(stream grpc.BidiStreamingServer[pb.AgentMessage, pb.ToAgent]) error {
	defer close(s.heard)
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		s.heard <- m
	}
}

func TestAnAgentThatHearsNothingSaysSoAndEndsWithinTheDeadline(t *testing.T) {
	t.Parallel()
	known, certificate, err := newControl()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	known.Address = listener.Addr().String()
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	s := silent{heard: make(chan *pb.AgentMessage, 1000)}
	pb.RegisterControlServer(server, s)
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		<-served
	}()
	dir := t.TempDir()
	if err := known.write(dir); err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(os.Args[0], "agent")
	const within = hang
	agent.Env = append(os.Environ(), agentEnvironment(controlPath(dir), 0, within)...)
	began := time.Now()
	agent.Run() // its error is the exit code
	if took := time.Since(began); agent.ProcessState.ExitCode() != exitStopped || took > within+slack {
		t.Errorf("exit code %d after %v, want %d within %v", agent.ProcessState.ExitCode(), took, exitStopped, within)
	}
	var why string
	for m := range s.heard {
		if l := m.GetLost(); l != nil && l.Rank == -1 && l.Code == exitHung {
			why = l.Reason
		}
	}
	if !strings.HasPrefix(why, "the launcher has not been heard for ") {
		t.Errorf("the launcher was told %q", why)
	}
}

func TestAShortStopOfAnyProcessEndsNothing(t *testing.T) {
	t.Parallel()
	p := launch(t, script{Deadline: 2 * hang})
	for _, pid := range []int{p.rank(0), p.findAgent(), p.cmd.Process.Pid} {
		syscall.Kill(pid, syscall.SIGSTOP)
		time.Sleep(hang / 5)
		syscall.Kill(pid, syscall.SIGCONT)
	}
	time.Sleep(500 * time.Millisecond) // for who would complain of it
	syscall.Kill(p.cmd.Process.Pid, syscall.SIGINT)
	if code, o := p.end(2*hang + slack); code != exitInterrupted || o.Reason != "interrupted" {
		t.Errorf("exit code %d with %+v, want %d", code, o, exitInterrupted)
	}
}

func TestASecondSignalEndsAllAtOnce(t *testing.T) {
	p := launch(t, script{Act: "deaf"})
	p.rank(0)
	p.rank(1)
	syscall.Kill(p.cmd.Process.Pid, syscall.SIGINT)
	time.Sleep(300 * time.Millisecond)
	if len(p.alive()) != 4 {
		t.Fatalf("ranks that do not end at the first signal: there are %v", p.alive())
	}
	go func() { // until it is noticed: a busy launcher takes two that come close for one
		for p.cmd.Process.Signal(syscall.SIGINT) == nil {
			time.Sleep(100 * time.Millisecond)
		}
	}()
	if code, _ := p.end(deadline + slack); code != -1 {
		t.Errorf("exit code %d, want an end by the signal", code)
	}
}

// TestABetterReasonReplacesASuspicion shows the order of reasons, without processes.
func TestABetterReasonReplacesASuspicion(t *testing.T) {
	g := newGang(&Job{Settings: Settings{Deadline: deadline}, Nodes: 1, Ranks: 3}, control{}, "")
	for _, c := range []struct {
		weight, rank, want int
		what               string
	}{
		{consequence, 0, 0, "a rank that ended because of another is all there is"},
		{suspicion, 1, 1, "a lost peer explains more than that"},
		{suspicion, 0, 1, "the first that lost one stays"},
		{reason, 2, 2, "the rank that died explains it"},
		{reason, 0, 2, "and the first of those stays"},
		{consequence, 1, 2, "whatever follows"},
	} {
		if g.fail(c.weight, c.rank, exitFailure, "%s", c.what); g.outcome().Rank != c.want {
			t.Errorf("%s: the outcome blames rank %d, want %d", c.what, g.outcome().Rank, c.want)
		}
	}
}

func TestWhoLosesAPeerThatLeftAsItWasAskedIsNoReason(t *testing.T) {
	for _, c := range []struct {
		code, want int
		what       string
	}{
		{exitLost, exitTerminated, "a peer that has left"},
		{exitStopped, exitTerminated, "whatever else another has ended"},
		{exitHung, exitHung, "but not one that never comes"},
		{exitFailure, exitFailure, "and not a failure of its own"},
	} {
		g := newGang(&Job{Settings: Settings{Deadline: deadline}, Nodes: 1, Ranks: 2}, control{}, "")
		g.started = true
		g.interrupt(Outcome{Code: exitTerminated, Reason: "interrupted", Rank: -1})
		g.done(0, &pb.Done{Code: exitInterrupted})
		g.done(1, &pb.Done{Code: int32(c.code), Reason: c.what})
		if o := g.outcome(); o.Code != c.want {
			t.Errorf("%s: the run ends as %+v, want %d", c.what, o, c.want)
		}
	}
}

func TestFilesOfTheNodeAreInheritedByAllItsRanks(t *testing.T) {
	p := launch(t, script{})
	for r := range 2 {
		pid := p.rank(r)
		for fd, want := range map[int]string{4: "gofsdp-test-2-ranks-", 5: "gofsdp-test-mesh-"} {
			if link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err != nil || !strings.Contains(link, want) {
				t.Errorf("descriptor %d of rank %d is %q (%v), want %s", fd, r, link, err, want)
			}
		}
	}
	syscall.Kill(p.cmd.Process.Pid, syscall.SIGINT)
	p.end(deadline + slack)
}
