package collective

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// ConnectSettings say how a rank finds the ranks of other nodes and proves to be
// one of their run.
type ConnectSettings struct {
	Run         string // the run and its attempt, alike on all ranks
	Host        string // address by which others reach this rank
	Secret      []byte // see TCPSettings, as for the rest
	Deadline    time.Duration
	Connections int
	Device      device.Device
	// Exchange gives a value of this rank and returns all ranks' values, by rank.
	Exchange func(ctx context.Context, value []byte) ([][]byte, error)
}

// Groups are a rank's ends of the groups of its world. Where a collective of one
// fails all end, so that no other stream waits for what cannot come.
type Groups struct {
	Comms []Comm // by group; nil where the rank is not in it
	far   []*TCP
}

// Connect joins the groups of a world: within the node over shared memory, beyond
// it over TCP, and by both where a group has several ranks on each of several
// nodes. All ranks call it at once. It returns when this rank is connected with
// all that it has to do with. The groups are to be closed before the device, and
// that before the node.
func Connect(ctx context.Context, w World, rank int, node *Node, set ConnectSettings) (g *Groups, err error) {
	g = &Groups{Comms: make([]Comm, len(w.Groups))}
	for i, c := range node.Comms {
		if c != nil {
			g.Comms[i], c.onError = c, g.Abort
		}
	}
	if !w.spans() {
		return g, nil
	}
	waiting := make([]net.Listener, len(w.Groups)) // nil once a group has its own
	defer func() {
		for _, l := range waiting {
			if l != nil {
				err = errors.Join(err, l.Close())
			}
		}
		if err != nil {
			err = errors.Join(err, g.Close())
			g = nil
		}
	}()
	own := make([]string, len(w.Groups))
	for i, group := range w.Groups {
		if w.far(group, rank) == nil {
			continue
		}
		if waiting[i], err = net.Listen("tcp", net.JoinHostPort(set.Host, "0")); err != nil {
			return g, fmt.Errorf("collective: rank %d cannot be reached by others: %w", rank, err)
		}
		own[i] = waiting[i].Addr().String()
	}
	said, err := set.Exchange(ctx, []byte(strings.Join(own, "\n")))
	if err != nil {
		return g, err
	}
	for i, group := range w.Groups {
		ranks := w.far(group, rank)
		if ranks == nil {
			continue
		}
		// The name has what must be alike for the ranks to be of one group.
		far := TCPSettings{
			Group: fmt.Sprintf("%s, number %d of ranks %v", set.Run, i, ranks), Ranks: ranks,
			Secret: set.Secret, Deadline: set.Deadline, Connections: set.Connections, Device: set.Device,
		}
		for place, r := range ranks {
			address, err := addressOf(said, r, i, len(w.Groups))
			if err != nil {
				return g, err
			}
			if far.Addresses = append(far.Addresses, address); r == rank {
				far.Rank = place
			}
		}
		near := node.Comms[i]
		if near != nil {
			far.Deadline = farDeadline(far.Deadline)
		}
		listener := waiting[i]
		waiting[i] = nil
		c, err := NewTCP(ctx, listener, far)
		if err != nil {
			return g, err
		}
		c.onError = g.Abort
		g.far = append(g.far, c)
		if g.Comms[i] = c; near != nil {
			g.Comms[i] = &levels{near: &near.member, far: c}
		}
	}
	return g, nil
}

// addressOf returns where a rank's listener for a group is, by what the ranks have said.
func addressOf(said [][]byte, rank, group, groups int) (string, error) {
	if rank < len(said) {
		if list := strings.Split(string(said[rank]), "\n"); len(list) == groups && list[group] != "" {
			return list[group], nil
		}
	}
	return "", fmt.Errorf("collective: rank %d did not say where it is reached for group %d: its run is another one", rank, group)
}

// Abort makes every wait of every rank in this rank's groups fail with reason.
func (g *Groups) Abort(reason error) {
	for _, c := range g.Comms {
		if c != nil {
			c.Abort(reason)
		}
	}
}

// Close leaves the groups beyond the node. Nothing that was bound may be running.
func (g *Groups) Close() error {
	var errs []error
	for _, c := range g.far {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
