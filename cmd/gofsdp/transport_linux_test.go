package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/record"
)

// processesOf returns the marked processes that run a sub-command.
func processesOf(t *testing.T, mark, command string) (pids []int) {
	t.Helper()
	for _, pid := range marked(t, mark) {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("\x00"+command+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// overTCP are the ways of ranks whose groups use TCP.
var overTCP = map[string][]string{
	"all over TCP":   {"train", "run.yaml", "--ranks", "4", "--set", "scaling.transport=tcp"},
	"on two nodes":   {"train", "run.yaml", "--ranks", "4", "--nodes", "2"},
	"a row over two": {"train", "run.yaml", "--ranks", "4", "--nodes", "2", "--mesh", "1x4"},
}

// How long the deadline is of runs that end by it, and of those that end at once: a busy machine keeps a process
// waiting for a second now and then.
const (
	waited   = 6 * time.Second
	unwaited = 30 * time.Second
)

// losses is how many losses are drawn; FULL=1 draws more.
var losses = flag.Int("losses", 6, "number of processes over TCP that are lost")

// loss is what happens to a process of a run, and how the run then ends.
type loss struct {
	process  string // "rank", "agent" or "launcher"
	signal   syscall.Signal
	deadline time.Duration
	code     int
	want     string
}

var allLosses = []loss{
	{"rank", syscall.SIGKILL, unwaited, exitLost, `^gofsdp: rank \d was killed by signal 9 `},
	// Its peers may notice first.
	{"rank", syscall.SIGSTOP, waited, exitHung, `^gofsdp: (rank \d has not been heard for |rank \d: .* for ranks \[\d\]: the deadline passed)`},
	{"agent", syscall.SIGKILL, unwaited, exitLost, `^gofsdp: the agent of node \d was killed by signal 9 `},
	{"agent", syscall.SIGSTOP, waited, exitHung, `^gofsdp: the agent of node \d has not been heard for `},
	{"launcher", syscall.SIGKILL, unwaited, -1, `^$`},
	{"launcher", syscall.SIGSTOP, waited, exitHung, `^gofsdp: the launcher was stopped for `},
}

func TestOverTCPWhateverIsLostEndsAllWithItsReason(t *testing.T) {
	t.Parallel()
	seed, n := uint64(time.Now().UnixNano()), *losses
	if text := os.Getenv("SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatal(err)
		}
	}
	if os.Getenv("FULL") == "1" {
		n = 100
	}
	t.Logf("again: SEED=%d go test ./cmd/gofsdp -run %s -args -losses %d", seed, t.Name(), n)
	random := rand.New(rand.NewPCG(seed, 0))
	ways := slices.Sorted(maps.Keys(overTCP))
	for i := range n {
		x, way := allLosses[i%len(allLosses)], ways[random.IntN(len(ways))]
		which, after := random.IntN(4), time.Duration(random.IntN(700))*time.Millisecond
		t.Run(fmt.Sprintf("%d: %s gets signal %d after %v, %s", i, x.process, x.signal, after, way), func(t *testing.T) {
			for deadline := x.deadline; ; deadline *= 3 {
				err := x.happens(t, overTCP[way], deadline, after, which)
				if err == nil {
					return
				}
				if deadline > time.Minute || !falseAlarm.MatchString(err.Error()) {
					t.Fatal(err)
				}
				t.Logf("a deadline of %v is too short for this machine now: %v", deadline, err)
			}
		})
	}
}

// happens makes a run and lets it happen, some time after the ranks have begun. It returns how the run did not end
// as it should have.
func (x loss) happens(t *testing.T, args []string, deadline, after time.Duration, which int) error {
	mark := markOf(t)
	s := begin(t, []string{mark}, append(slices.Clone(args), "--set", "run.processes.deadline="+deadline.String())...)
	await(t, "ranks", func() bool { return len(processesOf(t, mark, "rank")) == 4 })
	time.Sleep(after) // until then they find each other, or train
	pids := []int{s.run.Process.Pid}
	if x.process != "launcher" {
		pids = processesOf(t, mark, x.process)
	}
	if len(pids) > 0 { // else the run has ended
		if err := syscall.Kill(pids[which%len(pids)], x.signal); err != nil {
			t.Log(err)
		}
	}
	if x.process == "launcher" && x.signal == syscall.SIGSTOP {
		await(t, "the end of all but the launcher", func() bool { return len(marked(t, mark)) <= 1 })
		time.Sleep(deadline / 5) // so that it, too, finds that it was stopped longer than they wait
		syscall.Kill(s.run.Process.Pid, syscall.SIGCONT)
	}
	err := s.fails(x.code, x.want)
	await(t, "the end of all", func() bool { return len(marked(t, mark)) == 0 })
	return err
}

// failed wants the session to end with a code (-1: by a signal) and one reason,
// which the record has, too.
func (s *session) failed(code int, want string) {
	s.t.Helper()
	if err := s.fails(code, want); err != nil {
		s.t.Fatal(err)
	}
}

// fails returns how the session does not end as failed wants it to.
func (s *session) fails(code int, want string) error {
	status := s.end()
	// Agents without a launcher say so themselves.
	said := regexp.MustCompile(`(?m)^gofsdp: agent: .*\n`).ReplaceAllString(s.err.String(), "")
	if status.ExitStatus() != code || strings.Count(said, "gofsdp: ") > 1 || !regexp.MustCompile(want).MatchString(said) {
		return fmt.Errorf("exit code %d, want %d and one reason like %s; it said\n%s%s", status.ExitStatus(), code, want, &s.out, &s.err)
	}
	if code < 0 {
		return nil // nobody could write
	}
	run, err := record.LoadRun(s.dir + "/runs/mine/run.json")
	if err != nil {
		return err
	}
	if recorded, _ := run.Outcome.ExitCode.Get(); run.Outcome.State != record.Failed || recorded != code {
		return fmt.Errorf("recorded as %+v", run.Outcome)
	}
	return nil
}

// children returns the processes that some have started.
func children(of []int) (pids []int) {
	for _, pid := range of {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, file := range tasks {
			text, _ := os.ReadFile(file) // of a thread that has ended: none
			for _, f := range strings.Fields(string(text)) {
				n, _ := strconv.Atoi(f)
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// socket is a TCP socket of another process, as /proc/net/tcp shows it.
type socket struct {
	fd          int // in that process
	local, peer uint16
	state       string
}

// The states of a socket.
const (
	established = "01"
	listening   = "0A"
)

// socketsOf returns the TCP sockets of a process.
func socketsOf(pid int) (list []socket) {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return nil
	}
	byInode := map[string]socket{}
	for _, line := range strings.Split(string(table), "\n")[1:] {
		f := strings.Fields(line)
		if len(f) < 10 {
			continue
		}
		s := socket{state: f[3]}
		var ip uint32
		fmt.Sscanf(f[1], "%X:%X", &ip, &s.local)
		fmt.Sscanf(f[2], "%X:%X", &ip, &s.peer)
		byInode["socket:["+f[9]+"]"] = s
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir) // of a process that has ended: none
	for _, fd := range fds {
		to, _ := os.Readlink(dir + "/" + fd.Name())
		if s, ok := byInode[to]; ok {
			fmt.Sscan(fd.Name(), &s.fd)
			list = append(list, s)
		}
	}
	return list
}

// borrowed returns the sockets of another process that are in a state, for the caller to use and close: all of
// them before anything is done to one, for that may make the process close the others.
func borrowed(t *testing.T, pid int, state string) (fds []int) {
	t.Helper()
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Skip("this system does not open processes: ", err)
	}
	defer unix.Close(p)
	for _, s := range socketsOf(pid) {
		if s.state != state {
			continue
		}
		ours, err := unix.PidfdGetfd(p, s.fd, 0)
		switch {
		case errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS):
			t.Skip("this system does not lend the files of a child: ", err)
		case errors.Is(err, unix.EBADF): // it has been closed since it was listed
		case err != nil:
			t.Fatal(err)
		default:
			fds = append(fds, ours)
		}
	}
	if len(fds) == 0 {
		t.Fatalf("process %d has no socket in state %s", pid, state)
	}
	return fds
}

func TestOverTCPWhatHappensToALinkEndsTheRunWithAReasonThatNamesTheCollective(t *testing.T) {
	t.Parallel()
	const place = `^gofsdp: rank \d: .*rank \d: (all-gather|reduce-scatter|all-reduce) of .*, number \d+, waited \d.* for ranks \[\d\]: .*`
	for what, x := range map[string]struct {
		do       func(fd int)
		deadline time.Duration // of which a fifth is for saying why, however busy the machine is
		code     int
		want     string
	}{
		"it breaks": {func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) }, unwaited, exitLost, place},
		"garbage on it": {func(fd int) {
			_, _ = unix.Write(fd, []byte(strings.Repeat("GET / HTTP/1.1\r\n", 10)))
		}, unwaited, exitLost, place + `it sent bytes that are no (frame of this group|word of a rank)`},
		// A byte a second.
		"it stalls": {func(fd int) {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 1)
		}, waited, exitHung, place + `the deadline passed`},
	} {
		for way, args := range overTCP {
			if x.code == exitHung && way != "a row over two" && os.Getenv("FULL") != "1" {
				continue // each takes the deadline
			}
			t.Run(what+", "+way, func(t *testing.T) {
				mark := markOf(t)
				s := begin(t, []string{mark}, append(slices.Clone(args), "--set", "run.processes.deadline="+x.deadline.String())...)
				s.until("step ")
				pid := processesOf(t, mark, "rank")[1]
				for _, fd := range borrowed(t, pid, established) {
					x.do(fd)
					unix.Close(fd)
				}
				s.failed(x.code, x.want)
			})
		}
	}
}

