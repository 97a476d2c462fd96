package collective

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// NewNodeFiles makes what the ranks of one host share: a window for each rank,
// then a control file for each group, which lists its ranks by place. Each rank
// inherits all of them in this order, and OpenNode takes them. Files serve one
// attempt: ranks that are started again get new ones. The caller closes them once
// the ranks have been started.
func NewNodeFiles(ranks int, groups [][]int) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeFiles(files))
			files = nil
		}
	}()
	if err := checkGroups(ranks, groups); err != nil {
		return nil, err
	}
	for r := range ranks {
		f, err := device.NewWindowFile(fmt.Sprintf("gofsdp-rank-%d", r))
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	for _, g := range groups {
		f, err := NewControl(len(g))
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// Node is a rank's part in what the ranks of its host share.
type Node struct {
	Window *device.Window // for the rank's device
	Comms  []*Shared      // by group; nil where the rank is not in it

	views []*device.View
	files []*os.File
}

// OpenNode joins the groups that rank is in. files are those of NewNodeFiles for
// the same ranks and groups; the Node closes them, or OpenNode where it fails. No
// wait of a group lasts longer than deadline.
func OpenNode(files []*os.File, rank, ranks int, groups [][]int, deadline time.Duration) (n *Node, err error) {
	n = &Node{files: files, Comms: make([]*Shared, len(groups)), views: make([]*device.View, max(ranks, 0))}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
			n = nil
		}
	}()
	if err := checkGroups(ranks, groups); err != nil {
		return n, err
	}
	if rank < 0 || rank >= ranks || len(files) != ranks+len(groups) {
		return n, fmt.Errorf("collective: rank %d of %d with %d files, want %d windows and %d control files", rank, ranks, len(files), ranks, len(groups))
	}
	for r, f := range files[:ranks] {
		if r == rank {
			n.Window, err = device.NewWindow(f)
		} else {
			n.views[r], err = device.NewView(f)
		}
		if err != nil {
			return n, err
		}
	}
	for i, g := range groups {
		place := slices.Index(g, rank)
		if place < 0 {
			continue
		}
		peers := make([]*device.View, len(g))
		for p, r := range g {
			peers[p] = n.views[r]
		}
		n.Comms[i], err = NewShared(SharedSettings{Rank: place, Control: files[ranks+i], Window: n.Window, Peers: peers, Deadline: deadline})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// checkGroups returns what is wrong with lists of ranks.
func checkGroups(ranks int, groups [][]int) error {
	var errs []error
	for i, g := range groups {
		for p, r := range g {
			if r < 0 || r >= ranks || slices.Index(g, r) != p {
				errs = append(errs, fmt.Errorf("collective: group %d of ranks %v: place %d is for rank %d, want each of %d ranks at most once", i, g, p, r, ranks))
			}
		}
	}
	return errors.Join(errs...)
}

// Abort makes every wait of every rank in this rank's groups fail with reason.
func (n *Node) Abort(reason error) {
	for _, c := range n.Comms {
		if c != nil {
			c.Abort(reason)
		}
	}
}

// Close leaves the groups and closes the files, once the rank's device is closed.
func (n *Node) Close() error {
	var errs []error
	for _, c := range n.Comms {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	for _, v := range n.views {
		if v != nil {
			errs = append(errs, v.Close())
		}
	}
	return errors.Join(append(errs, closeFiles(n.files))...)
}

func closeFiles(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
