package collective

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// tcpPeer is another rank and the connections to it.
type tcpPeer struct {
	rank    int // its place
	name    int // what messages call it
	address string
	links   []*tcpLink
	last    atomic.Int64 // when bytes last went either way, in Unix nanoseconds
	bound   chan []byte  // what it says that it has bound
	left    chan struct{}

	mu      sync.Mutex // of writing to control
	control net.Conn
}

// tcpLink is one data connection. What is to be sent and received on it has one
// order, which is the same at both ends.
type tcpLink struct {
	peer            *tcpPeer
	conn            net.Conn
	index           byte
	sends, receives chan transfer
	vector          [2][]byte
	buffers         net.Buffers // of vector, used up by each write
	head            [2][frameHead]byte
	got             [frameHead]byte
}

// transfer is a frame to send or to receive.
type transfer struct {
	link   *tcpLink
	send   bool
	frame  frame // all but Number
	memory []byte
	latch  *latch
}

// frame is what precedes the data of a frame. Both ends know it, so whoever
// receives compares and never believes a length.
type frame struct {
	kind     byte
	index    byte // of the connection
	group    uint64
	number   uint64 // of the collective, as the rank counts
	bound    uint32 // of the operation, as bound
	part     uint32 // of the collective's exchange
	from, to uint32
	length   uint64
}

const (
	frameMagic = 0x6644_5346 // "FSDf"
	frameHead  = 48
	// piece is how much goes to a connection at once: enough to be cheap, little
	// enough to show that a slow peer still moves.
	piece = 1 << 20
)

func (f *frame) put(b *[frameHead]byte) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], frameMagic)
	le.PutUint32(b[4:], uint32(f.kind)|uint32(f.index)<<8)
	le.PutUint64(b[8:], f.group)
	le.PutUint64(b[16:], f.number)
	le.PutUint32(b[24:], f.bound)
	le.PutUint32(b[28:], f.part)
	le.PutUint32(b[32:], f.from)
	le.PutUint32(b[36:], f.to)
	le.PutUint64(b[40:], f.length)
}

// explain says how what came differs from what was due.
func (f *frame) explain(got *[frameHead]byte) error {
	le := binary.LittleEndian
	if le.Uint32(got[:]) != frameMagic || le.Uint64(got[8:]) != f.group || le.Uint32(got[32:]) != f.from || le.Uint32(got[36:]) != f.to {
		return fmt.Errorf("it sent bytes that are no frame of this group: %x", got[:16])
	}
	return fmt.Errorf("it sent %d bytes of part %d of collective number %d (%s, bound as number %d) where %d bytes of part %d of number %d (%s, bound as number %d) are due",
		le.Uint64(got[40:]), le.Uint32(got[28:]), le.Uint64(got[16:]), kindName(got[4]), le.Uint32(got[24:]),
		f.length, f.part, f.number, kindName(f.kind), f.bound)
}

var kinds = []string{"all-gather", "reduce-scatter", "all-reduce", "broadcast", "barrier"}

func kindName(b byte) string {
	if int(b) < len(kinds) {
		return kinds[b]
	}
	return fmt.Sprintf("kind %d", b)
}

// foreign marks what a peer sent and should not have.
type foreign struct{ error }

func newPeer(t *TCP, rank int, conns map[seat]net.Conn) *tcpPeer {
	p := &tcpPeer{rank: rank, name: t.name(rank), address: t.set.Addresses[rank], control: conns[seat{rank, 0}], bound: make(chan []byte, 4), left: make(chan struct{})}
	for i := range t.set.Connections {
		// A handful of transfers is under way at most: those of two parts ahead.
		p.links = append(p.links, &tcpLink{
			peer: p, conn: conns[seat{rank, i + 1}], index: byte(i),
			sends: make(chan transfer, 8), receives: make(chan transfer, 8),
		})
	}
	return p
}

// work does the transfers of one direction of a link, in order.
func (t *TCP) work(l *tcpLink, queue chan transfer, do func(*transfer) error) {
	var x transfer
	for {
		select {
		case <-t.failed:
			return
		case x = <-queue:
		}
		switch err := do(&x); {
		case err == nil:
			x.latch.finish(l.peer.rank)
		case errors.As(err, new(foreign)):
			t.fail([]int{l.peer.name}, fmt.Errorf("%v: %w", l.peer, err))
			return
		default:
			t.lost(l.peer, err)
			return
		}
	}
}

