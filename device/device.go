package device

// Device is one place that computes: a host with some threads, or one GPU.
// All its methods may be called by any goroutine.
type Device interface {
	// Info describes the device; it never changes.
	Info() Info
	// Alloc reserves size bytes of a kind of memory outside of the Go heap,
	// zeroed, aligned to at least 256 bytes. It is called before the first step
	// and never in it.
	Alloc(size int64, in Memory) (Buffer, error)
	// Free returns a Buffer of Alloc. No stream may be using it.
	Free(Buffer) error
	// NewStream makes an empty queue of operations. The name is for messages.
	NewStream(name string) Stream
	// NewEvent makes an Event that counts as already recorded.
	NewEvent() Event
	// Close ends all streams and frees all buffers.
	Close() error
}

// Stream executes what is launched on it in order. Two streams are ordered by
// events only. One goroutine at a time may use a Stream.
type Stream interface {
	// Launch queues op and returns; it blocks only while the queue is full.
	// The op must stay unchanged until it has run. An operation that fails
	// makes the stream fail: later ones are skipped until Sync reports it.
	Launch(op Op)
	// Record makes e fire once all that was queued before it has run.
	Record(e Event)
	// Wait holds back what is queued after it until e's last Record has fired.
	Wait(e Event)
	// Sync blocks until the queue is empty. It returns the first error since
	// the last Sync and clears it. After the device's Close it is an error.
	Sync() error
}

// Event marks a place in a stream. It belongs to the device that made it.
type Event interface {
	// Done reports whether the last Record has fired; it never blocks.
	Done() bool
}

// Info describes a device for records and messages.
type Info struct {
	Name    string // "AMD EPYC", "NVIDIA L4"
	Kind    string // "cpu", "cuda"
	ISA     string // what its kernels are chosen by: "avx512bf16", "sm_89"
	Threads int    // host threads that compute; 0 where that means nothing
	Memory  int64  // bytes that it can hold; 0: not known
	// BF16Native says that products of bf16 run faster than those of fp32.
	BF16Native bool
}

// Addr is a place in a device's memory. It is not a Go pointer: the garbage
// collector must never see it, and on a GPU the host cannot follow it.
type Addr uintptr

// Memory is a kind of memory that operations work on.
type Memory uint8

// The kinds of memory. A device may have one for all of them.
const (
	Local  Memory = iota // the device's own, the fastest
	Shared               // the device's own, where other ranks can read it
	Pinned               // the host's: large and slower
	Memories
)

func (m Memory) String() string { return [...]string{"local", "shared", "host"}[m] }

// Buffer is one allocation on a device.
type Buffer struct {
	Memory Memory
	Addr   Addr
	Size   int64
	// Host is the same memory as the host sees it; nil where it cannot.
	Host []byte
}
