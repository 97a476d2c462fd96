package collective

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/device"
)

// rankMain is what this binary does when it is started as a rank with a role; nil
// where ranks cannot be processes that share memory.
var rankMain func(role string) int

// roleVariable names the role of a process in its environment.
const roleVariable = "GOFSDP_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" && rankMain != nil {
		os.Exit(rankMain(role))
	}
	goleak.VerifyTestMain(m)
}

// ranks runs f for each rank of a group of n, side by side, each with a device
// and a stream of its own, and returns their errors by rank.
func ranks(t *testing.T, n int, deadline time.Duration, f func(r int, c Comm, dev device.Device, s device.Stream) error) []error {
	t.Helper()
	comms, errs := NewGroup(n, deadline), make([]error, n)
	var wait sync.WaitGroup
	for r := range n {
		wait.Go(func() {
			dev := device.NewReference()
			defer dev.Close()
			errs[r] = f(r, comms[r], dev, dev.NewStream("comm"))
		})
	}
	wait.Wait()
	return errs
}

// patient calls try with a deadline, and again with longer ones where it passed although nothing hung: a busy
// machine keeps everybody waiting now and then.
func patient(t *testing.T, deadline time.Duration, try func(deadline time.Duration) error) {
	t.Helper()
	for longest := 20 * time.Second; ; deadline *= 5 {
		err := try(deadline)
		switch {
		case err == nil:
			return
		case deadline > longest || !strings.Contains(err.Error(), ErrDeadline.Error()):
			t.Fatal(err)
		}
		t.Logf("a deadline of %v is too short for this machine now: %v", deadline, err)
	}
}

// reporter is the part of testing.T that a rank in another process has too.
type reporter interface{ Error(args ...any) }

// tensor returns n elements of F32 on dev, filled with a rank's own numbers.
func tensor(t reporter, dev device.Device, r, n int) device.Tensor {
	b, err := dev.Alloc(int64(max(n, 1))*4, device.Shared)
	if err != nil {
		t.Error(err)
		return device.Tensor{}
	}
	x := b.In(device.F32, 0, int64(n))
	copy(x.F32(), numbers(r, n))
	return x
}

func numbers(r, n int) []float32 {
	rng, x := rand.New(rand.NewPCG(uint64(r), 5)), make([]float32, n)
	for i := range x {
		x[i] = rng.Float32()*4 - 2
	}
	return x
}

func launch(s device.Stream, ops []device.Op) error {
	for _, op := range ops {
		s.Launch(op)
	}
	return s.Sync()
}

