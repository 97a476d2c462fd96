package collective

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// SharedSettings say which group of processes of one host a rank joins. Whoever
// starts the processes makes the files and lets them be inherited: one of
// device.NewWindowFile for each rank, and one of NewControl for each group.
type SharedSettings struct {
	Rank    int      // this rank's place in the group
	Ranks   []int    // what messages call the ranks, by place; nil: their places
	Control *os.File // the group's; its caller may close it after NewShared
	// Window holds the memory of this rank's device: collectives work on tensors
	// that lie in it.
	Window *device.Window
	// Peers are the windows of all ranks, by rank; this rank's own is not looked
	// at. Several groups may have the same ones. They must outlive the operations
	// that are bound.
	Peers    []*device.View
	Deadline time.Duration // that no wait for a peer exceeds
}

// check returns all that is wrong with the settings.
func (s *SharedSettings) check() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("collective: group over shared memory: "+format, args...))
		}
	}
	refuse(s.Rank < 0 || s.Rank >= len(s.Peers), "rank %d of %d windows", s.Rank, len(s.Peers))
	refuse(s.Ranks != nil && len(s.Ranks) != len(s.Peers), "names for %d ranks, want %d", len(s.Ranks), len(s.Peers))
	refuse(len(s.Peers) > maxShared, "%d ranks, want at most %d", len(s.Peers), maxShared)
	refuse(s.Control == nil, "no control file")
	refuse(s.Window == nil, "this rank's device has no window")
	for r, p := range s.Peers {
		refuse(p == nil && r != s.Rank, "rank %d has no window", r)
	}
	refuse(s.Deadline <= 0, "the deadline is %v, want more than 0", s.Deadline)
	return errors.Join(errs...)
}

// maxShared is how many ranks a group over shared memory may have.
const maxShared = 4096
