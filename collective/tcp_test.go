package collective

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

var tcpSecret = []byte("a secret of the tests")

// tcpRank is one rank of a test's group.
type tcpRank struct {
	*TCP
	dev    device.Device
	stream device.Stream
}

// listeners returns n listeners of this machine and their addresses.
func listeners(t testing.TB, n int) (ls []net.Listener, addresses []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		ls, addresses = append(ls, l), append(addresses, l.Addr().String())
	}
	return ls, addresses
}

// plainExecutor runs references, but for sums, which it does in float32 without
// allocating.
type plainExecutor struct{}

func (plainExecutor) Close() error { return nil }
func (plainExecutor) Run(op device.Op) error {
	sum, ok := op.(*device.ReduceSum)
	if !ok || sum.Dst.Type != device.F32 || sum.Srcs[0].Type != device.F32 {
		op.Reference()
		return nil
	}
	dst := sum.Dst.F32()
	var srcs [8][]float32
	for r, s := range sum.Srcs {
		srcs[r] = s.F32()
	}
	for i := range dst { // one of the sources may be the sum
		x := srcs[0][i]
		for r := 1; r < len(sum.Srcs); r++ {
			x += srcs[r][i]
		}
		dst[i] = x
	}
	return nil
}

// tcpRanks runs f for each rank of a group over TCP, side by side, and returns
// their errors by rank. Each closes its end when f returns.
func tcpRanks(t testing.TB, n, connections int, deadline time.Duration, f func(r tcpRank) error) []error {
	t.Helper()
	ls, addresses := listeners(t, n)
	errs := make([]error, n)
	var wait sync.WaitGroup
	for r := range n {
		wait.Go(func() {
			dev := device.NewHost(device.Info{Name: "plain", Kind: "cpu"}, func(string) (device.Executor, error) { return plainExecutor{}, nil })
			defer dev.Close()
			c, err := NewTCP(context.Background(), ls[r], TCPSettings{
				Group: "x", Rank: r, Addresses: addresses, Secret: tcpSecret, Deadline: deadline, Connections: connections, Device: dev,
			})
			if err != nil {
				errs[r] = err
				return
			}
			errs[r] = errors.Join(f(tcpRank{c, dev, dev.NewStream("comm")}), c.Close())
		})
	}
	wait.Wait()
	return errs
}