// send writes a frame.
func (l *tcpLink) send(x *transfer) error {
	x.frame.put(&l.head[0])
	n := min(len(x.memory), piece)
	l.vector = [2][]byte{l.head[0][:], x.memory[:n]}
	l.buffers = l.vector[:]
	for {
		if _, err := l.buffers.WriteTo(l.conn); err != nil {
			return err
		}
		l.peer.moved()
		x.memory = x.memory[n:]
		if n = min(len(x.memory), piece); n == 0 {
			return nil
		}
		l.vector[0] = x.memory[:n]
		l.buffers = l.vector[:1]
	}
}

// receive reads the frame that is due into its memory.
func (l *tcpLink) receive(x *transfer) error {
	if _, err := io.ReadFull(l.conn, l.got[:]); err != nil {
		return err
	}
	if x.frame.put(&l.head[1]); !bytes.Equal(l.got[:], l.head[1][:]) {
		return foreign{x.frame.explain(&l.got)}
	}
	l.peer.moved()
	for len(x.memory) > 0 {
		n, err := l.conn.Read(x.memory)
		if err != nil {
			return err
		}
		l.peer.moved()
		x.memory = x.memory[n:]
	}
	return nil
}

func (p *tcpPeer) String() string { return fmt.Sprintf("rank %d at %s", p.name, p.address) }

func (p *tcpPeer) moved() { p.last.Store(time.Now().UnixNano()) }

// What goes over the control connection: a byte that says what, a length, and so
// many bytes.
const (
	wordBind  byte = iota + 1 // the signature of what the rank binds
	wordAbort                 // why the group ends
	wordLeave                 // the rank closes its end

	wordHead  = 5
	wordLimit = 64 << 10
)

// tell sends a word to the peer.
func (p *tcpPeer) tell(what byte, text []byte, patience time.Duration) error {
	text = text[:min(len(text), wordLimit)]
	b := binary.LittleEndian.AppendUint32([]byte{what}, uint32(len(text)))
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.control.SetWriteDeadline(time.Now().Add(patience)) // the write says what is wrong
	_, err := p.control.Write(append(b, text...))
	return err
}

// leave ends the data connections' waits and says on control that nothing more
// comes. Control stays open: closed with unread bytes, it would take back what
// was told.
func (p *tcpPeer) leave() {
	for _, l := range p.links {
		_ = l.conn.SetDeadline(time.Unix(1, 0))
	}
	if c, ok := p.control.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
}

func (p *tcpPeer) close() {
	for _, l := range p.links {
		_ = l.conn.Close()
	}
	_ = p.control.Close()
}

// listen hears what a peer tells, until its end.
func (t *TCP) listen(p *tcpPeer) {
	strange := func(format string, args ...any) {
		t.fail([]int{p.name}, fmt.Errorf("%v: "+format, append([]any{p}, args...)...))
	}
	var head [wordHead]byte
	for {
		if _, err := io.ReadFull(p.control, head[:]); err != nil {
			t.fail([]int{p.name}, fmt.Errorf("%v is gone: its connection ended: %w", p, err))
			return
		}
		n := binary.LittleEndian.Uint32(head[1:])
		if n > wordLimit || head[0] < wordBind || head[0] > wordLeave {
			strange("it sent bytes that are no word of a rank: %x", head)
			return
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(p.control, text); err != nil {
			t.lost(p, err)
			return
		}
		switch head[0] {
		case wordBind:
			select {
			case p.bound <- text:
			default:
				strange("it binds ahead of the group")
				return
			}
		case wordAbort:
			missing, reason := parseAbort(text, p.name)
			t.fail(missing, reason)
			return
		default:
			close(p.left)
			return
		}
	}
}

// abortText is why the group ends, as it goes over the wire: whether it was the
// deadline, whose words they are, how many ranks are missing, which, and the
// words. Ranks go by their names.
func abortText(rank int, missing []int, reason error) []byte {
	e := say(rank, reason)
	b := []byte{0}
	if e.deadline {
		b[0] = 1
	}
	missing = missing[:min(len(missing), mostMissing)]
	for _, n := range append([]int{e.rank, len(missing)}, missing...) {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return append(b, e.text...)
}

// mostMissing is how many missing ranks a word names.
const mostMissing = 1000

// parseAbort reads an abortText that a peer sent.
func parseAbort(b []byte, peer int) (missing []int, reason error) {
	next := func() int {
		n := binary.LittleEndian.Uint32(b)
		b = b[4:]
		return int(n)
	}
	if len(b) < 9 {
		return []int{peer}, fmt.Errorf("rank %d ended the group without a reason", peer)
	}
	e := &told{deadline: b[0] == 1}
	b = b[1:]
	e.rank = next()
	for left := min(next(), mostMissing); left > 0 && len(b) >= 4; left-- {
		if r := next(); !slices.Contains(missing, r) {
			missing = append(missing, r)
		}
	}
	e.text = string(b)
	return missing, e
}
