package collective

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// NewGroup returns the Comms of size ranks of this process, by rank. Each
// reaches the others' memory directly. No wait lasts longer than deadline.
func NewGroup(size int, deadline time.Duration) []Comm {
	g := &group{deadline: deadline, arrived: make([]uint64, size), offers: make([][]offer, size), wake: make(chan struct{})}
	comms := make([]Comm, size)
	for r := range comms {
		comms[r] = &member{link: &local{g, r}, rank: r, size: size, deadline: deadline}
	}
	return comms
}

// group is what ranks of one process share.
type group struct {
	deadline time.Duration

	mu      sync.Mutex
	arrived []uint64      // meetings that each rank has come to
	wake    chan struct{} // closed, and made anew, when the last rank comes
	err     error         // of abort, or of the first deadline that passed
	offers  [][]offer     // by rank
}

// local is a rank's link.
type local struct {
	*group
	rank int
}

func (g *group) abort(reason error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(reason)
}

func (g *group) end(reason error) {
	if g.err == nil {
		g.err = reason
		close(g.wake)
	}
}

func (s *local) meet() (missing []int, err error) {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, g.err
	}
	g.arrived[s.rank]++
	turn := g.arrived[s.rank]
	if slices.Min(g.arrived) == turn {
		// The last one. No rank can be a meeting ahead: it would have had to
		// pass this one.
		close(g.wake)
		g.wake = make(chan struct{})
		return nil, nil
	}
	wake, timer := g.wake, time.NewTimer(g.deadline)
	defer timer.Stop()
	g.mu.Unlock()
	select {
	case <-wake:
	case <-timer.C:
	}
	g.mu.Lock()
	if slices.Min(g.arrived) >= turn {
		return nil, nil
	}
	if g.err != nil {
		return nil, g.err
	}
	for r, n := range g.arrived {
		if n < turn {
			missing = append(missing, r)
		}
	}
	g.end(fmt.Errorf("rank %d waited in vain: %w", s.rank, ErrDeadline))
	return missing, ErrDeadline
}

func (s *local) exchange(o offer) (all []offer, missing []int, err error) {
	g := s.group
	g.mu.Lock()
	number := len(g.offers[s.rank])
	g.offers[s.rank] = append(g.offers[s.rank], o)
	g.mu.Unlock()
	if missing, err := s.meet(); err != nil {
		return nil, missing, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, offers := range g.offers {
		all = append(all, offers[number])
	}
	return all, nil, nil
}
