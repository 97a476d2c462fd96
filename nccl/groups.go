package nccl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// Device is a GPU as this package needs it: cuda.New makes them.
type Device interface {
	device.Device
	// Do runs f on the device's thread, where its context is current.
	Do(f func() error) error
	// Within runs f on another thread, where its context is current, whatever the device's thread does.
	Within(f func() error) error
	// Mark records an event in a CUDA stream at once, on that thread.
	Mark(e device.Event, stream unsafe.Pointer) error
}

// ConnectSettings say how a rank joins its groups.
type ConnectSettings struct {
	Settings
	Run      string        // the run and its attempt, which communicators are called by in NCCL's log
	Deadline time.Duration // of a collective, and of leaving
	// JoinWithin is the time to join a group, in which NCCL loads its kernels and finds its networks; and the time
	// for NCCL to take a collective, since it connects ranks when the first one needs it. 0 is the deadline's.
	JoinWithin time.Duration
	Device     Device
	// Exchange gives a value of this rank and returns all ranks' values, by rank.
	Exchange func(ctx context.Context, value []byte) ([][]byte, error)
}

// Groups are a rank's ends of the groups of its world. Where a collective of one fails all end, so that no other
// stream waits for what cannot come.
type Groups struct {
	Comms []collective.Comm // by group; nil where the rank is not in it
	own   []io.Closer       // those that are not nil, in order
}

// Abort makes every wait of this rank in its groups fail with reason.
func (g *Groups) Abort(reason error) {
	for _, c := range g.Comms {
		if c != nil {
			c.Abort(reason)
		}
	}
}

// Close leaves the groups, in the same order on all ranks, and waits for the others until the deadline. Nothing
// that was bound may be running, and the device must not be closed yet.
func (g *Groups) Close() error {
	var errs []error
	for _, c := range g.own {
		errs = append(errs, c.Close())
	}
	g.own = nil
	return errors.Join(errs...)
}

// word is what a rank says to all others before they join.
type word struct {
	Version string         `json:"version"`
	File    string         `json:"file"`          // of the library
	IDs     map[int][]byte `json:"ids,omitempty"` // by group, of those whose first rank this is
}

// heard reads what the ranks have said. All must have loaded one version of NCCL: with several it would end with
// an error that names none, or hang.
func heard(said [][]byte) ([]word, error) {
	words := make([]word, len(said))
	var versions []string
	by := map[string][]int{}
	for r, text := range said {
		if err := json.Unmarshal(text, &words[r]); err != nil {
			return nil, fmt.Errorf("nccl: rank %d does not say what it has: its run is another one (%w)", r, err)
		}
		v := words[r].Version
		if by[v] == nil {
			versions = append(versions, v)
		}
		by[v] = append(by[v], r)
	}
	if len(versions) < 2 {
		return words, nil
	}
	slices.Sort(versions)
	var list []string
	for _, v := range versions {
		first := by[v][0]
		list = append(list, fmt.Sprintf("%s on ranks %v (%s)", v, by[v], words[first].File))
	}
	return nil, fmt.Errorf("nccl: ranks have loaded different versions of NCCL, which cannot work together: %s; install one on all machines, or let GOFSDP_LIBNCCL name its file", strings.Join(list, ", "))
}

// idOf returns a group's unique id, as its first rank has said it.
func idOf(words []word, group int, ranks []int) (id [128]byte, err error) {
	if first := ranks[0]; first < len(words) && len(words[first].IDs[group]) == len(id) {
		return [128]byte(words[first].IDs[group]), nil
	}
	return id, fmt.Errorf("nccl: rank %d gives no unique id for group %d of ranks %v: its run is another one", ranks[0], group, ranks)
}
