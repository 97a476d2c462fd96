//go:build sim && cgo && linux

package nccl_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/nccl"
)

func TestEveryCollectiveGivesWhatItShould(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		for _, typ := range []device.DType{device.F32, device.BF16, device.F64, device.I32} {
			for _, length := range []int64{0, 1, 3, 8, 13, 1 << 12} {
				t.Run(fmt.Sprintf("%d ranks, %d of %s", n, length, typ), func(t *testing.T) {
					r := connect(t, n, [][]int{everyone(n)}, patient)
					for _, err := range parallel(n, func(rank int) error { return everyCollective(r, rank, n, typ, length) }) {
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
	}
}

// everyCollective is one rank's part: each collective twice, over the same operations.
func everyCollective(r *run, rank, n int, typ device.DType, length int64) error {
	c := r.groups[rank].Comms[0]
	if c.Rank() != rank || c.Size() != n {
		return fmt.Errorf("rank %d of %d is %d of %d", rank, n, c.Rank(), c.Size())
	}
	s := r.gpus[rank].NewStream("compute")
	x, y := r.alloc(rank, typ, length), r.alloc(rank, typ, length)
	from, to := collective.Part(length, rank, n)
	part := func(h held) device.Tensor { return h.there.Slice(from, to-from) }
	mine := func(rank int) func(i int) float64 {
		return func(i int) float64 { return float64((rank + 1) * (i%5 + 1)) }
	}
	sum := func(i int) float64 { return float64(n * (n + 1) / 2 * (i%5 + 1)) }
	cases := []struct {
		op   collective.Op
		in   held
		out  held
		from int64
		to   int64
		want func(i int) float64
	}{
		{&collective.AllReduce{Data: x.there, Name: "x"}, x, x, 0, length, sum},
		{&collective.Broadcast{Data: x.there, Root: n - 1, Name: "x"}, x, x, 0, length, mine(n - 1)},
		{&collective.ReduceScatter{Data: x.there, Out: part(x), Name: "x"}, x, x, from, to, sum},
		{&collective.ReduceScatter{Data: x.there, Out: part(y), Name: "x"}, x, y, from, to, sum},
		{&collective.AllGather{Data: x.there, Own: part(x), Name: "x"}, x, x, 0, length, func(i int) float64 {
			for r := range n {
				if f, t := collective.Part(length, r, n); int64(i) >= f && int64(i) < t {
					return mine(r)(i)
				}
			}
			panic("no rank has it")
		}},
		{&collective.Barrier{Name: "x"}, x, x, 0, length, mine(rank)},
	}
	for _, k := range cases {
		ops, err := c.Bind(k.op)
		if err != nil {
			return err
		}
		for range 2 {
			k.in.set(s, mine(rank))
			for _, op := range ops {
				s.Launch(op)
			}
			got, err := k.out.get(s)
			if err != nil {
				return err
			}
			for i := k.from; i < k.to; i++ {
				if got[i] != k.want(int(i)) {
					return fmt.Errorf("rank %d: %T at %d: %g, want %g", rank, k.op, i, got[i], k.want(int(i)))
				}
			}
		}
	}
	return nil
}

func TestTwoCommunicatorsRunAtOnceOnTwoStreams(t *testing.T) {
	const n, length, turns = 4, 1 << 10, 30
	r := connect(t, n, [][]int{everyone(n), everyone(n), {0, 1}, {2, 3}}, patient)
	errs := parallel(n, func(rank int) error {
		g := r.groups[rank].Comms
		if (g[2] == nil) != (rank > 1) || (g[3] == nil) != (rank < 2) {
			return fmt.Errorf("rank %d is in %v", rank, g)
		}
		d := r.gpus[rank]
		gather, reduce := d.NewStream("gather"), d.NewStream("reduce")
		a, b := r.alloc(rank, device.F32, length), r.alloc(rank, device.F32, length)
		from, to := collective.Part(length, rank, n)
		up, err := g[0].Bind(&collective.AllGather{Data: a.there, Own: a.there.Slice(from, to-from), Name: "weights"})
		if err != nil {
			return err
		}
		down, err := g[1].Bind(&collective.AllReduce{Data: b.there, Name: "gradient"})
		if err != nil {
			return err
		}
		if err := launch(g[2+rank/2], gather, &collective.Barrier{Name: "pair"}); err != nil {
			return err
		}
		a.set(gather, func(int) float64 { return float64(rank) })
		b.set(reduce, func(int) float64 { return 1 })
		for range turns { // b becomes n times as much at each turn, until it is what fp32 cannot hold
			gather.Launch(up[0])
			reduce.Launch(down[0])
		}
		got, err := a.get(gather)
		if err != nil {
			return err
		}
		for i, x := range got {
			if x != float64(i*n/length) {
				return fmt.Errorf("rank %d: gathered %g at %d", rank, x, i)
			}
		}
		if got, err = b.get(reduce); err != nil {
			return err
		}
		if want := float64(uint64(1) << (2 * turns)); got[0] != want || got[length-1] != want {
			return fmt.Errorf("rank %d: the sum is %g, want %g", rank, got[0], want)
		}
		return nil
	})
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestWhatRanksBindMustBeTheSame(t *testing.T) {
	r := connect(t, 2, [][]int{{0, 1}, {0, 1}}, patient)
	errs := parallel(2, func(rank int) error {
		x := r.alloc(rank, device.F32, 8)
		_, err := r.groups[rank].Comms[0].Bind(&collective.AllReduce{Data: x.there.Slice(0, 4+int64(rank)), Name: "grad"})
		return err
	})
	for rank, err := range errs {
		var told *collective.Error
		want := fmt.Sprintf("rank %d has bound all-reduce of grad (%d of f32) where this rank has all-reduce of grad (%d of f32): their plans differ", 1-rank, 5-rank, 4+rank)
		if !errors.As(err, &told) || told.Rank != rank || told.Kind != "all-reduce" || told.Name != "grad" || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	// The other group ends with it.
	for rank := range 2 {
		eventually(t, func() bool {
			_, err := r.groups[rank].Comms[1].Bind(&collective.Barrier{Name: "b"})
			return err != nil && strings.Contains(err.Error(), "their plans differ")
		})
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, so func() bool) {
	t.Helper()
	for until := time.Now().Add(patient); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it never became so")
		}
	}
}

func TestWhatCannotBeBoundIsRefusedByName(t *testing.T) {
	r := connect(t, 2, [][]int{{0, 1}}, patient)
	x := r.alloc(0, device.F32, 8).there
	c := r.groups[0].Comms[0]
	for want, op := range map[string]collective.Op{
		"all-reduce of x has no data":                                             &collective.AllReduce{Name: "x"},
		"broadcast of x has root 2 in a group of 2":                               &collective.Broadcast{Data: x, Root: 2, Name: "x"},
		"broadcast of x has root -1 in a group of 2":                              &collective.Broadcast{Data: x, Root: -1, Name: "x"},
		"all-gather of x has 3 elements for the rank at place 0 of 2, want 4":     &collective.AllGather{Data: x, Own: x.Slice(0, 3), Name: "x"},
		"reduce-scatter of x has 5 elements for the rank at place 0 of 2, want 4": &collective.ReduceScatter{Data: x, Out: x.Slice(0, 5), Name: "x"},
		"all-gather of x: 9 of f32 are no part of 8 of f32":                       &collective.AllGather{Data: x, Own: device.Tensor{Type: device.F32, Len: 9}, Name: "x"},
	} {
		if _, err := c.Bind(op); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestAPeerThatDoesNotComeEndsAtTheDeadline(t *testing.T) {
	const deadline = 3 * time.Second // longer than a busy machine keeps anybody waiting
	r := connect(t, 2, [][]int{{0, 1}, {0, 1}}, deadline)
	streams := [2]device.Stream{r.gpus[0].NewStream("reduce"), r.gpus[1].NewStream("reduce")}
	ops := make([][]device.Op, 2)
	for _, err := range parallel(2, func(rank int) (err error) {
		x := r.alloc(rank, device.F32, 8)
		c := r.groups[rank].Comms[0]
		if ops[rank], err = c.Bind(&collective.AllReduce{Data: x.there, Name: "gradient of block 3"}); err != nil {
			return err
		}
		for range 2 {
			streams[rank].Launch(ops[rank][0])
		}
		return streams[rank].Sync()
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	streams[0].Launch(ops[0][0])
	err := streams[0].Sync()
	var told *collective.Error
	if !errors.As(err, &told) {
		t.Fatal(err)
	}
	if told.Rank != 0 || told.Kind != "all-reduce" || told.Name != "gradient of block 3" || told.Number != 2 ||
		told.Missing != nil || told.Waited < deadline || !errors.Is(err, collective.ErrDeadline) ||
		!strings.Contains(err.Error(), "stream reduce: rank 0: all-reduce of gradient of block 3, number 2: after ") ||
		!strings.Contains(err.Error(), "which of ranks [0 1] did not come") {
		t.Errorf("%+v: %v", told, err)
	}
	streams[0].Launch(ops[0][0])
	if again := streams[0].Sync(); !errors.Is(again, collective.ErrDeadline) {
		t.Errorf("afterwards: %v", again)
	}
	// The other group of the rank ends, too.
	if _, err := r.groups[0].Comms[1].Bind(&collective.Barrier{Name: "b"}); !errors.Is(err, collective.ErrDeadline) {
		t.Errorf("the other group: %v", err)
	}
}

func TestConnectingRanksMayTakeLongerThanACollective(t *testing.T) {
	const deadline = 3 * time.Second // longer than a busy machine keeps anybody waiting
	l, s := library(t)
	for name, c := range map[string]struct {
		join time.Duration
		want error
	}{"within the time to join": {patient, nil}, "and no longer": {3 * deadline / 2, collective.ErrDeadline}} {
		t.Run(name, func(t *testing.T) {
			ex, groups, ops := exchange(2, nil), make([]*nccl.Groups, 2), make([]device.Op, 2)
			if err := errors.Join(parallel(2, func(rank int) (err error) {
				groups[rank], err = l.Connect(t.Context(), [][]int{{0, 1}}, rank, nccl.ConnectSettings{
					Run: "run test", Deadline: deadline, JoinWithin: c.join, Device: s.gpus[rank], Exchange: ex(rank),
				})
				if err != nil {
					return err
				}
				bound, err := groups[rank].Comms[0].Bind(&collective.Barrier{Name: "a barrier"})
				if err == nil {
					ops[rank] = bound[0]
				}
				return err
			})...); err != nil {
				t.Fatal(err)
			}
			release := s.m.HoldCalls()
			defer release()
			if c.want == nil {
				time.AfterFunc(4*deadline/3, release)
			}
			for rank, err := range parallel(2, func(rank int) error {
				stream := s.gpus[rank].NewStream("reduce")
				stream.Launch(ops[rank])
				return errors.Join(stream.Sync(), groups[rank].Close())
			}) {
				if !errors.Is(err, c.want) {
					t.Errorf("rank %d: %v, want %v", rank, err, c.want)
				}
			}
		})
	}
}

func TestWorkBeforeACollectiveIsNoWaiting(t *testing.T) {
	const deadline = 3 * time.Second // longer than a busy machine keeps anybody waiting
	r := connect(t, 2, [][]int{{0, 1}}, deadline)
	for _, err := range parallel(2, func(rank int) error {
		_, err := r.groups[rank].Comms[0].Bind(&collective.Barrier{Name: "first"})
		return err
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	// Nothing begins, on either rank, for longer than the deadline.
	release := r.m.Hold()
	done := make(chan []error)
	go func() {
		done <- parallel(2, func(rank int) error {
			x, s := r.alloc(rank, device.F32, 8), r.gpus[rank].NewStream("busy")
			s.Launch(&device.Fill{Dst: x.there, N: 8, Value: 1})
			return errors.Join(launch(r.groups[rank].Comms[0], s, &collective.Barrier{Name: "late"}), s.Sync())
		})
	}()
	time.Sleep(3 * deadline / 2)
	release()
	for _, err := range <-done {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestAnAbortGivesItsReasonToWhoWaits(t *testing.T) {
	r := connect(t, 2, [][]int{{0, 1}, {0, 1}}, patient)
	reason := errors.New("another rank has failed")
	s := r.gpus[0].NewStream("reduce")
	ready := make(chan struct{})
	errs := make(chan error, 1)
	x := [2]held{r.alloc(0, device.F32, 8), r.alloc(1, device.F32, 8)}
	bound := make([][]device.Op, 2)
	for _, err := range parallel(2, func(rank int) (err error) {
		bound[rank], err = r.groups[rank].Comms[0].Bind(&collective.AllReduce{Data: x[rank].there, Name: "x"})
		return err
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		s.Launch(bound[0][0])
		if err := r.gpus[0].Do(func() error { return nil }); err != nil { // behind it: it has been started
			t.Error(err)
		}
		close(ready)
		errs <- s.Sync()
	}()
	<-ready
	r.groups[0].Abort(reason)
	r.groups[0].Abort(errors.New("a later one"))
	if err := <-errs; !errors.Is(err, reason) {
		t.Errorf("%v", err)
	}
	for i, c := range r.groups[0].Comms {
		if _, err := c.Bind(&collective.Barrier{Name: "b"}); !errors.Is(err, reason) {
			t.Errorf("group %d: %v", i, err)
		}
	}
	// A stream that has nothing to do with it goes on.
	if got, err := x[0].get(r.gpus[0].NewStream("other")); err != nil || len(got) != 8 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestAPeerThatDiesIsTold(t *testing.T) {
	r := connect(t, 2, [][]int{{0, 1}}, patient)
	bound := make([][]device.Op, 2)
	for _, err := range parallel(2, func(rank int) (err error) {
		bound[rank], err = r.groups[rank].Comms[0].Bind(&collective.AllReduce{Data: r.alloc(rank, device.F32, 8).there, Name: "x"})
		return err
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	s := r.gpus[0].NewStream("reduce")
	s.Launch(bound[0][0])
	r.m.Disconnect(1)
	err := s.Sync()
	var told *collective.Error
	if !errors.As(err, &told) || told.Kind != "all-reduce" || told.Name != "x" || told.Number != 0 ||
		!strings.Contains(err.Error(), "ncclRemoteError (6): remote process exited or there was a network error") ||
		!strings.Contains(err.Error(), "that rank's own log says why") {
		t.Errorf("%v", err)
	}
}

func TestMoreCollectivesThanAreWatchedAreCounted(t *testing.T) {
	const turns = 200
	r := connect(t, 2, [][]int{{0, 1}}, patient)
	reason := errors.New("enough")
	errs := parallel(2, func(rank int) error {
		s := r.gpus[rank].NewStream("reduce")
		ops, err := r.groups[rank].Comms[0].Bind(&collective.AllReduce{Data: r.alloc(rank, device.I32, 1).there, Name: "x"})
		if err != nil {
			return err
		}
		for range turns {
			s.Launch(ops[0])
		}
		return s.Sync()
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	// One more, to which the other rank does not come.
	s := r.gpus[0].NewStream("last")
	x := r.alloc(0, device.I32, 1)
	if err := errors.Join(parallel(2, func(rank int) error {
		s := r.gpus[rank].NewStream("first")
		return errors.Join(launch(r.groups[rank].Comms[0], s, &collective.Barrier{Name: "b"}), s.Sync())
	})...); err != nil {
		t.Fatal(err)
	}
	bound := make([][]device.Op, 2)
	if err := errors.Join(parallel(2, func(rank int) (err error) {
		bound[rank], err = r.groups[rank].Comms[0].Bind(&collective.Broadcast{Data: x.there, Name: "alone"})
		return err
	})...); err != nil {
		t.Fatal(err)
	}
	s.Launch(bound[0][0])
	if err := r.gpus[0].Do(func() error { return nil }); err != nil { // behind it: it has been started
		t.Fatal(err)
	}
	r.groups[0].Abort(reason)
	var told *collective.Error
	if err := s.Sync(); !errors.Is(err, reason) || !errors.As(err, &told) || told.Name != "alone" || told.Number != turns+1 {
		t.Errorf("%v", err)
	}
}