func mustAll(t testing.TB, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// blank returns n zeros of F32 on dev.
func blank(t testing.TB, dev device.Device, n int64) device.Tensor {
	b, err := dev.Alloc(4*n, device.Local)
	if err != nil {
		t.Error(err)
		return device.Tensor{}
	}
	return b.In(device.F32, 0, n)
}

// everyOverTCP launches each collective over size elements and returns all
// that this rank then holds.
func everyOverTCP(alloc func(n int) device.Tensor, c Comm, s device.Stream, size int) (results []float32, err error) {
	from, to := Part(int64(size), c.Rank(), c.Size())
	all, out, half, own, one := alloc(size), alloc(int(to-from)), alloc(size), alloc(size), alloc(size)
	for _, x := range []struct {
		op  Op
		got device.Tensor
	}{
		{&AllGather{Own: all.Slice(from, to-from), Data: all, Name: "a"}, all},
		{&ReduceScatter{Data: half, Out: out, Name: "b"}, out},
		{&ReduceScatter{Data: own, Out: own.Slice(from, to-from), Name: "c"}, own.Slice(from, to-from)},
		{&AllReduce{Data: half, Name: "d"}, half},
		{&Broadcast{Data: one, Root: c.Size() - 1, Name: "e"}, one},
		{&Barrier{Name: "f"}, one},
	} {
		ops, err := c.Bind(x.op)
		if err != nil {
			return nil, err
		}
		for range 2 { // the second time with what the first has made
			if err := launch(s, ops); err != nil {
				return nil, err
			}
			results = append(results, x.got.F32()...)
		}
	}
	return results, nil
}

func TestOverTCPEveryCollectiveGivesTheBitsOfTheGroupInProcess(t *testing.T) {
	// The last size is of several chunks and goes over several connections.
	for _, size := range []int{0, 1, 2, 3, 7, 16, 1000, 1_500_001} {
		for n := 1; n <= 4; n++ {
			for connections := 1; connections <= 2; connections++ {
				if size > 1000 && (testing.Short() || n == 4 || connections == 1) {
					continue
				}
				want := make([][]float32, n)
				mustAll(t, ranks(t, n, 20*time.Second, func(r int, c Comm, dev device.Device, s device.Stream) (err error) {
					want[r], err = everyOverTCP(func(n int) device.Tensor { return tensor(t, dev, r, n) }, c, s, size)
					return err
				}))
				mustAll(t, tcpRanks(t, n, connections, 20*time.Second, func(r tcpRank) error {
					got, err := everyOverTCP(func(n int) device.Tensor { return tensor(t, r.dev, r.Rank(), n) }, r, r.stream, size)
					if err == nil && !slices.Equal(got, want[r.Rank()]) {
						err = errors.New("other bits")
					}
					return err
				}))
				if t.Failed() {
					t.Fatalf("%d elements, %d ranks, %d connections", size, n, connections)
				}
			}
		}
	}
}

func TestOverTCPABoundCollectiveRunsTwoHundredTimes(t *testing.T) {
	mustAll(t, tcpRanks(t, 3, 2, 20*time.Second, func(r tcpRank) error {
		x := tensor(t, r.dev, r.Rank(), 10)
		ops, err := r.Bind(&AllReduce{Data: x, Name: "x"})
		if err != nil {
			return err
		}
		for round := range 200 {
			for i := range x.F32() {
				x.F32()[i] = float32((r.Rank() + 1) * (round + i))
			}
			if err := launch(r.stream, ops); err != nil {
				return err
			}
			for i, got := range x.F32() {
				if want := float32(6 * (round + i)); got != want {
					return fmt.Errorf("round %d: %v, want %v", round, got, want)
				}
			}
		}
		return nil
	}))
}

const (
	allocationRounds   = 20
	allocationLaunches = 5 // in a round
)

// countAllocations launches each collective on one rank of several, and counts in
// the first one's rounds what the process allocates.
func countAllocations(t *testing.T, dev device.Device, stream device.Stream, comm Comm, allocated *[allocationRounds]uint64) error {
	var all []device.Op
	x := tensor(t, dev, comm.Rank(), 600_001)
	from, to := Part(x.Len, comm.Rank(), comm.Size())
	for _, op := range []Op{
		&AllGather{Own: x.Slice(from, to-from), Data: x, Name: "x"},
		&ReduceScatter{Data: x, Out: x.Slice(from, to-from), Name: "x"},
		&AllReduce{Data: x, Name: "x"}, &Broadcast{Data: x, Name: "x"}, &Barrier{Name: "x"},
	} {
		ops, err := comm.Bind(op)
		if err != nil {
			return err
		}
		all = append(all, ops...)
	}
	for round := range allocated {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range allocationLaunches {
			if err := launch(stream, all); err != nil {
				return err
			}
		}
		runtime.ReadMemStats(&after)
		if comm.Rank() == 0 {
			allocated[round] = after.Mallocs - before.Mallocs
		}
	}
	return nil
}

func TestOverTCPALaunchAllocatesNothing(t *testing.T) {
	var allocated [allocationRounds]uint64
	mustAll(t, tcpRanks(t, 3, 2, 20*time.Second, func(r tcpRank) error {
		return countAllocations(t, r.dev, r.stream, r, &allocated)
	}))
	// All ranks are counted. The runtime fills pools of its own (for who waits in
	// a select) as goroutines move between processors, so not every round is bare.
	if slices.Min(allocated[:]) > 0 {
		t.Errorf("%v allocations in rounds of %d launches of five collectives on three ranks", allocated, allocationLaunches)
	}
}

func TestOverTCPAPeerThatDoesNotComeIsNamed(t *testing.T) {
	patient(t, 300*time.Millisecond, func(deadline time.Duration) error {
		errs := tcpRanks(t, 3, 1, deadline, func(r tcpRank) error {
			ops, err := r.Bind(&AllReduce{Data: tensor(t, r.dev, r.Rank(), 10), Name: "block 3 gradient"})
			if err != nil {
				return err
			}
			err = launch(r.stream, ops)
			if r.Rank() == 1 {
				<-r.failed // stuck: connected, but it does not come
				return err
			}
			return errors.Join(err, launch(r.stream, ops))
		})
		for _, r := range []int{0, 2} {
			var e *Error
			if !errors.As(errs[r], &e) || !errors.Is(e, ErrDeadline) || e.Rank != r || e.Number != 1 || !slices.Equal(e.Missing, []int{1}) {
				return fmt.Errorf("rank %d: %w", r, errs[r])
			}
			if !strings.Contains(e.Error(), "all-reduce of block 3 gradient, number 1, waited ") || !strings.Contains(e.Error(), " for ranks [1]: ") || e.Waited < 2*deadline/3 || e.Waited > 15*deadline {
				return e
			}
		}
		return nil
	})
}

func TestOverTCPAPeerThatStopsReadingIsNamed(t *testing.T) {
	patient(t, 300*time.Millisecond, func(deadline time.Duration) error {
		errs := tcpRanks(t, 2, 1, deadline, func(r tcpRank) error {
			// More than the sockets' buffers take.
			ops, err := r.Bind(&Broadcast{Data: blank(t, r.dev, 16<<20), Name: "x"})
			if err != nil {
				return err
			}
			if r.Rank() == 1 {
				<-r.failed
				return nil
			}
			return launch(r.stream, ops)
		})
		var e *Error
		if !errors.As(errs[0], &e) || !errors.Is(e, ErrDeadline) || e.Kind != "broadcast" || !slices.Equal(e.Missing, []int{1}) {
			return fmt.Errorf("rank 0: %w", errs[0])
		}
		return nil
	})
}

func TestOverTCPAPeerThatIsSlowButMovesIsWaitedFor(t *testing.T) {
	patient(t, 400*time.Millisecond, func(deadline time.Duration) error {
		began := time.Now()
		errs := tcpRanks(t, 2, 1, deadline, func(r tcpRank) error {
			ops, err := r.Bind(&Broadcast{Data: blank(t, r.dev, 8<<20), Name: "x"})
			if err != nil {
				return err
			}
			if r.Rank() == 1 {
				l := r.peers[0].links[0]
				l.conn = &slowConn{Conn: l.conn, pause: deadline / 20}
			}
			return launch(r.stream, ops)
		})
		if time.Since(began) < 2*deadline {
			t.Error("it was not slow")
		}
		return errors.Join(errs...)
	})
}

// slowConn reads little at a time and rests.
type slowConn struct {
	net.Conn
	pause time.Duration
}

func (c *slowConn) Read(b []byte) (int, error) {
	time.Sleep(c.pause)
	return io.ReadFull(c.Conn, b[:min(len(b), 512<<10)])
}

func TestOverTCPRanksThatBindDifferentCollectivesAreTold(t *testing.T) {
	for name, bind := range map[string]func(r tcpRank, x device.Tensor) Op{
		"(10 of f32)|(11 of f32)": func(r tcpRank, x device.Tensor) Op {
			return &AllReduce{Data: x.Slice(0, int64(10+r.Rank())), Name: "x"}
		},
		"of x (|of y (":             func(r tcpRank, x device.Tensor) Op { return &AllReduce{Data: x, Name: string(rune('x' + r.Rank()))} },
		"from place 0|from place 1": func(r tcpRank, x device.Tensor) Op { return &Broadcast{Data: x, Root: r.Rank(), Name: "x"} },
		"all-reduce of x|broadcast of x": func(r tcpRank, x device.Tensor) Op {
			return []Op{&AllReduce{Data: x, Name: "x"}, &Broadcast{Data: x, Name: "x"}}[r.Rank()]
		},
		"(20 of f32)|(20 of i32)|rank 0|1": func(r tcpRank, x device.Tensor) Op {
			x.Type = []device.DType{device.F32, device.I32}[r.Rank()]
			return &Broadcast{Data: x, Name: "x"}
		},
	} {
		for r, err := range tcpRanks(t, 2, 1, 5*time.Second, func(r tcpRank) error {
			_, err := r.Bind(bind(r, tensor(t, r.dev, r.Rank(), 20)))
			return err
		}) {
			for _, want := range append(strings.Split(name, "|"), "plans differ", fmt.Sprintf("rank %d has bound", 1-r)) {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: rank %d: %v, want %q", name, r, err, want)
				}
			}
		}
	}
}

