package device

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Executor runs the operations of one stream, one at a time, in order.
type Executor interface {
	// Run computes op and returns when it is done. Its errors name the
	// operation. A panic of it becomes the stream's error.
	Run(op Op) error
	// Close releases what the executor holds; its stream has ended.
	Close() error
}

// NewHost returns a Device whose memory is the host's and whose streams are
// goroutines. For each stream it opens an Executor, by the stream's name; where
// that fails, the stream fails and every Sync says why. Launch blocks while
// QueueLen commands are queued. Close waits for what is queued, closes the
// executors and frees all memory.
//
// A failed stream skips operations but still records, so that no other stream
// waits for ever.
func NewHost(info Info, open func(stream string) (Executor, error)) Device {
	return &host{info: info, memory: &hostMemory{}, open: open}
}

// NewReference returns a Device that runs every operation's Reference: slow,
// exact, and of nothing but Go.
func NewReference() Device {
	return NewHost(Info{Name: "reference", Kind: "cpu", ISA: "go", Threads: 1},
		func(string) (Executor, error) { return referenceExecutor{}, nil })
}

type referenceExecutor struct{}

func (referenceExecutor) Run(op Op) error { op.Reference(); return nil }
func (referenceExecutor) Close() error    { return nil }

// memory is the part of a Device that holds buffers.
type memory interface {
	Alloc(size int64, in Memory) (Buffer, error)
	Free(Buffer) error
	Close() error
}

// host is a Device of goroutines.
type host struct {
	info Info
	memory
	open  func(stream string) (Executor, error)
	inner bool          // memory and executors are another device's
	pause func() func() // nil, or what makes each stream's pauses

	mu      sync.Mutex
	streams []*hostStream
	closed  bool
}

func (h *host) Info() Info      { return h.info }
func (h *host) NewEvent() Event { return newHostEvent() }

func (h *host) NewStream(name string) Stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		panic(fmt.Sprintf("device: stream %s of a closed device", name))
	}
	s := newHostStream(name)
	s.inner = h.inner
	if exec, err := h.open(name); err != nil {
		s.broken = fmt.Errorf("stream %s: %w", name, err)
		s.err = s.broken
	} else {
		s.exec = exec
	}
	if h.pause != nil {
		s.pause = h.pause()
	}
	h.streams = append(h.streams, s)
	go s.run()
	return s
}

func (h *host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	var errs []error
	for _, s := range h.streams {
		s.closed.Store(true)
		close(s.queue)
	}
	for _, s := range h.streams {
		<-s.ended
		if s.exec != nil {
			errs = append(errs, s.exec.Close())
		}
	}
	return errors.Join(append(errs, h.memory.Close())...)
}

// hostMemory maps buffers outside of the Go heap.
type hostMemory struct {
	mu   sync.Mutex
	maps map[Addr][]byte // made by the first Alloc
}

// Alloc returns pages of their own, of one kind for all: zeroed, and aligned to
// a page.
func (m *hostMemory) Alloc(size int64, in Memory) (Buffer, error) {
	if size < 1 {
		return Buffer{}, fmt.Errorf("device: a buffer of %d bytes, want at least 1", size)
	}
	bytes, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return Buffer{}, fmt.Errorf("device: %d bytes of memory: %w", size, err)
	}
	adviseHugePages(bytes)
	addr := addrOf(bytes)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.maps == nil {
		m.maps = map[Addr][]byte{}
	}
	m.maps[addr] = bytes
	return Buffer{Memory: in, Addr: addr, Size: size, Host: bytes}, nil
}

func (m *hostMemory) Free(b Buffer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	bytes, ok := m.maps[b.Addr]
	if !ok {
		return fmt.Errorf("device: no buffer at address %#x to free", b.Addr)
	}
	delete(m.maps, b.Addr)
	return unix.Munmap(bytes)
}

func (m *hostMemory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for addr, bytes := range m.maps {
		errs = append(errs, unix.Munmap(bytes))
		delete(m.maps, addr)
	}
	return errors.Join(errs...)
}
