//go:build sim && cgo && linux

package sim

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// hubAlone is a hub that no machine has. It is closed at the end of the test, and leaves nothing.
func hubAlone(t testing.TB) (h *hub, refused func() string) {
	t.Helper()
	noLeaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, noLeaks) })
	why := make(chan string, 100)
	h, err := openHub(func(_ string, err error) {
		select {
		case why <- err.Error():
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	return h, func() string {
		select {
		case text := <-why:
			return text
		case <-time.After(time.Minute):
			return "nothing was refused"
		}
	}
}

// framed is a frame with these bytes.
func framed(kind byte, b []byte) []byte {
	header := [headerBytes]byte{kind}
	binary.LittleEndian.PutUint32(header[4:], uint32(len(b)))
	return append(header[:], b...)
}

// inJSON is a frame with these words.
func inJSON(kind byte, v any) []byte {
	words, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return framed(kind, words)
}

func TestAHubRefusesWhatIsNoRank(t *testing.T) {
	h, refused := hubAlone(t)
	id := h.newID()
	hi := hello{ID: id, Version: 22907, Ranks: 1}
	other := hi
	other.ID[127]++
	beyond := hi
	beyond.Rank = 1
	long := framed(sayHello, nil)
	binary.LittleEndian.PutUint32(long[4:], mostWords+1)
	joined := inJSON(sayHello, hi)
	sum := task{Call: "ncclAllReduce", Count: 4, Type: ncclFloat32, Root: -1}
	change := func(f func(*task)) []byte { t := sum; f(&t); return inJSON(sayTask, t) }
	for why, b := range map[string][]byte{
		"begins no frame":                     []byte("GET / HTTP/1.1\r\n\r\n"),
		"0122000000000000 begins no frame":    {1, 0x22, 0, 0, 0, 0, 0, 0},
		"01000000":                            long,
		"unexpected EOF":                      joined[:20],
		"invalid character 'h'":               framed(sayHello, []byte("hello")),
		"a frame of kind 2, which":            inJSON(sayTask, sum),
		"rank 0 of 1 of a communicator that":  inJSON(sayHello, other),
		"rank 1 of 1 of a communicator that":  inJSON(sayHello, beyond),
		"a frame of kind 1, which":            slices.Concat(joined, joined),
		"a frame of kind 6, which":            slices.Concat(joined, framed(sayGo, nil)),
		"no collective of 1 ranks: ncclSend":  slices.Concat(joined, change(func(t *task) { t.Call = "ncclSend" })),
		"no collective of 1 ranks: ncclAllRe": slices.Concat(joined, change(func(t *task) { t.Type = 6 })),
		"ncclBroadcast of 4 of type 7, root 1": slices.Concat(joined, change(func(t *task) {
			t.Call, t.Root = "ncclBroadcast", 1
		})),
		"8 bytes, where 16 are due": slices.Concat(joined, inJSON(sayTask, sum), framed(sayData, make([]byte, 8))),
	} {
		h.mu.Lock()
		h.groups[id] = &commGroup{seats: map[int]*seat{}} // as if nobody had come before
		h.mu.Unlock()
		conn, err := net.Dial("tcp", h.socket.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		_ = conn.(*net.TCPConn).CloseWrite()
		if got := refused(); !strings.Contains(got, why) {
			t.Errorf("%q, want %q", got, why)
		}
		_ = conn.Close()
	}
}

func TestASumThroughAHubIsOfAllThatWasSent(t *testing.T) {
	h, _ := hubAlone(t)
	id := h.newID()
	var lines []*line
	for rank := range 2 {
		conn, err := h.reach(id)
		if err != nil {
			t.Fatal(err)
		}
		l := newLine(conn)
		go func() { _ = l.listen(func(byte, []byte) error { return nil }) }() // to the end of the line
		t.Cleanup(l.close)
		if err := l.say(sayHello, hello{ID: id, Ranks: 2, Rank: rank, Bus: uint64(rank)}); err != nil {
			t.Fatal(err)
		}
		if err := l.say(sayTask, task{Call: "ncclReduce", Count: 1, Type: ncclInt32, Root: 1}); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	for rank, l := range lines {
		if err := l.send([]byte{byte(rank + 1), 0, 0, 1}); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 4)
	if err := lines[1].receive(got); err != nil || !bytes.Equal(got, []byte{3, 0, 0, 2}) {
		t.Errorf("%x, %v", got, err)
	}
}

// FuzzWhatComesToAHub gives a hub what a rank could say, which takes what it understands and refuses the rest: it
// neither panics nor waits for ever, and another communicator of it works afterwards.
func FuzzWhatComesToAHub(f *testing.F) {
	sum := inJSON(sayTask, task{Call: "ncclAllReduce", Count: 2, Type: ncclBFloat16, Root: -1})
	f.Add(true, slices.Concat(sum, framed(sayData, []byte{0, 0x3f, 0, 0x40}), framed(sayLeave, nil)))
	f.Add(true, slices.Concat(sum, sum))
	f.Add(true, inJSON(sayTask, task{Call: "ncclAllGather", Count: 1 << 40, Type: ncclFloat64, Root: -1}))
	f.Add(true, framed(sayData, []byte("nobody asked")))
	f.Add(false, inJSON(sayHello, hello{Ranks: 1}))
	f.Add(false, []byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, joins bool, b []byte) {
		h, err := openHub(func(string, error) {})
		if err != nil {
			t.Fatal(err)
		}
		defer h.close()
		for _, x := range []struct {
			said     []byte
			patience time.Duration // a hub takes no data before it wants them
		}{{b, 20 * time.Millisecond}, {slices.Concat(sum, framed(sayData, []byte{1, 2, 3, 4})), time.Minute}} {
			id := h.newID()
			conn, err := h.reach(id)
			if err != nil {
				t.Fatal(err)
			}
			answers := make(chan struct{})
			go func() {
				defer close(answers)
				_, _ = io.Copy(io.Discard, conn) // to the end of it
			}()
			_ = conn.SetWriteDeadline(time.Now().Add(x.patience))
			if joins {
				_, _ = conn.Write(inJSON(sayHello, hello{ID: id, Ranks: 1}))
			}
			_, err = conn.Write(x.said) // an error where the hub has had enough
			if x.patience == time.Minute && joins && err != nil {
				t.Error(err)
			}
			_ = conn.Close()
			<-answers
		}
	})
}
