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
	g := &group{deadline: deadline, arrived: make([]uint64, size), offers: make([][]offer, size), wake: make([]chan struct{}, size)}
	comms := make([]Comm, size)
	for r := range comms {
		g.wake[r] = make(chan struct{}, 1)
		l := &local{g, r, time.NewTimer(deadline)}
		l.timer.Stop()
		comms[r] = &member{link: l, rank: r, size: size, deadline: deadline}
	}
	return comms
}

// group is what ranks of one process share.
type group struct {
	deadline time.Duration

	mu      sync.Mutex
	arrived []uint64        // meetings that each rank has come to
	wake    []chan struct{} // by rank: something of this has changed
	err     error           // of abort, or of the first deadline that passed
	offers  [][]offer       // by rank
}

// local is a rank's link.
type local struct {
	*group
	rank  int
	timer *time.Timer
}

func (g *group) abort(reason error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(reason)
}

func (g *group) end(reason error) {
	if g.err == nil {
		g.err = reason
		g.wakeAll()
	}
}

// wakeAll makes all ranks look again. One that does not wait now looks once more
// than it must, later.
func (g *group) wakeAll() {
	for _, c := range g.wake {
		select {
		case c <- struct{}{}:
		default:
		}
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
		g.wakeAll()
		return nil, nil
	}
	s.timer.Reset(g.deadline)
	defer s.timer.Stop()
	for late := false; ; {
		g.mu.Unlock()
		select {
		case <-g.wake[s.rank]:
		case <-s.timer.C:
			late = true
		}
		g.mu.Lock()
		switch {
		case slices.Min(g.arrived) >= turn:
			return nil, nil
		case g.err != nil:
			return nil, g.err
		case late:
			for r, n := range g.arrived {
				if n < turn {
					missing = append(missing, r)
				}
			}
			g.end(fmt.Errorf("rank %d waited in vain for ranks %v: %w", s.rank, missing, ErrDeadline))
			return missing, ErrDeadline
		}
	}
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