func TestOverTCPAbortEndsEveryWaitWithItsReason(t *testing.T) {
	reason, began := errors.New("loss is not finite"), time.Now()
	heard := make(chan int, 2)
	errs := tcpRanks(t, 3, 1, 30*time.Second, func(r tcpRank) error {
		if r.Rank() == 0 {
			defer hearAll(heard) // a connection that is closed with unread bytes takes back what was told
		} else {
			defer func() { heard <- r.Rank() }()
		}
		ops, err := r.Bind(&Barrier{Name: "x"})
		if err != nil {
			return err
		}
		if r.Rank() == 0 {
			time.Sleep(50 * time.Millisecond)
			r.Abort(reason)
			if err := launch(r.stream, ops); !errors.Is(err, reason) {
				t.Errorf("the rank itself: %v", err)
			}
			return nil
		}
		if r.Rank() == 1 {
			_, err := r.Bind(&Barrier{Name: "y"})
			return err
		}
		return launch(r.stream, ops)
	})
	for r := 1; r < 3; r++ {
		var e *Error
		if !errors.As(errs[r], &e) || e.Rank != r || !strings.Contains(e.Error(), "rank 0 says: loss is not finite") {
			t.Errorf("rank %d: %v", r, errs[r])
		}
	}
	if time.Since(began) > 20*time.Second {
		t.Error("it took long")
	}
}

