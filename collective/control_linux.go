package collective

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/device"
)

// A control file is a page for the group and a page for each rank. Ranks trust
// it to tell when others have come, and nothing else: what it says of lengths
// and places is checked.

const (
	controlMagic = 0x31_6c_74_63_70_64_73_66 // "fsdpctl1"
	controlPage  = 4096
)

// controlHead is the group's page.
type controlHead struct {
	magic uint64
	size  uint64 // ranks
	_     [48]byte

	// wake changes when the last rank comes to a meeting, and on an abort.
	// Sleepers wait for it to change.
	wake     atomic.Uint32
	sleepers atomic.Uint32 // too many where one was killed asleep, which costs a call
	_        [56]byte

	state    atomic.Uint32 // of the end: running, ending, over
	rank     uint32        // whose words the reason is, by its name
	deadline uint32        // 1: because a deadline passed
	length   uint32
	text     [controlPage - 144]byte // the reason
}

// controlRank is a rank's page. Only the rank writes to it.
type controlRank struct {
	arrived atomic.Uint64 // meetings that it has come to
	claimed atomic.Uint32
	_       [52]byte

	off    int64 // of the data that it offers, in its window; -1: none
	length uint32
	text   [controlPage - 76]byte // the signature
}

// The states of a group's end.
const (
	running = iota
	ending  // the reason is being written
	over
)

// Both must be a page.
var (
	_ [controlPage]byte = [unsafe.Sizeof(controlHead{})]byte{}
	_ [controlPage]byte = [unsafe.Sizeof(controlRank{})]byte{}
)

// control is a control file as this process maps it.
type control struct {
	head  *controlHead
	ranks []controlRank
	bytes []byte
}

// NewControl makes the control file of one attempt of a group of size ranks. It
// has no path; it goes to the ranks as an inherited descriptor.
func NewControl(size int) (*os.File, error) {
	if size < 1 || size > maxShared {
		return nil, fmt.Errorf("collective: a group of %d ranks, want 1 to %d", size, maxShared)
	}
	f, err := device.NewWindowFile("gofsdp-control")
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(int64(1+size) * controlPage); err != nil {
		return nil, errors.Join(fmt.Errorf("collective: control file: %w", err), f.Close())
	}
	c, err := mapControl(f, size)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	c.head.magic, c.head.size = controlMagic, uint64(size)
	return f, c.close()
}

// openControl maps a file of NewControl.
func openControl(f *os.File, size int) (*control, error) {
	if _, err := device.NewView(f); err != nil { // it cannot shrink
		return nil, fmt.Errorf("collective: control file: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("collective: control file: %w", err)
	}
	if want := int64(1+size) * controlPage; st.Size() != want {
		return nil, fmt.Errorf("collective: control file %s of %d bytes, want %d for %d ranks", f.Name(), st.Size(), want, size)
	}
	c, err := mapControl(f, size)
	if err != nil {
		return nil, err
	}
	if c.head.magic != controlMagic || c.head.size != uint64(size) {
		return nil, errors.Join(fmt.Errorf("collective: %s is no control file for %d ranks", f.Name(), size), c.close())
	}
	return c, nil
}

func mapControl(f *os.File, size int) (*control, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, (1+size)*controlPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("collective: mapping control file %s: %w", f.Name(), err)
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	return &control{
		head:  (*controlHead)(p),
		ranks: unsafe.Slice((*controlRank)(unsafe.Add(p, controlPage)), size),
		bytes: b,
	}, nil
}

func (c *control) close() error { return unix.Munmap(c.bytes) }

// FUTEX_WAIT and FUTEX_WAKE of futex(2), for words that processes share.
const (
	futexWait = 0
	futexWake = 1
)

// sleep returns when wake is no longer what was seen, when somebody woke this
// rank, after a signal, or when the time is over.
func (c *control) sleep(seen uint32, most time.Duration) {
	ts := unix.NsecToTimespec(int64(most))
	c.head.sleepers.Add(1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.head.wake)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&ts)), 0, 0)
	c.head.sleepers.Add(^uint32(0))
}

// wakeAll ends the sleep of all ranks.
func (c *control) wakeAll() {
	c.head.wake.Add(1)
	if c.head.sleepers.Load() != 0 {
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.head.wake)), futexWake, 1<<30, 0, 0, 0)
	}
}

func (h *controlHead) hasEnded() bool { return h.state.Load() != running }

// end writes why a rank ends the group, unless one has done so before.
func (h *controlHead) end(rank int, reason error) (first bool) {
	if !h.state.CompareAndSwap(running, ending) {
		return false
	}
	words := say(rank, reason)
	h.rank, h.deadline = uint32(words.rank), 0
	if words.deadline {
		h.deadline = 1
	}
	h.length = uint32(copy(h.text[:], words.text))
	h.state.Store(over)
	return true
}

// reason returns why another rank ended the group.
func (h *controlHead) reason() error {
	for range 100 {
		if h.state.Load() != ending {
			break
		}
		time.Sleep(time.Millisecond)
	}
	length := h.length
	if h.state.Load() != over || uint64(length) > uint64(len(h.text)) {
		return errors.New("a rank gave up and did not say why")
	}
	return &told{int(h.rank), h.deadline == 1, strings.ToValidUTF8(string(h.text[:length]), "")}
}
