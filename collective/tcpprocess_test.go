package collective

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/device"
)

// setUp runs NewTCP alone, on this machine, and returns its error.
func setUp(l net.Listener, change func(*TCPSettings), set TCPSettings) error {
	dev := device.NewReference()
	defer dev.Close()
	set.Group, set.Secret, set.Connections, set.Device = "x", tcpSecret, 1, dev
	if change != nil {
		change(&set)
	}
	c, err := NewTCP(context.Background(), l, set)
	if err == nil {
		err = c.Close()
	}
	return err
}

// short is a deadline for set-ups that end by it or at once.
const short = 500 * time.Millisecond

func TestOverTCPAMissingRankIsNamedByTheSetUp(t *testing.T) {
	patient(t, short, func(deadline time.Duration) error {
		ls, addresses := listeners(t, 3)
		addresses[1] = "127.0.0.1:1" // where nobody is, nor comes to be; rank 0 is waited for by rank 2
		errs := make([]error, 3)
		var wait sync.WaitGroup
		for _, r := range []int{0, 2} {
			wait.Go(func() { errs[r] = setUp(ls[r], nil, TCPSettings{Rank: r, Addresses: addresses, Deadline: deadline}) })
		}
		wait.Wait()
		for _, r := range []int{0, 2} {
			var e *Error
			if !errors.As(errs[r], &e) || !errors.Is(e, ErrDeadline) || !slices.Equal(e.Missing, []int{1}) || e.Kind != "set-up" || !strings.Contains(e.Error(), "set-up of group x") {
				return fmt.Errorf("rank %d: %w", r, errs[r])
			}
		}
		if !strings.Contains(errs[2].Error(), "rank 1 at "+addresses[1]) {
			return errs[2]
		}
		return nil
	})
}

func TestOverTCPACancelledSetUpEnds(t *testing.T) {
	ls, addresses := listeners(t, 2)
	dev := device.NewReference()
	defer dev.Close()
	why := errors.New("the run is over")
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	began := time.Now()
	_, err := NewTCP(ctx, ls[0], TCPSettings{Group: "x", Addresses: addresses, Secret: tcpSecret, Deadline: time.Minute, Connections: 1, Device: dev})
	if !errors.Is(err, why) || time.Since(began) > 30*time.Second {
		t.Error(err)
	}
}

func TestOverTCPAnyMistakeInTheSettingsIsToldAtOnce(t *testing.T) {
	ls, _ := listeners(t, 1)
	_, err := NewTCP(context.Background(), ls[0], TCPSettings{Secret: []byte("short")})
	for _, want := range []string{"has no name", "rank 0 of 0 addresses", "the secret has 5 bytes, want at least 16", "the deadline is 0s", "0 connections, want 1 to 64", "no device"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestOverTCPAPeerThatDiffersIsRefusedOnBothSides(t *testing.T) {
	for _, c := range []struct {
		name          string
		change        func(*TCPSettings)
		accepts, says string
	}{
		{"another secret", func(s *TCPSettings) { s.Secret = []byte("a secret of another run") }, "did not prove the secret", "it has another secret or group"},
		{"another group", func(s *TCPSettings) { s.Group = "y" }, "did not prove the secret", "it has another secret or group"},
		{"another size", func(s *TCPSettings) { s.Addresses = append(s.Addresses, "127.0.0.1:1") }, "its group has 3 ranks, this one 2", "its group has another size"},
		{"more connections", func(s *TCPSettings) { s.Connections = 2 }, "it wants 2 connections, this rank 1", "another number of connections"},
	} {
		patient(t, short, func(deadline time.Duration) error {
			ls, addresses := listeners(t, 2)
			errs := make([]error, 2)
			var wait sync.WaitGroup
			wait.Go(func() { errs[0] = setUp(ls[0], nil, TCPSettings{Rank: 0, Addresses: addresses, Deadline: deadline}) })
			wait.Go(func() {
				errs[1] = setUp(ls[1], c.change, TCPSettings{Rank: 1, Addresses: slices.Clone(addresses), Deadline: deadline})
			})
			wait.Wait()
			if errs[0] == nil || !strings.Contains(errs[0].Error(), c.accepts) || !strings.Contains(errs[0].Error(), "refused 127.0.0.1:") {
				return fmt.Errorf("%s: rank 0: %w", c.name, errs[0])
			}
			if errs[1] == nil || !strings.Contains(errs[1].Error(), c.says) {
				return fmt.Errorf("%s: rank 1: %w", c.name, errs[1])
			}
			return nil
		})
	}
}

func TestOverTCPTwoThatComeAsOneRankAreNotBothLetIn(t *testing.T) {
	patient(t, short, func(deadline time.Duration) error {
		ls, addresses := listeners(t, 3)
		errs := make([]error, 3)
		var wait sync.WaitGroup
		for i, r := range []int{0, 1, 1} { // of three: rank 2 never comes, so that all meet
			wait.Go(func() { errs[i] = setUp(ls[i], nil, TCPSettings{Rank: r, Addresses: addresses, Deadline: deadline}) })
		}
		wait.Wait()
		all := errors.Join(errs...)
		if all == nil || !strings.Contains(all.Error(), "it refused this rank: another process has come as this rank") || !strings.Contains(errs[0].Error(), "another process has come as rank 1") {
			return fmt.Errorf("they say: %w", all)
		}
		return nil
	})
}

func TestOverTCPStrangersDoNotHinderTheSetUp(t *testing.T) {
	ls, addresses := listeners(t, 2)
	// They come before the ranks do: one is silent, others talk nonsense, one
	// sends the right greeting and then what is no proof.
	greeting := []byte(hello + "\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00" + strings.Repeat("n", nonceSize))
	for _, words := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\xff", 4096), string(greeting) + strings.Repeat("p", 32), string(greeting[:20])} {
		c, err := net.Dial("tcp", addresses[0])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, words); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	errs := make([]error, 2)
	var wait sync.WaitGroup
	for r := range 2 {
		wait.Go(func() {
			errs[r] = setUp(ls[r], nil, TCPSettings{Rank: r, Addresses: addresses, Deadline: 20 * time.Second})
		})
	}
	wait.Wait()
	mustAll(t, errs)
	if time.Since(began) >= handshakeTime {
		t.Error("the silent one was waited for")
	}
}

func TestOverTCPWhoRefusesStrangersSaysWhoTheyWere(t *testing.T) {
	patient(t, short, func(deadline time.Duration) error {
		ls, addresses := listeners(t, 2)
		c, err := net.Dial("tcp", addresses[0])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\n", 10)); err != nil {
			t.Fatal(err)
		}
		err = setUp(ls[0], nil, TCPSettings{Rank: 0, Addresses: addresses, Deadline: deadline})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("refused %s: it is no gofsdp rank", c.LocalAddr())) {
			return fmt.Errorf("it says: %w", err)
		}
		return nil
	})
}

