package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

func TestARankOnAGPUBeginsWithNCCLsVariables(t *testing.T) {
	dir := t.TempDir()
	if err := func() error {
		d, err := record.Create(dir)
		if err != nil {
			return err
		}
		return errors.Join(d.MakeEvidence(), d.WriteRun(record.NewRun()))
	}(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config string
		env    map[string]string
		want   []string // of NCCL's log and the network
		rest   bool     // the others of package nccl's are there
	}{
		"on a GPU": {"scaling: {device: cuda}", nil, []string{
			"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,GRAPH,SHM,P2P",
			"NCCL_DEBUG_FILE=" + dir + "/evidence/nccl.rank-0003.%h.%p.log",
		}, true},
		"a user's own log": {"scaling: {device: auto}", map[string]string{"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_FILE": "mine"}, []string{
			"NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,GRAPH,SHM,P2P",
		}, true},
		"a user's own order":                      {"scaling: {device: cuda}", map[string]string{"NCCL_DEBUG": "", "NCCL_DEBUG_SUBSYS": "", "NCCL_DEBUG_FILE": "", "NCCL_LAUNCH_ORDER_IMPLICIT": "0"}, nil, true},
		"a network that is required, on one node": {"scaling: {device: cuda, nccl: {require: efa}}", map[string]string{"NCCL_DEBUG": "", "NCCL_DEBUG_SUBSYS": "ALL", "NCCL_DEBUG_FILE": "x"}, nil, true},
		"a network that is required": {"scaling: {device: cuda, num_workers: 2, nodes: 2, nccl: {require: efa}}", map[string]string{"FI_PROVIDER": "tcp", "NCCL_DEBUG": "", "NCCL_DEBUG_SUBSYS": "ALL", "NCCL_DEBUG_FILE": "x"}, []string{
			"FI_PROVIDER=efa",
		}, true},
		"on a CPU": {"scaling: {device: cpu}", nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range []string{"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_LAUNCH_ORDER_IMPLICIT", "FI_PROVIDER"} {
				unset(t, v)
			}
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			got, err := rankEnvironment(launcher.Start{Rank: 3, Config: []byte("data: {path: [x]}\n" + c.config)}, []string{"A=b", directoryVariable + "=" + dir})
			var want []string
			for _, v := range (nccl.Settings{}).Environment(dir, 3) {
				name, _, _ := strings.Cut(v, "=")
				_, own := c.env[name]
				if c.rest && !own && !strings.HasPrefix(v, "NCCL_DEBUG") {
					want = append(want, v)
				}
			}
			want = append(want, c.want...)
			slices.Sort(want)
			slices.Sort(got)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%q, %v, want %q", got, err, want)
			}
		})
	}
	if _, err := rankEnvironment(launcher.Start{Config: []byte("data: {path: [x]}\nscaling: {device: cuda}")}, nil); err == nil || !strings.Contains(err.Error(), "no directory") {
		t.Errorf("without a directory: %v", err)
	}
}

func TestWhatFailsOnAGPUHasTheExitCodesOfWhatFailsElsewhere(t *testing.T) {
	ended, end := context.WithCancelCause(t.Context())
	stopped := launcher.Stopped{Reason: "rank 1 was killed"}
	end(stopped)
	gather := func(err error) error {
		return fmt.Errorf("step 3: %w", &collective.Error{Rank: 0, Kind: "all-gather", Name: "block 1", Err: err})
	}
	remote, usage := &nccl.Error{Call: "ncclCommGetAsyncError", Code: 6}, &nccl.Error{Call: "ncclCommInitRankConfig", Code: 5}
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		code int
	}{
		"a peer is gone":                            {t.Context(), gather(remote), exitLost},
		"a peer does not come":                      {t.Context(), gather(fmt.Errorf("after 10s: %w", collective.ErrDeadline)), exitHung},
		"not all have joined":                       {t.Context(), fmt.Errorf("after 10s: %w", collective.ErrDeadline), exitHung},
		"two ranks have one GPU":                    {t.Context(), usage, exitFailure},
		"the device is lost":                        {t.Context(), fmt.Errorf("step 2: %w", &cuda.Error{Call: "cuEventSynchronize", Code: 719}), exitLost},
		"memory is short":                           {t.Context(), &cuda.Error{Call: "cuMemAlloc", Code: 2}, exitFailure},
		"another reason":                            {t.Context(), errors.New("a file is gone"), exitFailure},
		"a collective, when the run has failed":     {ended, gather(remote), stopped.ExitCode()},
		"a deadline, when the run has failed":       {ended, fmt.Errorf("after 10s: %w", collective.ErrDeadline), stopped.ExitCode()},
		"the launcher's word is what ended a group": {ended, gather(stopped), stopped.ExitCode()},
		"another reason, when the run has failed":   {ended, errors.New("a file is gone"), exitFailure},
		"numbers that are not finite":               {t.Context(), &train.NotFinite{Step: 3}, exitFailure},
		"the same elsewhere":                        {t.Context(), &train.NotFinite{Step: 3, Elsewhere: true}, stopped.ExitCode()},
	} {
		if code := (&app{ctx: t.Context()}).codeOf(lostOnGPU(c.ctx, c.err)); code != c.code {
			t.Errorf("%s: exit code %d, want %d", name, code, c.code)
		}
	}
}

// unset takes a variable out of the environment for the time of a test.
func unset(t *testing.T, name string) {
	t.Helper()
	t.Setenv(name, "") // which brings it back
	if err := os.Unsetenv(name); err != nil {
		t.Fatal(err)
	}
}
