package collective

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// The handshake. A rank dials all lower ones. The dialer sends a hello, the
// other side answers with a nonce and its proof, the dialer with its own, and
// one byte says that it is let in. Each proof is an HMAC-SHA256 under the secret
// over the prover's side, the group and both hellos, so it serves for nothing
// but this connection. All messages have a fixed size.
const (
	hello      = "gofsdp/tcp/1"
	helloSize  = len(hello) + 5*4 + nonceSize
	nonceSize  = 32
	answerSize = 1 + nonceSize + sha256.Size
	// handshakeTime is how long who connects may be silent, or half the deadline
	// where that is longer: no longer does it hold a place.
	handshakeTime = 5 * time.Second
	handshakes    = 128 // under way at once
	refusals      = 8   // that are told
)

// What the accepting side answers.
const (
	letIn byte = iota
	otherRank
	otherSize
	otherConnections
	seatTaken
)

var answers = map[byte]string{
	otherRank:        "it is another rank",
	otherSize:        "its group has another size",
	otherConnections: "its group has another number of connections",
	seatTaken:        "another process has come as this rank",
}

// seat is one connection of the mesh, as seen by one side: 0 is for control, the
// others are for data.
type seat struct{ rank, index int }

// mesh is a set-up under way.
type mesh struct {
	*TCP
	mu      sync.Mutex
	conns   map[seat]net.Conn
	seated  int // conns whose handshake is over
	refused []error
	err     error // that ends the set-up
	change  chan struct{}
}

// connect fills the peers, or returns the ranks that are missing and why.
func (t *TCP) connect(parent context.Context, listener net.Listener) (missing []int, err error) {
	ctx, cancel := context.WithTimeoutCause(parent, t.set.Deadline, ErrDeadline)
	m := &mesh{TCP: t, conns: map[seat]net.Conn{}, change: make(chan struct{}, 1)}
	var ended sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // ends accept
	ended.Go(func() { m.accept(ctx, listener, &ended) })
	for r := range t.set.Rank {
		for i := range 1 + t.set.Connections {
			ended.Go(func() { m.dial(ctx, seat{r, i}) })
		}
	}
	want := (t.Size() - 1) * (1 + t.set.Connections)
	for err == nil {
		m.mu.Lock()
		done := m.seated == want
		err = m.err
		m.mu.Unlock()
		if done || err != nil {
			break
		}
		select {
		case <-m.change:
		case <-ctx.Done():
			err = errors.Join(err, context.Cause(ctx))
		}
	}
	cancel()
	stop()
	_ = listener.Close()
	ended.Wait()

	// Nothing is under way any more.
	if err == nil {
		for r := range t.peers {
			if r != t.set.Rank {
				t.peers[r] = newPeer(t, r, m.conns)
			}
		}
		return nil, nil
	}
	for r := range t.Size() {
		for i := range 1 + t.set.Connections {
			if _, ok := m.conns[seat{r, i}]; !ok && r != t.set.Rank && !slices.Contains(missing, r) {
				missing = append(missing, r)
			}
		}
	}
	for _, c := range m.conns {
		_ = c.Close()
	}
	return missing, errors.Join(append([]error{err}, m.refused...)...)
}

// accept lets in whoever proves to be a higher rank, and keeps the reasons of
// those that it turns away.
func (m *mesh) accept(ctx context.Context, listener net.Listener, ended *sync.WaitGroup) {
	places := make(chan struct{}, handshakes)
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				m.end(fmt.Errorf("accepting at %s: %w", listener.Addr(), err))
			}
			return
		}
		places <- struct{}{}
		ended.Go(func() {
			defer func() { <-places }()
			if err := m.admit(ctx, conn); err != nil {
				_ = conn.Close()
				m.mu.Lock()
				if len(m.refused) < refusals && ctx.Err() == nil {
					m.refused = append(m.refused, fmt.Errorf("refused %s: %w", conn.RemoteAddr(), err))
				}
				m.mu.Unlock()
			}
		})
	}
}

// limit makes all use of conn fail once ctx is done, until the returned function is
// called, which lifts any other limit, too.
func limit(ctx context.Context, conn net.Conn) (release func()) {
	ran := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ran)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-ran
		}
		_ = conn.SetDeadline(time.Time{})
	}
}

