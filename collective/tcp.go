package collective

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// TCPSettings say which group a rank joins over TCP. All but Rank and Device
// must be alike on all ranks.
type TCPSettings struct {
	Group     string   // its name, another one for each group of a run
	Rank      int      // this rank's place in the group
	Ranks     []int    // what messages call the ranks, by place; nil: their places
	Addresses []string // host:port where each rank's listener is reached, by rank
	// Secret is what a peer must know to be let in, at least 16 bytes. It keeps
	// strangers out; it does not encrypt what is sent.
	Secret []byte
	// Deadline is how long a wait lasts for a peer from which nothing comes, and
	// how long NewTCP waits for all ranks.
	Deadline time.Duration
	// Connections carry data between two ranks, side by side where one does not
	// fill the link: 1 to 64.
	Connections int
	Device      device.Device // where sums are staged, in memory that the host sees
}

// check returns all that is wrong with the settings.
func (s *TCPSettings) check() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("collective: group %s over TCP: "+format, append([]any{s.Group}, args...)...))
		}
	}
	refuse(s.Group == "", "the group has no name")
	refuse(s.Rank < 0 || s.Rank >= len(s.Addresses), "rank %d of %d addresses", s.Rank, len(s.Addresses))
	refuse(s.Ranks != nil && len(s.Ranks) != len(s.Addresses), "names for %d ranks, want %d", len(s.Ranks), len(s.Addresses))
	refuse(len(s.Secret) < minSecret, "the secret has %d bytes, want at least %d", len(s.Secret), minSecret)
	refuse(s.Deadline <= 0, "the deadline is %v, want more than 0", s.Deadline)
	refuse(s.Connections < 1 || s.Connections > maxConnections, "%d connections, want 1 to %d", s.Connections, maxConnections)
	refuse(s.Device == nil, "no device to stage sums on")
	return errors.Join(errs...)
}

const (
	minSecret      = 16
	maxConnections = 64
)

// TCP is one rank's end of a group whose ranks are connected each with each. It
// is a Comm: one Bind at a time, and what it returns on one stream at a time.
// Close ends its goroutines and connections.
type TCP struct {
	set   TCPSettings
	group uint64     // what frames carry for the group's name
	peers []*tcpPeer // by rank; this rank's own is nil

	onError func(error)   // nil, or what else ends where a collective fails
	number  atomic.Uint64 // collectives finished
	bound   uint32
	timer   *time.Timer // of the stream's waits
	stages  []device.Buffer

	mu      sync.Mutex
	cause   error         // why nothing goes on any more
	missing []int         // by name
	failed  chan struct{} // closed once cause is set
	closing sync.Once
	ended   sync.WaitGroup // the goroutines
}

// NewTCP connects this rank with all others of its group and returns when each
// has proved to each that it knows the secret. It blocks until then, until ctx
// is done or the deadline has passed; the *Error then names the ranks that did
// not come and whoever was refused. The listener is where the others reach
// Addresses[Rank]; NewTCP closes it.
func NewTCP(ctx context.Context, listener net.Listener, set TCPSettings) (*TCP, error) {
	if err := set.check(); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	t := &TCP{set: set, group: groupNumber(set), peers: make([]*tcpPeer, len(set.Addresses)), timer: time.NewTimer(time.Hour), failed: make(chan struct{})}
	t.timer.Stop()
	began := time.Now()
	missing, err := t.connect(ctx, listener)
	if err != nil {
		return nil, &Error{Rank: t.name(set.Rank), Kind: "set-up", Name: "group " + set.Group, Waited: since(began), Missing: t.names().all(missing), Err: err}
	}
	for _, p := range t.peers {
		if p == nil {
			continue
		}
		t.ended.Go(func() { t.listen(p) })
		for _, l := range p.links {
			t.ended.Go(func() { t.work(l, l.sends, l.send) })
			t.ended.Go(func() { t.work(l, l.receives, l.receive) })
		}
	}
	return t, nil
}

// Rank implements Comm.
func (t *TCP) Rank() int { return t.set.Rank }

// Size implements Comm.
func (t *TCP) Size() int { return len(t.set.Addresses) }

func (t *TCP) names() names { return t.set.Ranks }

func (t *TCP) name(place int) int { return t.names().of(place) }

// Abort implements Comm. The others get the reason's text.
func (t *TCP) Abort(reason error) { t.fail(nil, reason) }

// fail ends every wait of this rank and of the others. The first reason stands.
// A reason that another rank told is passed on, since its end is in sight.
func (t *TCP) fail(missing []int, reason error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause != nil {
		return
	}
	t.cause, t.missing = reason, missing
	close(t.failed)
	word := abortText(t.name(t.set.Rank), missing, reason)
	for _, p := range t.peers {
		if p == nil {
			continue
		}
		// Whether the peer still hears it is its own affair.
		_ = p.tell(wordAbort, word, t.patience())
		p.leave()
	}
}

// patience is how long a word to or from a peer may take: it is short and fits into
// the socket's buffers, so that only one that is gone keeps it waiting.
func (t *TCP) patience() time.Duration { return min(t.set.Deadline, time.Second) }

// lost fails for a broken connection. The peer may have said why on another one,
// and its word counts more.
func (t *TCP) lost(p *tcpPeer, err error) {
	grace := time.NewTimer(t.patience())
	defer grace.Stop()
	select {
	case <-t.failed:
	case <-p.left:
		t.fail([]int{p.name}, fmt.Errorf("%v has left the group", p))
	case <-grace.C:
		t.fail([]int{p.name}, fmt.Errorf("the connection to %v broke: %w", p, err))
	}
}

// errorOf describes the collective of op, which failed with the group.
func (t *TCP) errorOf(op Op, began time.Time) *Error {
	t.mu.Lock()
	missing, cause := t.missing, t.cause
	t.mu.Unlock()
	return t.refusal(op, began, missing, cause)
}

func (t *TCP) refusal(op Op, began time.Time, missing []int, err error) *Error {
	kind, name := op.collective()
	e := &Error{
		Rank: t.name(t.set.Rank), Kind: kind, Name: name, Number: int(t.number.Load()),
		Waited: since(began), Missing: missing, Err: err,
	}
	e.tell(t.onError)
	return e
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }

var errClosed = errors.New("this rank has closed its end of the group")

// Close implements io.Closer: it leaves the group, ends all goroutines and gives
// the staging memory back to the device. Peers that have all they wait for from
// this rank go on.
func (t *TCP) Close() (err error) {
	t.closing.Do(func() {
		t.mu.Lock()
		if t.cause == nil {
			t.cause = errClosed
			close(t.failed)
			for _, p := range t.peers {
				if p != nil {
					_ = p.tell(wordLeave, nil, t.patience()) // to one that is gone already: no matter
				}
			}
		}
		t.mu.Unlock()
		for _, p := range t.peers {
			if p != nil {
				p.close()
			}
		}
		t.ended.Wait()
		t.timer.Stop()
		for _, b := range t.stages {
			err = errors.Join(err, t.set.Device.Free(b))
		}
	})
	return err
}
