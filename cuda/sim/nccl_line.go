//go:build sim && cgo && linux

package sim

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// What a rank and its hub say to each other is frames: eight bytes, which are the kind, three zeros and the
// length of what follows, and that many bytes. Those of data are raw; the others are JSON, or nothing.
const (
	// By a rank.
	sayHello = 1 + iota // hello: who it is; the first that it says
	sayTask             // task: what it has come to do
	sayLeave            // it does no more

	// By the hub.
	sayWelcome // news: the answer to hello
	sayReady   // all ranks have joined
	sayGo      // all ranks have come to do the task; data follow, as task.steps has them
	sayNews    // news: what has happened to the communicator
	sayOver    // a rank has left, so there will be no more to do

	// By both.
	sayData
)

const (
	headerBytes = 8
	mostWords   = 8 << 10 // bytes of JSON
	mostData    = 1 << 20 // bytes of a frame of data; a multiple of every element's size
)

// hello is how a rank introduces itself.
type hello struct {
	ID      [128]byte
	Version int // of NCCL
	Ranks   int
	Rank    int
	Host    string // machines differ in it: NCCL's hostHash
	Bus     uint64 // where the device is on its PCI bus: NCCL's busId
}

// news is what a hub tells a rank.
type news struct {
	Result NCCLResult // Success: it changes nothing
	Why    string
	Fault  bool // the ranks' program is wrong, which is reported
}

// line is one end of the connection between a rank and its hub. Whoever wants may write, and one goroutine
// reads: what is data it puts where somebody else wants it, so that both can say something at any time.
type line struct {
	conn    net.Conn
	writing sync.Mutex
	wanted  chan []byte   // where the next frame of data is to go
	got     chan error    // that it is there
	ended   chan struct{} // closed when nothing is read any more
	cut     chan struct{} // closed by this end's close
	once    sync.Once
	dropped chan struct{} // closed when nobody wants data any more
	drop    func()
}

func newLine(conn net.Conn) *line {
	l := &line{
		conn: conn, wanted: make(chan []byte), got: make(chan error, 1),
		ended: make(chan struct{}), cut: make(chan struct{}), dropped: make(chan struct{}),
	}
	l.drop = sync.OnceFunc(func() { close(l.dropped) })
	return l
}

// say writes a frame without words, or with those that v is in JSON.
func (l *line) say(kind byte, v any) error {
	var words []byte
	if v != nil {
		words, _ = json.Marshal(v) // of hello, task and news, which can all be written
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.write(kind, words)
}

// send writes a frame of data.
func (l *line) send(data []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.write(sayData, data)
}

func (l *line) write(kind byte, b []byte) error {
	header := [headerBytes]byte{kind}
	binary.LittleEndian.PutUint32(header[4:], uint32(len(b)))
	parts := net.Buffers{header[:]}
	if len(b) > 0 {
		parts = append(parts, b)
	}
	_, err := parts.WriteTo(l.conn)
	return err
}

// receive reads a frame of data that fills b. When it returns nobody writes to b any more.
func (l *line) receive(b []byte) error {
	select {
	case l.wanted <- b:
		return <-l.got
	case <-l.ended:
		return errEnded
	}
}

var errEnded = errors.New("the connection has ended")

// listen reads until the connection ends, and returns why. Frames other than data go to hear, which must not
// wait for what the other end has yet to say.
func (l *line) listen(hear func(kind byte, words []byte) error) error {
	defer close(l.ended)
	var header [headerBytes]byte
	for {
		if _, err := io.ReadFull(l.conn, header[:]); err != nil {
			return err
		}
		kind, n := header[0], binary.LittleEndian.Uint32(header[4:])
		most := uint32(mostWords)
		if kind == sayData {
			most = mostData
		}
		if kind == 0 || kind > sayData || header[1]|header[2]|header[3] != 0 || n > most {
			return fmt.Errorf("%x begins no frame", header)
		}
		var err error
		if kind == sayData {
			err = l.hand(int(n))
		} else {
			words := make([]byte, n)
			if _, err = io.ReadFull(l.conn, words); err == nil {
				err = hear(kind, words)
			}
		}
		if err != nil {
			return err
		}
	}
}

// hand reads a frame of data to where it is wanted, or to nowhere once it is wanted no more.
func (l *line) hand(n int) error {
	select {
	case b := <-l.wanted:
		err := fmt.Errorf("%d bytes, where %d are due", n, len(b))
		if n == len(b) {
			_, err = io.ReadFull(l.conn, b)
		}
		l.got <- err
		return err
	case <-l.dropped:
		_, err := io.CopyN(io.Discard, l.conn, int64(n))
		return err
	case <-l.cut:
		return net.ErrClosed
	}
}

// patience is how long an orderly end may take.
const patience = 5 * time.Second

// leave says that this rank does no more, and waits until the hub has told the others, but not for long. A frame
// that is under way comes first. Where the hub does not listen, the others see a connection that ends.
func (l *line) leave() {
	_ = l.conn.SetWriteDeadline(time.Now().Add(patience))
	l.writing.Lock()
	if l.write(sayLeave, nil) == nil {
		select {
		case <-l.ended:
		case <-time.After(patience):
		}
	}
	l.writing.Unlock()
	l.close()
}

func (l *line) close() {
	l.once.Do(func() {
		close(l.cut)
		_ = l.conn.Close() // what is lost, the other end finds
	})
}

// understood reads words of JSON.
func understood[T any](words []byte) (v T, err error) { return v, json.Unmarshal(words, &v) }