// admit is the accepting side of the handshake.
func (m *mesh) admit(ctx context.Context, conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(max(handshakeTime, m.set.Deadline/2)))
	defer limit(ctx, conn)()
	in := make([]byte, helloSize)
	if _, err := io.ReadFull(conn, in); err != nil {
		return fmt.Errorf("it did not introduce itself: %w", err)
	}
	if string(in[:len(hello)]) != hello {
		return errors.New("it is no gofsdp rank")
	}
	var f [5]int // from, to, size, connections, index
	for i := range f {
		f[i] = int(binary.LittleEndian.Uint32(in[len(hello)+4*i:]))
	}
	out := make([]byte, answerSize)
	refuse := func(code byte, format string, args ...any) error {
		out[0] = code
		_, _ = conn.Write(out) // the reason counts, heard or not
		return fmt.Errorf(format, args...)
	}
	switch size := m.Size(); {
	case f[2] != size:
		return refuse(otherSize, "its group has %d ranks, this one %d", f[2], size)
	case f[3] != m.set.Connections:
		return refuse(otherConnections, "it wants %d connections, this rank %d", f[3], m.set.Connections)
	case f[1] != m.set.Rank || f[0] <= m.set.Rank || f[0] >= size || f[4] > m.set.Connections:
		return refuse(otherRank, "it is at place %d and wants place %d, connection %d", f[0], f[1], f[4])
	}
	_, _ = rand.Read(out[1:][:nonceSize]) // it never fails
	nonce := out[1:][:nonceSize]
	copy(out[1+nonceSize:], m.proof("accept", in, nonce))
	if _, err := conn.Write(out); err != nil {
		return err
	}
	theirs := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, theirs); err != nil {
		return fmt.Errorf("as rank %d it did not prove the secret: %w", m.name(f[0]), err)
	}
	if !hmac.Equal(theirs, m.proof("dial", in, nonce)) {
		return fmt.Errorf("as rank %d it has another secret or group", m.name(f[0]))
	}
	// Its seat is taken before it is told, so that it is told the truth.
	s := seat{f[0], f[4]}
	if !m.take(s, conn) {
		_, _ = conn.Write([]byte{seatTaken})
		return fmt.Errorf("another process has come as rank %d, connection %d", m.name(s.rank), s.index)
	}
	if _, err := conn.Write([]byte{letIn}); err != nil {
		m.mu.Lock()
		delete(m.conns, s)
		m.mu.Unlock()
		return err
	}
	m.sit()
	return nil
}

// take gives a seat to conn, unless it is given.
func (m *mesh) take(s seat, conn net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns[s] != nil {
		return false
	}
	m.conns[s] = conn
	return true
}

// sit counts a connection whose handshake is over.
func (m *mesh) sit() {
	m.mu.Lock()
	m.seated++
	m.mu.Unlock()
	m.changed()
}

func (m *mesh) changed() {
	select {
	case m.change <- struct{}{}:
	default:
	}
}

// end ends the set-up with an error.
func (m *mesh) end(err error) {
	m.mu.Lock()
	m.err = errors.Join(m.err, err)
	m.mu.Unlock()
	m.changed()
}

// dial takes a seat at a lower rank. Nobody at its address is waited for; who is
// there and does not let this rank in ends the set-up.
func (m *mesh) dial(ctx context.Context, s seat) {
	address := m.set.Addresses[s.rank]
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			if err = m.introduce(ctx, conn, s); err == nil {
				m.take(s, conn)
				m.sit()
				return
			}
			_ = conn.Close()
			if ctx.Err() == nil {
				m.end(fmt.Errorf("rank %d at %s: %w", m.name(s.rank), address, err))
			}
			if !errors.Is(context.Cause(ctx), ErrDeadline) {
				return
			}
		}
		select {
		case <-ctx.Done():
			m.mu.Lock()
			if s.index == 0 {
				m.refused = append(m.refused, fmt.Errorf("rank %d at %s: %w", m.name(s.rank), address, err))
			}
			m.mu.Unlock()
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// introduce is the dialing side of the handshake. Who is dialed is a rank, which
// may be slow, so that the set-up's deadline alone ends it.
func (m *mesh) introduce(ctx context.Context, conn net.Conn, s seat) error {
	defer limit(ctx, conn)()
	out := []byte(hello)
	for _, x := range [...]int{m.set.Rank, s.rank, m.Size(), m.set.Connections, s.index} {
		out = binary.LittleEndian.AppendUint32(out, uint32(x))
	}
	out = append(out, make([]byte, nonceSize)...)
	_, _ = rand.Read(out[len(out)-nonceSize:]) // it never fails
	if _, err := conn.Write(out); err != nil {
		return err
	}
	in := make([]byte, answerSize)
	if _, err := io.ReadFull(conn, in); err != nil {
		return fmt.Errorf("it did not answer as a gofsdp rank does: %w", err)
	}
	if in[0] != letIn {
		return refused(in[0])
	}
	nonce := in[1:][:nonceSize]
	if !hmac.Equal(in[1+nonceSize:], m.proof("accept", out, nonce)) {
		return errors.New("it has another secret or group")
	}
	if _, err := conn.Write(m.proof("dial", out, nonce)); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, in[:1]); err != nil {
		return fmt.Errorf("it did not accept this rank's proof: %w", err)
	}
	if in[0] != letIn {
		return refused(in[0])
	}
	return nil
}

func refused(code byte) error {
	if why, ok := answers[code]; ok {
		return errors.New("it refused this rank: " + why)
	}
	return errors.New("it is no gofsdp rank")
}

// proof is what a side sends to show that it knows the secret.
func (m *mesh) proof(side string, dialer, nonce []byte) []byte {
	h := hmac.New(sha256.New, m.set.Secret)
	for _, part := range [][]byte{[]byte(side), []byte(m.set.Group), dialer, nonce} {
		// Lengths keep the parts apart.
		_ = binary.Write(h, binary.LittleEndian, uint64(len(part))) // a hash takes everything
		h.Write(part)
	}
	return h.Sum(nil)
}

// groupNumber is the group's mark in frames.
func groupNumber(s TCPSettings) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", len(s.Addresses), s.Group))
	return binary.LittleEndian.Uint64(sum[:])
}
