package collective

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Shared is a rank's end of a group of processes of one host that read each
// other's memory. It is a Comm.
type Shared struct {
	member
	own *sharedLink
}

// NewShared joins a group. It waits for nobody; the first Bind does. It fails
// where the control file is none or another process is this rank already: a
// control file serves one attempt of one group.
//
// A rank that waits sleeps in the kernel, and for up to milliseconds Go does not
// notice that it may run something else there: a process should have a few more
// of Go's processors (GOMAXPROCS) than it has streams.
func NewShared(s SharedSettings) (*Shared, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	c, err := openControl(s.Control, len(s.Peers))
	if err != nil {
		return nil, err
	}
	if !c.ranks[s.Rank].claimed.CompareAndSwap(0, 1) {
		return nil, errors.Join(fmt.Errorf("collective: control file %s: there is a rank %d already", s.Control.Name(), s.Rank), c.close())
	}
	l := &sharedLink{SharedSettings: s, control: c, crowded: len(s.Peers) > runtime.NumCPU(), patience: spinMost}
	return &Shared{member{link: l, rank: s.Rank, size: len(s.Peers), names: s.Ranks, deadline: s.Deadline}, l}, nil
}

// Close lets go of the control file, after Abort where others may still wait for
// this rank. Nothing that was bound may be launched or running.
func (s *Shared) Close() error {
	s.own.closing.Lock()
	defer s.own.closing.Unlock()
	if s.own.closed {
		return nil
	}
	s.own.closed = true
	return s.own.control.close()
}

// A wait for peers first looks again and again, since they mostly come at once
// and sleeping costs tens of microseconds, then sleeps.
const spinMost = 20 * time.Microsecond

// sharedLink is a rank's link over shared memory.
type sharedLink struct {
	SharedSettings
	*control
	turn     uint64        // meetings that this rank has come to
	crowded  bool          // there are more ranks than cores: who spins is in the way
	patience time.Duration // how long the next wait spins

	closing sync.Mutex // held by abort and Close
	closed  bool
	mine    error // the reason of this rank's abort, if it was the first
}

func (l *sharedLink) name(place int) int { return names(l.Ranks).of(place) }

func (l *sharedLink) meet() (missing []int, err error) {
	if err := l.ended(); err != nil {
		return nil, err
	}
	l.turn++
	l.ranks[l.Rank].arrived.Store(l.turn)
	// Read before the others are counted: whoever comes last changes it after.
	seen := l.head.wake.Load()
	if all, err := l.all(); err != nil || all {
		l.wakeAll()
		return nil, err
	}
	began := time.Now()
	if !l.crowded {
		for time.Since(began) < l.patience && l.head.wake.Load() == seen {
			for range 50 {
				if l.head.wake.Load() != seen {
					break
				}
			}
		}
	}
	for {
		now := l.head.wake.Load()
		all, err := l.all()
		if err != nil {
			return nil, err
		}
		waited := time.Since(began)
		if all {
			// A wait that spinning can end is worth it, one that it cannot is not.
			l.patience /= 2
			if waited < spinMost {
				l.patience = spinMost
			}
			return nil, nil
		}
		if err := l.ended(); err != nil {
			return nil, err
		}
		if waited >= l.Deadline {
			break
		}
		l.sleep(now, l.Deadline-waited)
	}
	for r := range l.ranks {
		if l.ranks[r].arrived.Load() < l.turn {
			missing = append(missing, r)
		}
	}
	l.abort(fmt.Errorf("rank %d waited in vain for ranks %v: %w", l.name(l.Rank), names(l.Ranks).all(missing), ErrDeadline))
	return missing, ErrDeadline
}

// all says whether all ranks have come to this meeting. A rank cannot be more
// than a meeting away from this one; a control file that says so is foreign.
func (l *sharedLink) all() (bool, error) {
	all := true
	for r := range l.ranks {
		n := l.ranks[r].arrived.Load()
		if n+1 < l.turn || n > l.turn+1 {
			err := fmt.Errorf("the control file is spoilt: rank %d is said to have come to meeting %d, this is %d", l.name(r), n, l.turn)
			l.abort(err)
			return false, err
		}
		all = all && n >= l.turn
	}
	return all, nil
}

func (l *sharedLink) exchange(o offer) (offers []offer, missing []int, err error) {
	// What fails here fails for all ranks: they would wait for this one.
	defer func() {
		if err != nil {
			l.abort(err)
		}
	}()
	if err := l.post(o); err != nil {
		return nil, nil, err
	}
	if missing, err := l.meet(); err != nil {
		return nil, missing, err
	}
	for r := range l.ranks {
		got, err := l.collect(r, o)
		if err != nil {
			return nil, nil, fmt.Errorf("what rank %d offers: %w", l.name(r), err)
		}
		offers = append(offers, got)
	}
	// Nobody writes a new offer over one that is still being read.
	missing, err = l.meet()
	return offers, missing, err
}

// post writes what this rank offers into its part of the control file.
func (l *sharedLink) post(o offer) error {
	off := int64(-1)
	if o.data.Len > 0 {
		var ok bool
		if off, ok = l.Window.Offset(o.data.Addr, o.data.Bytes()); !ok {
			return fmt.Errorf("%s: the memory at %#x lies outside of the window of the rank's device", o.signature, o.data.Addr)
		}
	}
	if len(o.signature) > len(l.ranks[l.Rank].text) {
		return fmt.Errorf("%.100s...: its description has %d bytes, want at most %d; shorten its name", o.signature, len(o.signature), len(l.ranks[l.Rank].text))
	}
	m := &l.ranks[l.Rank]
	m.off = off
	m.length = uint32(copy(m.text[:], o.signature))
	return nil
}

// collect reads what rank r offers; its data is like this rank's own where the
// signatures say so, else absent.
func (l *sharedLink) collect(r int, own offer) (offer, error) {
	if r == l.Rank {
		return own, nil
	}
	m := &l.ranks[r]
	off, length := m.off, m.length
	if uint64(length) > uint64(len(m.text)) {
		return offer{}, fmt.Errorf("the control file is spoilt: a description of %d bytes", length)
	}
	o := offer{signature: string(m.text[:length])}
	if o.signature != own.signature || own.data.Len == 0 {
		return o, nil
	}
	o.data = own.data
	if off%own.data.Type.Size() != 0 {
		return o, fmt.Errorf("the control file is spoilt: %s at odd byte %d", own.data.Type, off)
	}
	addr, err := l.Peers[r].At(off, own.data.Bytes())
	o.data.Addr = addr
	return o, err
}

func (l *sharedLink) abort(reason error) {
	l.closing.Lock()
	defer l.closing.Unlock()
	if !l.closed && l.head.end(l.name(l.Rank), reason) {
		l.mine = reason
		l.wakeAll()
	}
}

// ended returns the reason of an abort.
func (l *sharedLink) ended() error {
	if !l.head.hasEnded() {
		return nil
	}
	l.closing.Lock()
	defer l.closing.Unlock()
	if l.mine != nil {
		return l.mine
	}
	return l.head.reason()
}
