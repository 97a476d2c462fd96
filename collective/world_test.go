package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

func TestAWorldIsCutByNodes(t *testing.T) {
	w := World{Ranks: 8, Sharing: 4, Groups: [][]int{{0, 4}, {1, 3, 5, 7}, {2, 3}}}
	if err := w.Check(); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		group, rank int
		near, far   []int
	}{
		{0, 0, nil, []int{0, 4}},
		{0, 1, nil, nil},
		{1, 1, []int{1, 3}, []int{1, 5}},
		{1, 7, []int{1, 3}, []int{3, 7}},
		{1, 4, []int{1, 3}, nil}, // it is not in the group
		{2, 2, []int{2, 3}, nil},
		{2, 6, nil, nil},
	} {
		if near, far := w.near(w.Groups[x.group], x.rank), w.far(w.Groups[x.group], x.rank); !slices.Equal(near, x.near) || !slices.Equal(far, x.far) {
			t.Errorf("group %d, rank %d: on the node %v, over TCP %v; want %v and %v", x.group, x.rank, near, far, x.near, x.far)
		}
	}
	for want, w := range map[string]World{
		"0 ranks":                                 {Sharing: 1},
		"6 ranks of which 4 each share memory":    {Ranks: 6, Sharing: 4},
		"group 0 of ranks [1 0]":                  {Ranks: 2, Sharing: 1, Groups: [][]int{{1, 0}}},
		"group 0 of ranks [0]: want several":      {Ranks: 2, Sharing: 1, Groups: [][]int{{0}}},
		"group 1 of ranks [0 2]":                  {Ranks: 2, Sharing: 1, Groups: [][]int{{0, 1}, {0, 2}}},
		"unequal parts [[0 1] [2]]":               {Ranks: 4, Sharing: 2, Groups: [][]int{{0, 1, 2}}},
		"group 0 of ranks [1 1]: want several of": {Ranks: 2, Sharing: 2, Groups: [][]int{{1, 1}}},
	} {
		if err := w.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want: %s", w, err, want)
		}
	}
}

// together is an exchange of values among ranks of this process.
type together struct {
	mu     sync.Mutex
	values [][]byte
	given  int
	all    chan struct{}
}

func (e *together) exchange(rank int, value []byte) [][]byte {
	e.mu.Lock()
	e.values[rank] = value
	if e.given++; e.given == len(e.values) {
		close(e.all)
	}
	e.mu.Unlock()
	<-e.all
	return e.values
}

// connected runs f for each rank of a world without shared memory, side by side.
func connected(t *testing.T, w World, change func(rank int, set *ConnectSettings), f func(rank int, g *Groups, dev device.Device) error) []error {
	t.Helper()
	errs := make([]error, w.Ranks)
	e := &together{values: make([][]byte, w.Ranks), all: make(chan struct{})}
	var wait sync.WaitGroup
	for rank := range w.Ranks {
		wait.Go(func() {
			errs[rank] = func() (err error) {
				node, err := w.OpenNode(rank, nil, time.Second)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, node.Close()) }()
				dev := device.NewReference()
				defer func() { err = errors.Join(err, dev.Close()) }()
				set := ConnectSettings{
					Run: "test", Host: "127.0.0.1", Secret: tcpSecret, Deadline: 20 * time.Second, Connections: 1, Device: dev,
					Exchange: func(_ context.Context, value []byte) ([][]byte, error) { return e.exchange(rank, value), nil },
				}
				if change != nil {
					change(rank, &set)
				}
				g, err := Connect(context.Background(), w, rank, node, set)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, g.Close()) }()
				return f(rank, g, dev)
			}()
		})
	}
	wait.Wait()
	return errs
}

func TestAWorldOverTCPMeetsInTheGroupsOfAMesh(t *testing.T) {
	files, err := World{Ranks: 4, Sharing: 1}.NodeFiles(0)
	if err != nil || files != nil {
		t.Errorf("%d files for ranks that share nothing, %v", len(files), err)
	}
	w := World{Ranks: 4, Sharing: 1, Groups: [][]int{{0, 2}, {1, 3}, {0, 1}, {2, 3}}}
	mustAll(t, connected(t, w, nil, func(rank int, g *Groups, dev device.Device) error {
		x := tensor(t, dev, rank, 1000)
		for i := range x.F32() {
			x.F32()[i] = float32(1 + rank)
		}
		for i, c := range g.Comms { // along the columns, then along the rows
			if (c == nil) == slices.Contains(w.Groups[i], rank) {
				return fmt.Errorf("group %d has %v", i, c)
			}
			if c == nil {
				continue
			}
			ops, err := c.Bind(&AllReduce{Data: x, Name: "x"})
			if err == nil {
				err = launch(dev.NewStream("comm"), ops)
			}
			if err != nil {
				return err
			}
		}
		for _, got := range x.F32() {
			if got != 10 {
				return fmt.Errorf("the sum of the mesh is %v, want 10", got)
			}
		}
		return nil
	}))
}

func TestRanksOfAWorldGoByTheRunsNumbers(t *testing.T) {
	w := World{Ranks: 4, Sharing: 1, Groups: [][]int{{1, 3}, {0, 2}}}
	errs := connected(t, w, nil, func(rank int, g *Groups, dev device.Device) error {
		if rank == 3 {
			return nil // it leaves
		}
		if rank != 1 {
			return nil
		}
		_, err := g.Comms[0].Bind(&Barrier{Name: "x"})
		return err
	})
	var e *Error
	if !errors.As(errs[1], &e) || e.Rank != 1 || !slices.Equal(e.Missing, []int{3}) || !strings.Contains(e.Error(), "rank 3 at 127.0.0.1") {
		t.Error(errs[1])
	}
}

func TestARankOfAnotherRunIsNotConnected(t *testing.T) {
	w := World{Ranks: 2, Sharing: 1, Groups: [][]int{{0, 1}}}
	for want, change := range map[string]func(*ConnectSettings){
		"it has another secret or group":  func(s *ConnectSettings) { s.Run = "other" },
		"it has another secret or group ": func(s *ConnectSettings) { s.Secret = []byte("a secret of another run") },
		"rank 1 did not say where it is reached for group": func(s *ConnectSettings) {
			give := s.Exchange
			s.Exchange = func(ctx context.Context, _ []byte) ([][]byte, error) { return give(ctx, []byte("\n\n")) }
		},
	} {
		patient(t, 500*time.Millisecond, func(deadline time.Duration) error {
			err := errors.Join(connected(t, w, func(rank int, s *ConnectSettings) {
				s.Deadline = deadline
				if rank == 1 {
					change(s)
				}
			}, func(int, *Groups, device.Device) error { return nil })...)
			if err == nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
				return fmt.Errorf("%w, want: %s", err, want)
			}
			return nil
		})
	}
}