func TestEveryCollectiveOfEverySizeDoesWhatItSays(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 8} {
		for _, size := range []int{0, 1, 2, 3, 7, 16, 1000} {
			t.Run(fmt.Sprintf("%d ranks %d elements", n, size), func(t *testing.T) {
				for _, err := range ranks(t, n, 20*time.Second, func(r int, c Comm, dev device.Device, s device.Stream) error {
					return everyCollective(t, r, n, size, c, dev, s)
				}) {
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// everyCollective is what rank r of n does to try every collective on tensors of
// size elements. It returns what is wrong with what they give, bit for bit.
func everyCollective(t reporter, r, n, size int, c Comm, dev device.Device, s device.Stream) error {
	// In the order of ranks, in float32: not any other sum.
	sum := numbers(0, size)
	for r := 1; r < n; r++ {
		for i, x := range numbers(r, size) {
			sum[i] += x
		}
	}
	gathered := make([]float32, size)
	for r := range n {
		from, to := Part(int64(size), r, n)
		copy(gathered[from:to], numbers(r, size)[from:to])
	}
	from, to := Part(int64(size), r, n)
	for again := range 2 { // bound anew: the second must not see the first's memory
		all, out := tensor(t, dev, r, size), tensor(t, dev, r, int(to-from))
		half, one, own, whole := tensor(t, dev, r, size), tensor(t, dev, r, size), tensor(t, dev, r, size), tensor(t, dev, r, size)
		for _, x := range []struct {
			op   Op
			got  device.Tensor
			want []float32
		}{
			{&AllGather{Own: all.Slice(from, to-from), Data: all, Name: "a"}, all, gathered},
			{&ReduceScatter{Data: half, Out: out, Name: "b"}, out, sum[from:to]},
			{&ReduceScatter{Data: own, Out: own.Slice(from, to-from), Name: "c"}, own.Slice(from, to-from), sum[from:to]},
			{&AllReduce{Data: whole, Name: "d"}, whole, sum},
			{&Broadcast{Data: one, Root: n - 1, Name: "e"}, one, numbers(n-1, size)},
			{&Barrier{Name: "f"}, one, numbers(n-1, size)},
		} {
			ops, err := c.Bind(x.op)
			if err != nil {
				return err
			}
			if err := launch(s, ops); err != nil {
				return err
			}
			got := x.got.F32()
			for i := range got {
				if got[i] != x.want[i] {
					return fmt.Errorf("rank %d of %d, %d elements, time %d: %s: element %d is %v, want %v", r, n, size, again, device.Name(x.op), i, got[i], x.want[i])
				}
			}
			if len(got) != len(x.want) {
				return fmt.Errorf("rank %d of %d: %s gives %d elements, want %d", r, n, device.Name(x.op), len(got), len(x.want))
			}
		}
	}
	return nil
}

func TestABoundCollectiveRunsAsOftenAsWanted(t *testing.T) {
	for _, err := range ranks(t, 3, 20*time.Second, func(r int, c Comm, dev device.Device, s device.Stream) error {
		x := tensor(t, dev, r, 10)
		ops, err := c.Bind(&AllReduce{Data: x, Name: "x"})
		if err != nil {
			return err
		}
		for round := range 50 {
			for i := range x.F32() {
				x.F32()[i] = float32((r + 1) * (round + i))
			}
			if err := launch(s, ops); err != nil {
				return err
			}
			for i, got := range x.F32() {
				if want := float32(6 * (round + i)); got != want {
					return fmt.Errorf("round %d, rank %d: %v, want %v", round, r, got, want)
				}
			}
		}
		return nil
	}) {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestRanksOfOneProcessWaitWithoutAllocating(t *testing.T) {
	for _, err := range ranks(t, 3, 20*time.Second, func(r int, c Comm, dev device.Device, s device.Stream) error {
		ops, err := c.Bind(&Broadcast{Data: tensor(t, dev, r, 10), Name: "x"})
		if err != nil {
			return err
		}
		var before uint64
		for round := range 1000 {
			if round == 100 {
				before = allocated()
			}
			if err := launch(s, ops); err != nil {
				return err
			}
		}
		// The runtime may have a few of its own.
		if n := allocated() - before; n > 50 {
			return fmt.Errorf("rank %d saw %d allocations in 900 broadcasts", r, n)
		}
		return nil
	}) {
		if err != nil {
			t.Error(err)
		}
	}
}

// allocated returns how many allocations this process has made.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

func TestAPeerThatDoesNotComeIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which nothing but waiting takes time
		errs := ranks(t, 3, 300*time.Millisecond, func(r int, c Comm, dev device.Device, s device.Stream) error {
			ops, err := c.Bind(&AllReduce{Data: tensor(t, dev, r, 10), Name: "block 3 gradient"})
			if err != nil {
				return err
			}
			if err := launch(s, ops); err != nil || r == 1 {
				return err // rank 1 goes away after one
			}
			return launch(s, ops)
		})
		if errs[1] != nil {
			t.Error(errs[1])
		}
		var first *Error
		for _, r := range []int{0, 2} {
			var e *Error
			if !errors.As(errs[r], &e) || !errors.Is(e, ErrDeadline) || e.Rank != r || e.Number != 1 {
				t.Fatalf("rank %d: %v", r, errs[r])
			}
			if e.Missing != nil {
				first = e
			}
		}
		if first == nil || !slices.Equal(first.Missing, []int{1}) || !strings.Contains(first.Error(), "all-reduce of block 3 gradient, number 1, waited 300ms for ranks [1]") {
			t.Errorf("nobody says that rank 1 is missing: %v", errs)
		}
	})
}

func TestRanksThatBindDifferentCollectivesAreTold(t *testing.T) {
	errs := ranks(t, 2, 5*time.Second, func(r int, c Comm, dev device.Device, s device.Stream) error {
		_, err := c.Bind(&AllReduce{Data: tensor(t, dev, r, 10+r), Name: "x"})
		return err
	})
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "(10 of f32)") || !strings.Contains(err.Error(), "(11 of f32)") || !strings.Contains(err.Error(), "plans differ") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestAbortEndsEveryWaitAtOnce(t *testing.T) {
	reason, began := errors.New("rank 0 has had enough"), time.Now()
	errs := ranks(t, 3, 30*time.Second, func(r int, c Comm, dev device.Device, s device.Stream) error {
		ops, err := c.Bind(&Barrier{Name: "x"})
		if err != nil {
			return err
		}
		if r == 0 {
			time.Sleep(50 * time.Millisecond)
			c.Abort(reason)
			return nil
		}
		return launch(s, ops)
	})
	for r := 1; r < 3; r++ {
		if !errors.Is(errs[r], reason) {
			t.Errorf("rank %d: %v", r, errs[r])
		}
	}
	if time.Since(began) > 20*time.Second {
		t.Error("it took long")
	}
}

func TestPartsCoverATensorOnce(t *testing.T) {
	for length := range int64(20) {
		for n := 1; n < 10; n++ {
			var at int64
			for r := range n {
				from, to := Part(length, r, n)
				if from != at || to < from {
					t.Fatalf("part %d of %d of %d elements is [%d,%d) after %d", r, n, length, from, to, at)
				}
				at = to
			}
			if at != length {
				t.Fatalf("%d parts of %d elements end at %d", n, length, at)
			}
		}
	}
}