// hearAll waits for as many as there is room for.
func hearAll(heard chan int) {
	for range cap(heard) {
		select {
		case <-heard:
		case <-time.After(time.Minute): // it did not even come to be a rank
		}
	}
}

func TestOverTCPARankThatLeavesIsNamedAndItsLastWordsAreHeard(t *testing.T) {
	errs := tcpRanks(t, 2, 1, 10*time.Second, func(r tcpRank) error {
		x := tensor(t, r.dev, r.Rank(), 1<<20)
		ops, err := r.Bind(&Broadcast{Data: x, Name: "x"})
		if err != nil {
			return err
		}
		if r.Rank() == 0 {
			return launch(r.stream, ops) // and closes at once
		}
		time.Sleep(100 * time.Millisecond)
		if err := launch(r.stream, ops); err != nil {
			t.Errorf("what rank 0 sent before it left: %v", err)
		}
		if !slices.Equal(x.F32(), numbers(0, 1<<20)) {
			t.Error("it is not what rank 0 had")
		}
		return launch(r.stream, ops)
	})
	var e *Error
	if errs[0] != nil || !errors.As(errs[1], &e) || !slices.Equal(e.Missing, []int{0}) || !strings.Contains(e.Error(), "rank 0 at 127.0.0.1") || !strings.Contains(e.Error(), "left the group") {
		t.Error(errs)
	}
}

func TestOverTCPForeignBytesAmongDataAreAnErrorThatNamesThePeer(t *testing.T) {
	word := func(b string) func(tcpRank, []device.Op) {
		return func(r tcpRank, _ []device.Op) { _, _ = r.peers[1].control.Write([]byte(b)) }
	}
	for want, corrupt := range map[string]func(r tcpRank, ops []device.Op){
		"bytes that are no frame of this group: 474554": func(r tcpRank, _ []device.Op) {
			_, _ = r.peers[1].links[0].conn.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 10)))
		},
		"bytes that are no word of a rank: ff":       word("\xff\xff\xff\xff\xffGET /"),
		"bytes that are no word of a rank: 02ffffff": word("\x02\xff\xff\xff\x7f"), // an abort of 2 GB
		"it binds ahead of the group":                word(strings.Repeat("\x01\x00\x00\x00\x00", 10)),
		"where 4000 bytes of part 0 of number 0 (broadcast, bound as number 0) are due": func(r tcpRank, ops []device.Op) {
			ops[0].(*exchange).do.post[0].frame.length = 1 << 60
			_ = launch(r.stream, ops) // may hear the other's complaint
		},
	} {
		errs := tcpRanks(t, 2, 1, 5*time.Second, func(r tcpRank) error {
			ops, err := r.Bind(&Broadcast{Data: tensor(t, r.dev, 0, 1000), Name: "x"})
			if err != nil {
				return err
			}
			if r.Rank() == 0 {
				corrupt(r, ops)
				select {
				case <-r.failed: // by the other's complaint
					return nil
				case <-time.After(20 * time.Second):
					return errors.New("nobody complains")
				}
			}
			return launch(r.stream, ops)
		})
		var e *Error
		if errs[0] != nil || !errors.As(errs[1], &e) || !slices.Equal(e.Missing, []int{0}) || !strings.Contains(e.Error(), "rank 0 at 127.0.0.1") || !strings.Contains(e.Error(), want) {
			t.Errorf("%s: %v", want, errs)
		}
	}
}

