package collective

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
)

// Ranks are processes of this binary. From descriptor 3 on they have the files of
// their node: of one group of all, and of the rows and columns of a mesh.

// process is a rank as its role sees it.
type process struct {
	rank, size int
	deadline   time.Duration
	node       *Node
	comm       *Shared // of the group of all
	dev        device.Device
	stream     device.Stream
}

// Error implements reporter.
func (p *process) Error(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

// ready tells the test that this rank has come to where it wants to be, and waits
// to be killed or told to go on.
func (p *process) ready() {
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

var roles = map[string]func(p *process) error{}

func init() {
	rankMain = func(role string) int {
		if err := beRank(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// number reads a number of the environment.
func number(key string) int {
	n, err := strconv.Atoi(os.Getenv(key))
	if err != nil {
		panic(fmt.Sprintf("%s=%q", key, os.Getenv(key)))
	}
	return n
}

// beRank plays a role and checks that nothing of it is left.
func beRank(role string) (err error) {
	p := &process{rank: number("GOFSDP_TEST_RANK"), size: number("GOFSDP_TEST_SIZE"), deadline: time.Duration(number("GOFSDP_TEST_MS")) * time.Millisecond}
	before, _, err := resources()
	if err != nil {
		return err
	}
	before -= p.inherited() // which it closes
	if err := p.open(); err != nil {
		return err
	}
	err = roles[role](p)
	(&Groups{Comms: p.groups()}).Abort(fmt.Errorf("rank %d is done: %v", p.rank, err))
	err = errors.Join(err, p.dev.Close(), p.node.Close())
	after, mappings, rerr := resources()
	if rerr != nil || after != before || mappings > 0 {
		err = errors.Join(err, rerr, fmt.Errorf("rank %d: it has %d files and %d mappings at the end, want %d and none", p.rank, after, mappings, before))
	}
	return errors.Join(err, goleak.Find())
}

// resources counts what a rank must not leave: open files and mappings of files of memory.
func resources() (files, mappings int, err error) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, 0, err
	}
	for _, fd := range fds {
		// The runtime makes some of its own that are no files, at its leisure.
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:") {
			files++
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, 0, err
	}
	return files, bytes.Count(maps, []byte("/memfd:")), nil
}

// lostVariable names the rank that the test kills or stops.
const lostVariable = "GOFSDP_TEST_LOST"

func (p *process) open() (err error) {
	var files []*os.File
	for i := range p.inherited() {
		files = append(files, os.NewFile(uintptr(3+i), fmt.Sprintf("inherited %d", i)))
	}
	if p.node, err = worldOf(p.size).OpenNode(p.rank, files, p.deadline); err != nil {
		return err
	}
	p.comm = p.node.Comms[0]
	if p.dev, err = cpu.New(cpu.Options{Threads: 1, Window: p.node.Window}); err != nil {
		return err
	}
	p.stream = p.dev.NewStream("comm")
	return nil
}

// worldOf returns a world of n ranks of one node.
func worldOf(n int) World { return World{Ranks: n, Sharing: n, Groups: groupsOf(n)} }

// groups returns the rank's ends.
func (p *process) groups() (ends []Comm) {
	for _, c := range p.node.Comms {
		if c != nil {
			ends = append(ends, c)
		}
	}
	return ends
}

// inherited counts the files of the node.
func (p *process) inherited() int {
	return p.size + len(groupsOf(p.size))
}

// groupsOf returns the group of all of n ranks, then the rows and the columns of
// a mesh of two columns.
func groupsOf(n int) (groups [][]int) {
	groups = make([][]int, 1+(n+1)/2+2)
	for r := range n {
		groups[0] = append(groups[0], r)
		groups[1+r/2] = append(groups[1+r/2], r)
		column := 1 + (n+1)/2 + r%2
		groups[column] = append(groups[column], r)
	}
	return slices.DeleteFunc(groups, func(g []int) bool { return len(g) < 2 })
}

// child is a rank as the test sees it.
type child struct {
	*exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errors bytes.Buffer
}

// start starts n ranks. They are killed at the end of the test.
func start(t testing.TB, role string, n int, deadline time.Duration, env ...string) []*child {
	t.Helper()
	files, err := worldOf(n).NodeFiles(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := closeFiles(files); err != nil {
			t.Error(err)
		}
	}()
	children := make([]*child, n)
	for r := range children {
		c := &child{Cmd: exec.Command(os.Args[0])}
		c.Env = append(os.Environ(), roleVariable+"="+role, fmt.Sprintf("GOFSDP_TEST_RANK=%d", r),
			fmt.Sprintf("GOFSDP_TEST_SIZE=%d", n), fmt.Sprintf("GOFSDP_TEST_MS=%d", deadline.Milliseconds()))
		c.Env = append(env, c.Env...)
		c.ExtraFiles = files
		c.Stderr = &c.errors
		c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if c.in, err = c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		c.out = bufio.NewReader(out)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if c.ProcessState == nil {
				_ = c.Process.Kill()
				_ = c.Wait()
			}
		})
		children[r] = c
	}
	return children
}

// isReady waits until the rank says so.
func (c *child) isReady() error {
	if _, err := c.out.ReadString('\n'); err != nil {
		_ = c.Wait() // for what it says
		return fmt.Errorf("a rank ended early: %w\n%s", err, c.errors.String())
	}
	return nil
}

// ended waits for ranks and returns what those say that failed.
func ended(children ...*child) error {
	errs := make([]error, len(children))
	var wait sync.WaitGroup
	for i, c := range children {
		wait.Go(func() {
			if err := c.Wait(); err != nil {
				errs[i] = fmt.Errorf("%s: %w\n%s", c.Env[len(c.Env)-3], err, c.errors.String())
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// end waits for ranks and reports those that failed.
func end(t testing.TB, children ...*child) {
	t.Helper()
	if err := ended(children...); err != nil {
		t.Error(err)
	}
}

func init() {
	roles["every"] = func(p *process) error {
		for _, size := range []int{0, 1, 3, 7, 1000, 1<<20 + 13} {
			if err := everyCollective(p, p.rank, p.size, size, p.comm, p.dev, p.stream); err != nil {
				return err
			}
		}
		return nil
	}
	roles["delayed"] = func(p *process) error {
		p.dev = device.NewDelayer(p.dev, uint64(p.rank), 3*time.Millisecond)
		p.stream = p.dev.NewStream("delayed")
		for _, size := range []int{2, 1000} {
			if err := everyCollective(p, p.rank, p.size, size, p.comm, p.dev, p.stream); err != nil {
				return err
			}
		}
		return nil
	}
	roles["mesh"] = func(p *process) error {
		x := tensor(p, p.dev, p.rank, 1000)
		for i := range x.F32() {
			x.F32()[i] = float32(1 + p.rank)
		}
		for i, c := range p.node.Comms[1:] { // along the rows, then along the columns
			if c == nil {
				continue
			}
			ops, err := c.Bind(&AllReduce{Data: x, Name: fmt.Sprintf("group %d", i)})
			if err == nil {
				err = launch(p.stream, ops)
			}
			if err != nil {
				return err
			}
		}
		for _, got := range x.F32() {
			if want := float32(p.size * (p.size + 1) / 2); got != want {
				return fmt.Errorf("rank %d: %v, want %v", p.rank, got, want)
			}
		}
		return nil
	}
	roles["until"] = func(p *process) error {
		x := tensor(p, p.dev, p.rank, 300000)
		ops, err := p.comm.Bind(&AllReduce{Data: x, Name: "x"})
		if err != nil {
			return err
		}
		fmt.Println("ready")
		for began := time.Now(); ; began = time.Now() {
			clear(x.F32())
			if err = launch(p.stream, ops); err != nil {
				if waited := time.Since(began); waited > 3*p.deadline {
					return fmt.Errorf("rank %d waited %v for %w", p.rank, waited, err)
				}
				break
			}
		}
		if lost := number(lostVariable); !errors.Is(err, ErrDeadline) || !strings.Contains(err.Error(), fmt.Sprintf("for ranks [%d]", lost)) {
			return fmt.Errorf("rank %d does not know that rank %d is missing: %w", p.rank, lost, err)
		}
		return nil
	}
	roles["often"] = func(p *process) error {
		x := tensor(p, p.dev, p.rank, 1001)
		ops, err := p.comm.Bind(&AllReduce{Data: x, Name: "x"})
		if err != nil {
			return err
		}
		var mallocs uint64
		for round := range 1000 {
			if round == 100 {
				mallocs = allocated()
			}
			data := x.F32()
			for i := range data {
				data[i] = float32((p.rank + 1) * (round + i))
			}
			if err := launch(p.stream, ops); err != nil {
				return err
			}
			for i, got := range data {
				if want := float32(p.size * (p.size + 1) / 2 * (round + i)); got != want {
					return fmt.Errorf("round %d, rank %d: %v, want %v", round, p.rank, got, want)
				}
			}
		}
		// The runtime may have a few of its own; a build without kernels computes
		// by references, which allocate.
		if n := allocated() - mallocs; n > 50 && p.dev.Info().ISA != "go" {
			return fmt.Errorf("rank %d: %d allocations in 900 all-reduces, want none", p.rank, n)
		}
		return nil
	}
	roles["lost"] = func(p *process) error {
		ops, err := p.comm.Bind(&AllReduce{Data: tensor(p, p.dev, p.rank, 10), Name: "block 3 gradient"})
		if err == nil {
			err = launch(p.stream, ops)
		}
		if err != nil {
			return err
		}
		if p.rank == 1 {
			p.ready()
		}
		began := time.Now()
		err = launch(p.stream, ops)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrDeadline) || e.Number != 1 || e.Rank != p.rank {
			return fmt.Errorf("rank %d: %w", p.rank, err)
		}
		// Whoever sees the deadline pass names the rank, and the others what it said.
		if p.rank != 1 && !slices.Equal(e.Missing, []int{1}) && !strings.Contains(err.Error(), "in vain for ranks [1]") {
			return fmt.Errorf("rank %d does not know who is missing: %w", p.rank, err)
		}
		if waited := time.Since(began); p.rank != 1 && waited > 10*p.deadline {
			return fmt.Errorf("rank %d waited %v", p.rank, waited)
		}
		return nil
	}
	roles["abort"] = func(p *process) error {
		ops, err := p.comm.Bind(&Barrier{Name: "x"})
		if err != nil {
			return err
		}
		if p.rank == 0 {
			time.Sleep(50 * time.Millisecond)
			p.comm.Abort(errors.New("rank 0 has had enough"))
			return nil
		}
		if err := launch(p.stream, ops); err == nil || !strings.Contains(err.Error(), "barrier of x, number 0: rank 0 says: rank 0 has had enough") {
			return fmt.Errorf("rank %d: %w", p.rank, err)
		}
		return nil
	}
	roles["differ"] = func(p *process) error {
		_, err := p.comm.Bind(&AllReduce{Data: tensor(p, p.dev, p.rank, 10+p.rank), Name: "x"})
		if err == nil || !strings.Contains(err.Error(), "(10 of f32)") || !strings.Contains(err.Error(), "(11 of f32)") || !strings.Contains(err.Error(), "plans differ") {
			return fmt.Errorf("rank %d: %w", p.rank, err)
		}
		return nil
	}
	roles["outside"] = func(p *process) error {
		dev := device.NewReference()
		defer dev.Close()
		x := tensor(p, p.dev, p.rank, 10)
		if p.rank == 0 {
			x = tensor(p, dev, p.rank, 10)
		}
		if _, err := p.comm.Bind(&AllReduce{Data: x, Name: "x"}); err == nil || !strings.Contains(err.Error(), "outside of the window") {
			return fmt.Errorf("rank %d: %w", p.rank, err)
		}
		return nil
	}
}

func TestProcessesDoEveryCollectiveOfEverySize(t *testing.T) {
	for n := 2; n <= 4; n++ { // four ranks are more than the cores of small machines
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) { end(t, start(t, "every", n, time.Minute)...) })
	}
}

func TestProcessesMeetInTheGroupsOfAMesh(t *testing.T) {
	end(t, start(t, "mesh", 4, time.Minute)...)
}

func TestFilesThatAreNotTheNodesAreRefused(t *testing.T) {
	w := World{Ranks: 2, Sharing: 2, Groups: [][]int{{0, 1}}}
	for name, x := range map[string]struct {
		rank  int
		world World
		files int // that are left out
		want  string
	}{
		"a rank that the run does not have": {2, w, 0, "rank 2 of 2"},
		"too few files":                     {0, w, 1, "with 2 files, want 2 windows and 1 control files"},
		"a world that cannot be":            {0, World{Ranks: 2, Sharing: 2, Groups: [][]int{{0, 2}}}, 0, "group 0 of ranks [0 2]"},
		"files where nothing is shared":     {0, World{Ranks: 2, Sharing: 1, Groups: [][]int{{0, 1}}}, 0, "with 3 files, want 0 windows and 0 control files"},
		"a window in a group's place":       {0, World{Ranks: 2, Sharing: 2, Groups: [][]int{{0, 1}, {0, 1}}}, 0, "want 2 windows and 2 control files"},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := w.NodeFiles(0)
			if err != nil {
				t.Fatal(err)
			}
			if err := closeFiles(files[len(files)-x.files:]); err != nil {
				t.Fatal(err)
			}
			n, err := x.world.OpenNode(x.rank, files[:len(files)-x.files], time.Second)
			if n != nil || err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v, want: %s", err, x.want)
			}
			if _, err := files[0].Stat(); err == nil {
				t.Error("a file is still open")
			}
		})
	}
	if _, err := (World{Ranks: 2, Sharing: 2, Groups: [][]int{{0, 5}}}).NodeFiles(0); err == nil {
		t.Error("files for a group of others")
	}
}

