//go:build sim && cgo && linux

package nccl_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/nccl"
)

// attempt is two ranks that try to connect, each with its own settings.
func attempt(t *testing.T, ctx context.Context, change func(rank int, set *nccl.ConnectSettings), alter func(rank int, value []byte) []byte) []error {
	t.Helper()
	l, s := library(t)
	ex := exchange(2, alter)
	return parallel(2, func(rank int) error {
		set := nccl.ConnectSettings{Run: "run test, attempt 1", Deadline: patient, Device: s.gpus[rank], Exchange: ex(rank)}
		if change != nil {
			change(rank, &set)
		}
		g, err := l.Connect(ctx, [][]int{{0, 1}}, rank, set)
		if err == nil {
			return errors.Join(errors.New("connected"), g.Close())
		}
		return err
	})
}

func TestRanksWithDifferentVersionsAreToldByName(t *testing.T) {
	for _, err := range attempt(t, t.Context(), nil, func(rank int, value []byte) []byte {
		if rank == 1 {
			return altered(altered(value, "version", "2.27.5"), "file", "/usr/lib/libnccl.so.2")
		}
		return value
	}) {
		want := "ranks have loaded different versions of NCCL, which cannot work together: 2.27.5 on ranks [1] (/usr/lib/libnccl.so.2), 2.29.7 on ranks [0] (in memory)"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
}

func TestAnotherRunIsRefused(t *testing.T) {
	errs := attempt(t, t.Context(), nil, func(_ int, value []byte) []byte { return altered(value, "ids", nil) })
	for _, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "rank 0 gives no unique id for group 0 of ranks [0 1]") {
			t.Errorf("%v", err)
		}
	}
	errs = attempt(t, t.Context(), nil, func(int, []byte) []byte { return []byte("hello") })
	for _, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "rank 0 does not say what it has") {
			t.Errorf("%v", err)
		}
	}
}

func TestAPeerThatNeverJoinsEndsAtTheDeadline(t *testing.T) {
	l, s := library(t)
	ex := exchange(2, nil)
	failed := parallel(2, func(rank int) error {
		if rank == 1 { // says what it has, and does not join
			_, err := ex(1)(t.Context(), []byte(`{"version":"2.29.7"}`))
			return err
		}
		_, err := l.Connect(t.Context(), [][]int{{0, 1}}, 0, nccl.ConnectSettings{
			Run: "run test", Deadline: patient, JoinWithin: 100 * time.Millisecond, Device: s.gpus[0], Exchange: ex(0),
		})
		return err
	})
	if err := failed[0]; failed[1] != nil || !errors.Is(err, collective.ErrDeadline) || !strings.Contains(err.Error(), `rank 0: communicator "run test, group 0": after `) ||
		!strings.Contains(err.Error(), "not all of ranks [0 1] have joined it") {
		t.Errorf("%v", failed)
	}
}

func TestWhoGivesUpJoiningIsDoneAtOnce(t *testing.T) {
	l, s := library(t)
	stop := errors.New("the run is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := l.Connect(ctx, [][]int{{0, 1}}, 0, nccl.ConnectSettings{
		Run: "run test", Deadline: patient, Device: s.gpus[0],
		Exchange: func(_ context.Context, value []byte) ([][]byte, error) {
			cancel(stop)
			return [][]byte{value, value}, nil
		},
	})
	if !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
	// Of what the exchange says, nothing is lost.
	_, err = l.Connect(t.Context(), [][]int{{0, 1}}, 0, nccl.ConnectSettings{
		Run: "run test", Deadline: patient, Device: s.gpus[0],
		Exchange: func(context.Context, []byte) ([][]byte, error) { return nil, stop },
	})
	if !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
}

func TestADemandedNetworkThatIsNotThereIsAnError(t *testing.T) {
	for _, err := range attempt(t, t.Context(), func(_ int, set *nccl.ConnectSettings) { set.Require = "efa" }, nil) {
		var told *nccl.Error
		if !errors.As(err, &told) || told.Call != "ncclCommInitRankConfig" || told.Name != "ncclInvalidUsage" ||
			!strings.Contains(err.Error(), `Failed to initialize any NET plugin: "Libfabric" is demanded`) ||
			!strings.Contains(err.Error(), "scaling.nccl.require demands the network Libfabric") {
			t.Errorf("%v", err)
		}
	}
}

func TestTwoRanksOnOneGPUAreToldWhy(t *testing.T) {
	_, s := library(t)
	for _, err := range attempt(t, t.Context(), func(_ int, set *nccl.ConnectSettings) { set.Device = s.gpus[0] }, nil) {
		if err == nil || !strings.Contains(err.Error(), "two ranks on one GPU") {
			t.Errorf("%v", err)
		}
	}
}

func TestAVersionThatIsNotSupportedIsRefused(t *testing.T) {
	_, s := library(t)
	defer s.m.SetNCCLVersion(0)
	for v, text := range map[int]string{22605: "NCCL 2.26.5", 30000: "NCCL 3.0.0"} {
		s.m.SetNCCLVersion(v)
		if _, err := nccl.OpenTable(s.m.NCCLTable()); err == nil || !strings.Contains(err.Error(), "(in memory) is "+text+", which is not supported; NCCL 2.27 or newer is needed") {
			t.Errorf("%d: %v", v, err)
		}
	}
	s.m.SetNCCLVersion(23007)
	if l, err := nccl.OpenTable(s.m.NCCLTable()); err != nil || l.Version() != "2.30.7" {
		t.Errorf("%v", err)
	}
}

func TestAnErrorSaysWhatIsKnown(t *testing.T) {
	for want, e := range map[string]*nccl.Error{
		"rank 3: ncclAllGather: ncclSystemError (2): unhandled system error: no space left; a call of the system's failed within NCCL: /dev/shm may be full": {
			Call: "ncclAllGather", Code: 2, Name: "ncclSystemError", Text: "unhandled system error", Where: "rank 3", Detail: "no space left",
		},
		"NCCL: ncclGetVersion: unknown result (42): unknown result code": {
			Call: "ncclGetVersion", Code: 42, Name: "unknown result", Text: "unknown result code", Where: "NCCL",
		},
	} {
		if !strings.HasPrefix(e.Error(), want) {
			t.Errorf("%v", e)
		}
	}
}
