package collective

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// ErrDeadline is the reason of a wait that lasted too long.
var ErrDeadline = errors.New("the deadline passed")

// NewGroup returns the Comms of size ranks of this process, by rank. Each
// reaches the others' memory directly. No wait lasts longer than deadline.
func NewGroup(size int, deadline time.Duration) []Comm {
	g := &group{deadline: deadline, arrived: make([]uint64, size), bound: make([][]Op, size), wake: make(chan struct{})}
	comms := make([]Comm, size)
	for r := range comms {
		comms[r] = &member{group: g, rank: r}
	}
	return comms
}

// group is what the members share.
type group struct {
	deadline time.Duration

	mu      sync.Mutex
	arrived []uint64      // meetings that each rank has come to
	wake    chan struct{} // closed, and made anew, when the last rank comes
	err     error         // of Abort, or of the first deadline that passed
	bound   [][]Op        // by rank
}

// member is a rank's end of a group.
type member struct {
	*group
	rank int
	done int // collectives finished
}

func (m *member) Rank() int { return m.rank }
func (m *member) Size() int { return len(m.arrived) }

// Abort implements Comm.
func (g *group) Abort(reason error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.abort(reason)
}

func (g *group) abort(reason error) {
	if g.err == nil {
		g.err = reason
		close(g.wake)
	}
}

// meet returns when all ranks have come to this meeting, else the ranks that
// are missing at the deadline, or the group's error.
func (m *member) meet() (missing []int, err error) {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, g.err
	}
	g.arrived[m.rank]++
	turn := g.arrived[m.rank]
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
	g.abort(fmt.Errorf("rank %d waited in vain: %w", m.rank, ErrDeadline))
	return missing, ErrDeadline
}

// fail describes a collective that failed.
func (m *member) fail(op Op, missing []int, err error) *Error {
	kind, name := op.collective()
	return &Error{Rank: m.rank, Size: m.Size(), Kind: kind, Name: name, Number: m.done, Waited: m.deadline, Missing: missing, Err: err}
}

// Bind implements Comm.
func (m *member) Bind(op Op) ([]device.Op, error) {
	if err := op.Check(); err != nil {
		return nil, err
	}
	g := m.group
	g.mu.Lock()
	number := len(g.bound[m.rank])
	g.bound[m.rank] = append(g.bound[m.rank], op)
	g.mu.Unlock()
	if missing, err := m.meet(); err != nil {
		return nil, m.fail(op, missing, err)
	}
	g.mu.Lock()
	peers := make([]Op, len(g.bound))
	for r := range peers {
		peers[r] = g.bound[r][number]
	}
	g.mu.Unlock()
	for r, p := range peers {
		if mine, other := signature(op), signature(p); mine != other {
			return nil, m.fail(op, nil, fmt.Errorf("rank %d has bound %s where this rank has %s: their plans differ", r, other, mine))
		}
	}
	return m.steps(op, peers), nil
}

// signature is what all ranks must have alike in a collective.
func signature(op Op) string {
	kind, name := op.collective()
	s := fmt.Sprintf("%s of %s", kind, name)
	if d := data(op); !d.Absent() {
		s += fmt.Sprintf(" (%d of %s)", d.Len, d.Type)
	}
	if b, ok := op.(*Broadcast); ok {
		s += fmt.Sprintf(" from rank %d", b.Root)
	}
	return s
}

// data returns the tensor that others read.
func data(op Op) device.Tensor {
	switch op := op.(type) {
	case *AllGather:
		return op.Data
	case *ReduceScatter:
		return op.Data
	case *AllReduce:
		return op.Data
	case *Broadcast:
		return op.Data
	}
	return device.Tensor{}
}
