package collective

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
)

// levelRank is one rank of a test's group on several nodes.
type levelRank struct {
	*levels
	dev    device.Device
	stream device.Stream
}

// levelRanks runs f for each rank of a group of so many nodes of several ranks,
// side by side, and returns their errors by rank. All are of this process; ranks
// of one node reach each other's memory, others talk over TCP.
func levelRanks(t testing.TB, nodes, each int, deadline time.Duration, f func(r levelRank) error) []error {
	t.Helper()
	return levelRanksOn(t, nodes, each, deadline, func(_ int, d device.Device) device.Device { return d }, f)
}

// levelRanksOn is levelRanks with each rank's device changed by wrap.
func levelRanksOn(t testing.TB, nodes, each int, deadline time.Duration, wrap func(rank int, d device.Device) device.Device, f func(r levelRank) error) []error {
	t.Helper()
	errs := make([]error, nodes*each)
	near := make([][]Comm, nodes)
	for i := range near {
		near[i] = NewGroup(each, deadline)
	}
	var wait sync.WaitGroup
	for column := range each {
		ls, addresses := listeners(t, nodes)
		var ranks []int
		for node := range nodes {
			ranks = append(ranks, node*each+column)
		}
		for node, rank := range ranks {
			wait.Go(func() {
				dev := wrap(rank, device.NewHost(device.Info{Name: "plain", Kind: "cpu"}, func(string) (device.Executor, error) { return plainExecutor{}, nil }))
				defer dev.Close()
				far, err := NewTCP(context.Background(), ls[node], TCPSettings{
					Group: fmt.Sprint(column), Rank: node, Ranks: ranks, Addresses: addresses, Secret: tcpSecret,
					Deadline: farDeadline(deadline), Connections: 2, Device: dev,
				})
				if err != nil {
					errs[rank] = err
					return
				}
				m := near[node][column].(*member)
				m.names = nil
				for r := range each {
					m.names = append(m.names, node*each+r)
				}
				c := &levels{near: m, far: far}
				m.onError, far.onError = c.Abort, c.Abort
				errs[rank] = errors.Join(f(levelRank{c, dev, dev.NewStream("comm")}), far.Close())
			})
		}
	}
	wait.Wait()
	return errs
}

// inProcess returns what every collective gives on each rank of a group of this
// process.
func inProcess(t *testing.T, n, size int) [][]float32 {
	t.Helper()
	comms, want, errs := NewGroup(n, 20*time.Second), make([][]float32, n), make([]error, n)
	var wait sync.WaitGroup
	for r := range n {
		wait.Go(func() {
			dev := device.NewHost(device.Info{}, func(string) (device.Executor, error) { return plainExecutor{}, nil })
			defer dev.Close()
			want[r], errs[r] = everyOverTCP(func(n int) device.Tensor { return tensor(t, dev, r, n) }, comms[r], dev.NewStream("comm"), size)
		})
	}
	wait.Wait()
	mustAll(t, errs)
	return want
}

func TestOnSeveralNodesEveryCollectiveGivesTheBitsOfTheGroupInProcess(t *testing.T) {
	for _, mesh := range [][2]int{{2, 2}, {3, 2}, {2, 3}, {4, 2}} {
		for _, size := range []int{0, 1, 2, 3, 5, 7, 16, 1000, 1_600_001} {
			if size > 1000 && (testing.Short() || mesh[0]+mesh[1] > 5) {
				continue
			}
			nodes, each := mesh[0], mesh[1]
			want := inProcess(t, nodes*each, size)
			mustAll(t, levelRanks(t, nodes, each, 20*time.Second, func(r levelRank) error {
				if r.Size() != nodes*each {
					return fmt.Errorf("a group of %d", r.Size())
				}
				got, err := everyOverTCP(func(n int) device.Tensor { return tensor(t, r.dev, r.Rank(), n) }, r, r.stream, size)
				if err == nil && !slices.Equal(got, want[r.Rank()]) {
					err = errors.New("other bits")
				}
				return err
			}))
			if t.Failed() {
				t.Fatalf("%d elements, %d nodes of %d ranks", size, nodes, each)
			}
		}
	}
}

// typed returns n elements of a type with a rank's own numbers.
func typed(t testing.TB, dev device.Device, typ device.DType, r, n int) device.Tensor {
	b, err := dev.Alloc(max(int64(n), 1)*typ.Size(), device.Shared)
	if err != nil {
		t.Error(err)
		return device.Tensor{}
	}
	x := b.In(typ, 0, int64(n))
	for i, v := range numbers(r, n) {
		if typ == device.F64 {
			x.F64()[i] = float64(v) / 3
		} else {
			x.BF16()[i] = device.ToBF16(v)
		}
	}
	return x
}

func TestOnSeveralNodesSumsOfEveryTypeAreThoseOfTheGroupInProcess(t *testing.T) {
	const nodes, each, size = 3, 2, 1003
	// sums returns the bytes of an all-reduce and of a reduce-scatter.
	sums := func(c Comm, dev device.Device, s device.Stream, typ device.DType) (all []byte, err error) {
		from, to := Part(size, c.Rank(), c.Size())
		x, y := typed(t, dev, typ, c.Rank(), size), typed(t, dev, typ, c.Rank(), size)
		for _, op := range []Op{&AllReduce{Data: x, Name: "x"}, &ReduceScatter{Data: y, Out: y.Slice(from, to-from), Name: "y"}} {
			ops, err := c.Bind(op)
			if err == nil {
				err = launch(s, ops)
			}
			if err != nil {
				return nil, err
			}
		}
		return slices.Concat(hostBytes(x), hostBytes(y.Slice(from, to-from))), nil
	}
	for _, typ := range []device.DType{device.BF16, device.F64} {
		want := make([][]byte, nodes*each)
		mustAll(t, ranks(t, nodes*each, 20*time.Second, func(r int, c Comm, dev device.Device, s device.Stream) (err error) {
			want[r], err = sums(c, dev, s, typ)
			return err
		}))
		mustAll(t, levelRanks(t, nodes, each, 20*time.Second, func(r levelRank) error {
			got, err := sums(r, r.dev, r.stream, typ)
			if err == nil && !slices.Equal(got, want[r.Rank()]) {
				err = fmt.Errorf("other bits of %s", typ)
			}
			return err
		}))
	}
}