func TestProcessesThatAreSlowNowAndThenWaitForEachOther(t *testing.T) {
	end(t, start(t, "delayed", 3, time.Minute)...)
}

func TestProcessesRunABoundCollectiveWithoutAllocating(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) { end(t, start(t, "often", n, time.Minute)...) })
	}
}

func TestAProcessThatIsKilledIsNamed(t *testing.T) {
	t.Parallel()
	patient(t, 2*time.Second, func(deadline time.Duration) error {
		c := start(t, "lost", 3, deadline)
		if err := c[1].isReady(); err != nil {
			return err
		}
		if err := c[1].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := c[1].Wait(); err == nil {
			t.Error("it was not killed")
		}
		return ended(c[0], c[2])
	})
}

func TestAProcessThatIsStoppedIsNamedAndEndsWhenItGoesOn(t *testing.T) {
	t.Parallel()
	patient(t, 2*time.Second, func(deadline time.Duration) error {
		c := start(t, "lost", 3, deadline)
		if err := c[1].isReady(); err != nil {
			return err
		}
		if err := c[1].Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		err := ended(c[0], c[2])
		fmt.Fprintln(c[1].in)
		if err := c[1].Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		return errors.Join(err, ended(c[1]))
	})
}

func TestAProcessLostAtAnyMomentIsNamedWithinTheDeadline(t *testing.T) {
	cases := 8
	if os.Getenv("FULL") == "1" {
		cases = 100
	}
	for i := range cases {
		seed := *lossSeed
		if seed == 0 {
			seed = uint64(i + 1)
		}
		rng := rand.New(rand.NewPCG(seed, 6))
		n := 2 + rng.IntN(3)
		lost, signal, after := rng.IntN(n), []unix.Signal{unix.SIGKILL, unix.SIGSTOP}[rng.IntN(2)], time.Duration(rng.IntN(20_000))*time.Microsecond
		t.Run(fmt.Sprintf("case %d", i), func(t *testing.T) {
			t.Parallel()
			t.Logf("%v for rank %d of %d after %v; again: go test ./collective -run AnyMoment -loss-seed %d", signal, lost, n, after, seed)
			patient(t, 2*time.Second, func(deadline time.Duration) error {
				c := start(t, "until", n, deadline, fmt.Sprintf("%s=%d", lostVariable, lost))
				if err := c[lost].isReady(); err != nil {
					return err
				}
				time.Sleep(after)
				signalled := c[lost].Process.Signal(signal)
				if err := ended(slices.Delete(c, lost, lost+1)...); err != nil {
					return err
				}
				return signalled
			})
		})
	}
}

var lossSeed = flag.Uint64("loss-seed", 0, "replay a case of a lost process")

func TestAnAbortReachesEveryProcessWithItsReason(t *testing.T) {
	began := time.Now()
	end(t, start(t, "abort", 3, time.Minute)...)
	if time.Since(began) > 30*time.Second {
		t.Error("it took long")
	}
}

func TestProcessesThatBindDifferentCollectivesAreTold(t *testing.T) {
	end(t, start(t, "differ", 2, time.Minute)...)
}

func TestMemoryThatPeersCannotReachIsRefusedByAll(t *testing.T) {
	end(t, start(t, "outside", 3, time.Minute)...)
}