func TestOverTCPAPartOfAWrongSizeIsRefusedByBind(t *testing.T) {
	mustAll(t, tcpRanks(t, 1, 1, time.Second, func(r tcpRank) error {
		x := tensor(t, r.dev, 0, 10)
		for want, op := range map[string]Op{
			"has 9 elements for the rank at place 0 of 1, want 10": &AllGather{Own: x.Slice(0, 9), Data: x, Name: "x"},
			"has 8 elements for the rank at place 0 of 1, want 10": &ReduceScatter{Data: x, Out: x.Slice(0, 8), Name: "x"},
			"all-reduce of x has no data":                          &AllReduce{Name: "x"},
			"has root 1 in a group of 1":                           &Broadcast{Data: x, Root: 1, Name: "x"},
		} {
			if _, err := r.Bind(op); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		return nil
	}))
}

// seedOf returns a seed of its own for each run of a test, or SEED to replay one.
func seedOf(t *testing.T, test string) uint64 {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again: SEED=%d go test -run %s ./collective", seed, test)
		}
	})
	return seed
}

// jitteryConn moves a few bytes at a time, at random, and now and then rests.
type jitteryConn struct {
	net.Conn
	mu  sync.Mutex
	rng *rand.Rand
}

func (c *jitteryConn) some(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rng.IntN(4) == 0 {
		time.Sleep(time.Duration(c.rng.IntN(1000)) * time.Microsecond)
	}
	return 1 + c.rng.IntN(max(n, 1))
}

func (c *jitteryConn) Read(b []byte) (int, error) {
	return c.Conn.Read(b[:min(len(b), c.some(len(b)))])
}

func (c *jitteryConn) Write(b []byte) (done int, err error) {
	for done < len(b) && err == nil {
		var n int
		n, err = c.Conn.Write(b[done:min(len(b), done+c.some(len(b)))])
		done += n
	}
	return done, err
}

func TestOverTCPDelaysAndShortReadsChangeNothing(t *testing.T) {
	seed := seedOf(t, "TestOverTCPDelays")
	const n, size = 3, 200_003
	want := make([][]float32, n)
	mustAll(t, ranks(t, n, 20*time.Second, func(r int, c Comm, dev device.Device, s device.Stream) (err error) {
		want[r], err = everyOverTCP(func(n int) device.Tensor { return tensor(t, dev, r, n) }, c, s, size)
		return err
	}))
	mustAll(t, tcpRanks(t, n, 2, 20*time.Second, func(r tcpRank) error {
		jitter(r.TCP, seed)
		got, err := everyOverTCP(func(n int) device.Tensor { return tensor(t, r.dev, r.Rank(), n) }, r, r.stream, size)
		if err == nil && !slices.Equal(got, want[r.Rank()]) {
			err = errors.New("other bits")
		}
		return err
	}))
}

func TestOverTCPAReasonIsReadAsItWasTold(t *testing.T) {
	deadline := fmt.Errorf("in vain: %w", ErrDeadline)
	for _, missing := range [][]int{nil, {1}, {0, 2}} {
		for _, reason := range []error{errors.New("no"), errors.New(""), deadline} {
			got, err := parseAbort(abortText(1, missing, reason), 2)
			if !slices.Equal(got, missing) || err.Error() != "rank 1 says: "+reason.Error() || errors.Is(err, ErrDeadline) != errors.Is(reason, ErrDeadline) {
				t.Errorf("%v, %v became %v, %v", missing, reason, got, err)
			}
			// Passed on, it is still rank 1's.
			if _, again := parseAbort(abortText(2, missing, err), 0); again.Error() != err.Error() || errors.Is(again, ErrDeadline) != errors.Is(err, ErrDeadline) {
				t.Errorf("%v became %v", err, again)
			}
		}
	}
}

func FuzzAReasonOfAnyBytesIsRead(f *testing.F) {
	f.Add([]byte{})
	f.Add(abortText(1, []int{0, 2}, ErrDeadline))
	f.Add([]byte("\x01\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		missing, err := parseAbort(b, 1)
		if err == nil || err.Error() == "" || len(missing) > mostMissing {
			t.Errorf("%v, %v", missing, err)
		}
	})
}
