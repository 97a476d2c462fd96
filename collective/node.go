package collective

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// NodeFiles makes what the ranks that share memory with one of them, whichever
// it is, have together: a window for each of these ranks, then a control file for
// each group of which several are there. Each of them inherits all of the files
// in this order, and OpenNode takes them. Files serve one attempt: ranks that are
// started again get new ones. The caller closes them once the ranks have been
// started. Where no ranks share memory there are none.
func (w World) NodeFiles(rank int) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeFiles(files))
			files = nil
		}
	}()
	if err := w.Check(); err != nil || w.Sharing == 1 {
		return nil, err
	}
	for r := range w.Sharing {
		f, err := device.NewWindowFile(fmt.Sprintf("gofsdp-rank-%d", rank/w.Sharing*w.Sharing+r))
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	for _, g := range w.Groups {
		near := w.near(g, rank)
		if near == nil {
			continue
		}
		f, err := NewControl(len(near))
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// Node is a rank's part in what the ranks of its node share.
type Node struct {
	Window *device.Window // for the rank's device; nil where no rank shares memory
	// Comms are this rank's ends of the groups, by group, as far as they are on
	// this node; nil where that is not this rank with others.
	Comms []*Shared

	views []*device.View
	files []*os.File
}

// OpenNode joins what a rank shares with others of its node. files are those of
// NodeFiles for the same world and node; the Node closes them, or OpenNode
// where it fails. No wait lasts longer than deadline.
func (w World) OpenNode(rank int, files []*os.File, deadline time.Duration) (n *Node, err error) {
	n = &Node{files: files, Comms: make([]*Shared, len(w.Groups))}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
			n = nil
		}
	}()
	if err := w.Check(); err != nil {
		return n, err
	}
	windows, controls := 0, 0
	if w.Sharing > 1 {
		windows = w.Sharing
	}
	for _, g := range w.Groups {
		if w.near(g, rank) != nil {
			controls++
		}
	}
	if rank < 0 || rank >= w.Ranks || len(files) != windows+controls {
		return n, fmt.Errorf("collective: rank %d of %d with %d files, want %d windows and %d control files", rank, w.Ranks, len(files), windows, controls)
	}
	n.views = make([]*device.View, windows)
	for r, f := range files[:windows] {
		if r == rank%w.Sharing {
			n.Window, err = device.NewWindow(f)
		} else {
			n.views[r], err = device.NewView(f)
		}
		if err != nil {
			return n, err
		}
	}
	files = files[windows:]
	for i, g := range w.Groups {
		near := w.near(g, rank)
		if near == nil {
			continue
		}
		control := files[0]
		files = files[1:]
		place := slices.Index(near, rank%w.Sharing)
		if place < 0 {
			continue
		}
		set := SharedSettings{Rank: place, Control: control, Window: n.Window, Deadline: deadline}
		for _, at := range near {
			set.Peers = append(set.Peers, n.views[at])
			set.Ranks = append(set.Ranks, rank/w.Sharing*w.Sharing+at)
		}
		if n.Comms[i], err = NewShared(set); err != nil {
			return n, err
		}
	}
	return n, nil
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
