package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/launcher"
)

func TestARanksExitCodeIsThatOfTheCollectiveThatMissesARank(t *testing.T) {
	late := &collective.Error{Missing: []int{1}, Err: collective.ErrDeadline}
	gone := &collective.Error{Missing: []int{1}, Err: errors.New("its connection ended")}
	passed := &collective.Error{Err: errors.New("rank 1 says: the disk is full")}
	hangs := &collective.Error{Err: fmt.Errorf("rank 1 says: %w", collective.ErrDeadline)}
	after := &collective.Error{Err: gone} // what it ended on the same rank
	for what, x := range map[string]struct {
		err  error
		code int
	}{
		"a peer that does not come":            {late, exitHung},
		"a peer that is gone":                  {fmt.Errorf("step 3: %w", gone), exitLost},
		"another's reason":                     {passed, 6},
		"another's deadline":                   {hangs, 6},
		"one stream before the other":          {errors.Join(gone, passed), exitLost},
		"one stream behind the other":          {fmt.Errorf("step 3: %w", errors.Join(passed, gone)), exitLost},
		"only what the failed stream ended":    {after, exitLost},
		"a deadline of others beside one lost": {errors.Join(hangs, gone), exitLost},
		"no collective":                        {errors.New("the disk is full"), 0},
	} {
		code := 0
		var coded interface{ ExitCode() int }
		if errors.As(lost(context.Background(), x.err), &coded) {
			code = coded.ExitCode()
		}
		if code != x.code {
			t.Errorf("%s: exit code %d, want %d", what, code, x.code)
		}
	}
}

func TestWhatARankGivesUpBecauseTheRunFailedIsNoReason(t *testing.T) {
	for _, cause := range []struct {
		error
		code int
	}{{launcher.Stopped{Reason: "rank 0 was killed"}, 6}, {interruption{syscall.SIGTERM}, exitTerminated}} {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause.error)
		if code := (&app{ctx: ctx}).codeOf(fmt.Errorf("a sample: %w", context.Canceled)); code != cause.code {
			t.Errorf("stopped by %q, the exit code is %d, want %d", cause, code, cause.code)
		}
	}
}