func TestOverTCPSomethingElseAtAPeersAddressIsNamed(t *testing.T) {
	ls, addresses := listeners(t, 2)
	go func() {
		if c, err := ls[0].Accept(); err == nil {
			_, _ = io.WriteString(c, strings.Repeat("220 mail.example.org ESMTP\r\n", 10))
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	var e *Error
	err := setUp(ls[1], nil, TCPSettings{Rank: 1, Addresses: addresses, Deadline: 3 * time.Second})
	if !errors.As(err, &e) || !slices.Equal(e.Missing, []int{0}) || !strings.Contains(e.Error(), "rank 0 at "+addresses[0]) {
		t.Error(err)
	}
}

func TestOverTCPSomethingThatSaysNothingAtAPeersAddressIsNamed(t *testing.T) {
	ls, addresses := listeners(t, 2) // of which the first accepts, and nobody reads
	var e *Error
	err := setUp(ls[1], nil, TCPSettings{Rank: 1, Addresses: addresses, Deadline: short})
	if !errors.As(err, &e) || !errors.Is(e, ErrDeadline) || !slices.Equal(e.Missing, []int{0}) || !strings.Contains(e.Error(), "rank 0 at "+addresses[0]+": it did not answer as a gofsdp rank does") {
		t.Error(err)
	}
}

func TestOverTCPWhoComesMayBeSlowAsLongAsTheDeadlineAllows(t *testing.T) {
	for _, x := range []struct {
		deadline, rest time.Duration
		in             bool
	}{
		{10 * time.Second, 4 * time.Second, true},
		{10 * time.Second, 6 * time.Second, false},
		{time.Minute, 20 * time.Second, true},
		{time.Minute, 40 * time.Second, false},
	} {
		synctest.Test(t, func(t *testing.T) { // in which a rest takes no time
			join := func(rank int) *mesh {
				set := TCPSettings{Group: "x", Rank: rank, Addresses: make([]string, 2), Secret: tcpSecret, Connections: 1, Deadline: x.deadline}
				return &mesh{TCP: &TCP{set: set}, conns: map[seat]net.Conn{}, change: make(chan struct{}, 1)}
			}
			here, there := net.Pipe()
			admitted := make(chan error)
			go func() {
				err := join(0).admit(t.Context(), here)
				if err != nil {
					_ = here.Close()
				}
				admitted <- err
			}()
			time.Sleep(x.rest)
			let := join(1).introduce(t.Context(), there, seat{0, 0})
			if err := <-admitted; (err == nil) != x.in || (let == nil) != x.in {
				t.Errorf("after %v of %v: %v, and %v", x.rest, x.deadline, err, let)
			}
		})
	}
}

func TestOverTCPNoDescriptorIsLeft(t *testing.T) {
	open := func() int {
		list, err := os.ReadDir("/dev/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(list)
	}
	before := open()
	mustAll(t, tcpRanks(t, 3, 2, 20*time.Second, func(r tcpRank) error { return nil }))
	_ = tcpRanks(t, 3, 2, 20*time.Second, func(r tcpRank) error { r.Abort(io.EOF); return nil })
	t.Run("refused", TestOverTCPAPeerThatDiffersIsRefusedOnBothSides)
	t.Run("missing", TestOverTCPAMissingRankIsNamedByTheSetUp)
	if after := open(); after > before {
		t.Errorf("%d descriptors where there were %d", after, before)
	}
}

const rankVariable = "GOFSDP_TEST_TCP_RANK" // set in the process of a rank

// TestChildOverTCP is the process of rank 1 of a test's group of two. It all-reduces until
// its input ends, or as long as there is a peer.
func TestChildOverTCP(t *testing.T) {
	rank, err := strconv.Atoi(os.Getenv(rankVariable))
	if err != nil {
		t.Skip("it is the other process of tests that start it")
	}
	time.AfterFunc(time.Minute, func() { os.Exit(99) }) // whatever the test does
	ls, addresses := listeners(t, 1)
	fmt.Printf("address %s\n", addresses[0])
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		t.Fatal("no address")
	}
	dev := device.NewReference()
	defer dev.Close()
	c, err := NewTCP(context.Background(), ls[0], TCPSettings{
		Group: "x", Rank: rank, Addresses: []string{in.Text(), addresses[0]}, Secret: tcpSecret, Deadline: 20 * time.Second, Connections: 2, Device: dev,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := allReduceOften(t, c, dev, func() {}); err != nil {
		t.Log(err)
	}
}

// allReduceOften calls summed once the sums are what they have to be, and goes on
// until a rank is gone, at most two thousand times.
func allReduceOften(t *testing.T, c *TCP, dev device.Device, summed func()) error {
	const size = 1_000_003
	x, s := tensor(t, dev, c.Rank(), size), dev.NewStream("comm")
	ops, err := c.Bind(&AllReduce{Data: x, Name: "x"})
	if err != nil {
		return err
	}
	for range 3 {
		copy(x.F32(), numbers(c.Rank(), size))
		if err := launch(s, ops); err != nil {
			return err
		}
	}
	want := numbers(1, size)
	for i, a := range numbers(0, size) {
		want[i] += a
	}
	if !slices.Equal(x.F32(), want) {
		return errors.New("the sum is another one")
	}
	summed()
	for range 2000 {
		if err := launch(s, ops); err != nil {
			return err
		}
	}
	return nil
}

// withChild makes this process rank 0 and another one rank 1.
func withChild(t *testing.T, deadline time.Duration, f func(c *TCP, dev device.Device, child *os.Process) error) (err error) {
	t.Helper()
	ls, addresses := listeners(t, 1)
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildOverTCP$")
	cmd.Env = append(os.Environ(), rankVariable+"=1")
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	lines := bufio.NewScanner(out)
	var address string
	for lines.Scan() {
		if a, ok := strings.CutPrefix(lines.Text(), "address "); ok {
			address = a
			break
		}
	}
	if _, err := fmt.Fprintln(in, addresses[0]); err != nil {
		t.Fatal(err)
	}
	dev := device.NewReference()
	defer dev.Close()
	c, err := NewTCP(context.Background(), ls[0], TCPSettings{
		Group: "x", Rank: 0, Addresses: []string{addresses[0], address}, Secret: tcpSecret, Deadline: deadline, Connections: 2, Device: dev,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return f(c, dev, cmd.Process)
}

func TestOverTCPTwoProcessesSumAndAKilledOneIsNamed(t *testing.T) {
	if err := withChild(t, 20*time.Second, func(c *TCP, dev device.Device, child *os.Process) error {
		err := allReduceOften(t, c, dev, func() {
			time.AfterFunc(100*time.Millisecond, func() { _ = child.Kill() })
		})
		var e *Error
		if !errors.As(err, &e) || !slices.Equal(e.Missing, []int{1}) || e.Number < 3 || !strings.Contains(e.Error(), "rank 1 at 127.0.0.1") || e.Waited > 10*time.Second {
			return fmt.Errorf("it ended by: %w", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestOverTCPAStoppedProcessIsNamed(t *testing.T) {
	patient(t, 2*time.Second, func(deadline time.Duration) error {
		return withChild(t, deadline, func(c *TCP, dev device.Device, child *os.Process) error {
			err := allReduceOften(t, c, dev, func() {
				time.AfterFunc(100*time.Millisecond, func() { _ = child.Signal(unix.SIGSTOP) })
			})
			var e *Error
			if !errors.As(err, &e) || !errors.Is(e, ErrDeadline) || !slices.Equal(e.Missing, []int{1}) || e.Number < 3 {
				return fmt.Errorf("it ended by: %w", err)
			}
			return nil
		})
	})
}