func TestStrangersAtARanksPortDoNotDisturbTheRun(t *testing.T) {
	t.Parallel()
	// A rank's port is open while the ranks find each other, which takes
	// milliseconds. So one rank is made slow: the others wait for it there.
	for attempt := range 10 {
		s := begin(t, nil, "train", "run.yaml", "--ranks", "3", "--set", "scaling.transport=tcp", "--set", "train.batch=3", "--set", "train.steps=3",
			"--set", "run.processes.deadline=5m") // however long this process takes to meet them
		begun := make(chan struct{})
		go func() {
			defer close(begun)
			s.until("step ")
		}()
		met := s.strangers(begun)
		if status := s.end(); status.ExitStatus() != 0 || s.err.Len() > 0 {
			t.Fatalf("after %d strangers: exit code %d; it said\n%s%s", met, status.ExitStatus(), &s.out, &s.err)
		}
		if met > 0 {
			t.Logf("%d strangers in attempt %d", met, attempt)
			return
		}
	}
	t.Error("no port was ever seen")
}

// strangers connects to the ports of a session's ranks until it has begun, each
// once, with garbage and then silence. It returns to how many.
func (s *session) strangers(begun <-chan struct{}) (met int) {
	seen := map[uint16]bool{}
	for {
		select {
		case <-begun:
			return met
		case <-time.After(time.Millisecond):
		}
		ranks := children(children([]int{s.run.Process.Pid})) // the launcher has an agent, which has ranks
		if len(ranks) < 3 {
			continue
		}
		// The number of a child that has ended is not another's before its parent
		// is gone.
		syscall.Kill(ranks[2], syscall.SIGSTOP)
		for range 10 {
			for _, pid := range ranks[:2] {
				for _, l := range socketsOf(pid) {
					if l.state != listening || seen[l.local] {
						continue
					}
					seen[l.local] = true
					conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.local))
					if err != nil {
						continue // it has been closed
					}
					s.t.Cleanup(func() { conn.Close() })
					if _, err := conn.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 100))); err == nil {
						met++
					}
				}
			}
		}
		syscall.Kill(ranks[2], syscall.SIGCONT)
	}
}
