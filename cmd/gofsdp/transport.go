package main

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/launcher"
)

// shares reports whether ranks of one node share memory.
func shares(transport string) bool {
	return transport != "tcp" && runtime.GOOS == "linux"
}

// worldOf returns which ranks of a run meet in which groups, and which of them
// share memory.
func worldOf(s config.Scaling, start launcher.Start) (collective.World, error) {
	mesh, err := fsdp.ParseMesh(start.Mesh)
	if err != nil {
		return collective.World{}, err
	}
	w := collective.World{Ranks: start.World, Sharing: 1, Groups: mesh.Groups()}
	if shares(s.Transport) {
		w.Sharing = start.LocalRanks
	}
	return w, nil
}

// nodeFiles makes what the ranks of a node share, by what the first of them is
// told. Where only they find out whether they have GPUs it is made all the same.
func nodeFiles(first launcher.Start) ([]*os.File, error) {
	cfg, err := told(first)
	if err != nil || cfg.Scaling.Device == cudaDevice || cfg.Scaling.Device == simDevice {
		return nil, err
	}
	w, err := worldOf(cfg.Scaling, first)
	if err != nil {
		return nil, err
	}
	return w.NodeFiles(first.Rank)
}

// told returns the configuration that a rank is told.
func told(start launcher.Start) (*config.Config, error) {
	var cfg config.Config
	b := config.Bind(&cfg)
	b.Load("the run's configuration", start.Config)
	return &cfg, b.Check()
}

// openNode opens what a rank shares with others of its node.
func openNode(w collective.World, start launcher.Start) (*collective.Node, error) {
	return w.OpenNode(start.Rank, sharedFiles(start), start.Deadline)
}

// sharedFiles are those that a rank has inherited.
func sharedFiles(start launcher.Start) []*os.File {
	files := make([]*os.File, len(start.Files))
	for i, fd := range start.Files {
		files[i] = os.NewFile(uintptr(fd), fmt.Sprintf("shared file %d", i))
	}
	return files
}

// groups are a rank's ends of all groups, in their order and nil where it is in
// none.
type groups interface {
	Abort(reason error)
	Close() error
}

// called names a run and its attempt to those who meet in it.
func called(start launcher.Start) string {
	return fmt.Sprintf("run %s, attempt %d", start.Run, start.Attempt)
}

// connections carry data between two ranks over TCP: one alone seldom fills a
// fast link.
const connections = 2

// connect joins a rank's groups. dev has its Shared memory in the node's window,
// where there is one.
func connect(ctx context.Context, w collective.World, node *collective.Node, dev device.Device, client *launcher.Client) (*collective.Groups, error) {
	start := client.Start()
	return collective.Connect(ctx, w, start.Rank, node, collective.ConnectSettings{
		Run: called(start), Host: start.Hosts[start.Rank],
		Secret: start.Key("collective"), Deadline: start.Deadline, Connections: connections, Device: dev,
		Exchange: func(ctx context.Context, value []byte) ([][]byte, error) {
			return client.Exchange(ctx, "collective/addresses", value)
		},
	})
}
