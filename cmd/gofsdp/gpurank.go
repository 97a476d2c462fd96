package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/record"
)

// rankEnvironment is what the process of a rank that may be on a GPU begins with:
// variables that C libraries read when they are loaded. Job are those of all
// ranks. What a user says to NCCL itself holds; the provider of a network that the
// configuration requires is no matter of the environment.
func rankEnvironment(rank launcher.Start, job []string) ([]string, error) {
	cfg, err := told(rank)
	if err != nil || cfg.Scaling.Device == cpuDevice {
		return nil, err
	}
	i := slices.IndexFunc(job, func(v string) bool { return strings.HasPrefix(v, directoryVariable+"=") })
	if i < 0 {
		return nil, errors.New("no directory of the run for the log of NCCL")
	}
	_, dir, _ := strings.Cut(job[i], "=")
	logs, err := record.Open(dir)
	if err != nil {
		return nil, err
	}
	evidence, err := filepath.Abs(logs.EvidenceDir())
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(evidence); err != nil {
		evidence = "" // the ranks are on CPUs, as the launcher has found
	}
	return withoutUsers(cfg.Scaling.NCCL.On(cfg.Scaling.Nodes).Environment(evidence, rank.Rank)), nil
}

// withoutUsers leaves out the variables of NCCL's that the user has set.
func withoutUsers(variables []string) []string {
	return slices.DeleteFunc(variables, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, set := os.LookupEnv(name)
		return set && strings.HasPrefix(name, "NCCL_")
	})
}

// joinWithin is what NCCL is given to join a group at the least: a rank that died
// meanwhile ends it at once.
const joinWithin = 2 * time.Minute

// meet joins the groups of a rank that is on one of the GPUs.
func (g *gpus) meet(ctx context.Context, client *launcher.Client, groups [][]int, dev device.Device, s nccl.Settings) (*nccl.Groups, error) {
	library, err := g.nccl()
	if err != nil {
		return nil, asUser(err)
	}
	start := client.Start()
	return library.Connect(ctx, groups, start.Rank, nccl.ConnectSettings{
		Settings: s, Run: called(start), Deadline: start.Deadline, JoinWithin: max(start.Deadline, joinWithin), Device: dev.(nccl.Device),
		Exchange: func(ctx context.Context, value []byte) ([][]byte, error) {
			return client.Exchange(ctx, "nccl/ids", value)
		},
	})
}