func TestOnSeveralNodesDelaysAndShortReadsChangeNothing(t *testing.T) {
	seed := seedOf(t, "TestOnSeveralNodesDelays")
	const nodes, each, size = 3, 2, 100_003
	want := inProcess(t, nodes*each, size)
	delayed := func(rank int, d device.Device) device.Device {
		return device.NewDelayer(d, seed+uint64(rank), time.Millisecond)
	}
	mustAll(t, levelRanksOn(t, nodes, each, 20*time.Second, delayed, func(r levelRank) error {
		jitter(r.far, seed)
		got, err := everyOverTCP(func(n int) device.Tensor { return tensor(t, r.dev, r.Rank(), n) }, r, r.stream, size)
		if err == nil && !slices.Equal(got, want[r.Rank()]) {
			err = errors.New("other bits")
		}
		return err
	}))
}

func TestOnSeveralNodesABoundCollectiveRunsOften(t *testing.T) {
	mustAll(t, levelRanks(t, 2, 2, 20*time.Second, func(r levelRank) error {
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
				if want := float32(10 * (round + i)); got != want {
					return fmt.Errorf("round %d: %v, want %v", round, got, want)
				}
			}
		}
		return nil
	}))
}

func TestOnSeveralNodesALaunchAllocatesNothing(t *testing.T) {
	var allocated [allocationRounds]uint64
	kernels := func(_ int, d device.Device) device.Device {
		dev, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			t.Error(err)
			return d
		}
		return dev
	}
	dev := kernels(0, nil)
	if err := dev.Close(); err != nil || dev.Info().ISA == "go" {
		t.Skip("references allocate ", err)
	}
	mustAll(t, levelRanksOn(t, 2, 2, 20*time.Second, kernels, func(r levelRank) error {
		return countAllocations(t, r.dev, r.stream, r, &allocated)
	}))
	// As over TCP alone, the runtime has some of its own in some rounds.
	if slices.Min(allocated[:]) > 0 {
		t.Errorf("%v allocations in rounds of %d launches of five collectives on four ranks", allocated, allocationLaunches)
	}
}

func TestOnSeveralNodesARankThatDoesNotComeIsNamedByThoseWhoMeetIt(t *testing.T) {
	const stuck = 3 // of nodes [0 1] and [2 3]
	patient(t, 500*time.Millisecond, func(deadline time.Duration) error {
		errs := levelRanks(t, 2, 2, deadline, func(r levelRank) error {
			ops, err := r.Bind(&AllReduce{Data: tensor(t, r.dev, r.Rank(), 10), Name: "block 3 gradient"})
			if err != nil {
				return err
			}
			err = launch(r.stream, ops)
			if r.Rank() == stuck {
				<-r.far.failed
				return err
			}
			return errors.Join(err, launch(r.stream, ops))
		})
		for r, err := range errs[:stuck] {
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, ErrDeadline) || e.Rank != r || e.Number != 1 || e.Missing != nil && !slices.Equal(e.Missing, []int{stuck}) ||
				!strings.Contains(err.Error(), "all-reduce of block 3 gradient, number 1") || !strings.Contains(err.Error(), "for ranks [3]") {
				return fmt.Errorf("rank %d: %w", r, err)
			}
		}
		return nil
	})
}

func TestOnSeveralNodesAnAbortReachesAll(t *testing.T) {
	began := time.Now()
	heard := make(chan int, 5)
	for r, err := range levelRanks(t, 3, 2, 30*time.Second, func(r levelRank) error {
		if r.Rank() == 4 {
			defer hearAll(heard) // until it leaves
		} else {
			defer func() { heard <- r.Rank() }()
		}
		ops, err := r.Bind(&Barrier{Name: "x"})
		if err != nil {
			return err
		}
		if r.Rank() == 4 {
			r.Abort(errors.New("the disk is full"))
			return nil
		}
		return launch(r.stream, ops)
	}) {
		if r != 4 && (err == nil || !strings.Contains(err.Error(), "barrier of x, number 0") || !strings.Contains(err.Error(), "the disk is full")) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if time.Since(began) > 20*time.Second {
		t.Error("it took long")
	}
}

func TestOnSeveralNodesRanksThatBindDifferentCollectivesAreTold(t *testing.T) {
	for r, err := range levelRanks(t, 2, 2, 5*time.Second, func(r levelRank) error {
		x := tensor(t, r.dev, r.Rank(), 20)
		_, err := r.Bind(&AllReduce{Data: x.Slice(0, int64(10+r.Rank()/3)), Name: "x"})
		return err
	}) {
		if err == nil || !strings.Contains(err.Error(), "plans differ") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// jitter makes all data connections of a rank move at random.
func jitter(c *TCP, seed uint64) {
	for _, p := range c.peers {
		if p == nil {
			continue
		}
		for _, l := range p.links { // nothing has been posted to them
			l.conn = &jitteryConn{Conn: l.conn, rng: rand.New(rand.NewPCG(seed, uint64(10*c.Rank()+p.rank)))}
		}
	}
}
