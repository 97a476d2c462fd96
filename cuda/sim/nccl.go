//go:build sim && cgo && linux

package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
)

// NCCL says how the simulated NCCL is. Its communicators join devices of one
// machine: goroutines or threads of one process. What a collective does it does
// in its streams, once the streams of all ranks have come to it; sums are made in
// the order of ranks, in fp32 for bf16.
//
// Where it is stricter than NCCL, on purpose: a thread must have the context of
// the communicator's device; addresses are checked, as with NCCL_CHECK_POINTERS;
// a communicator is used on one thread at a time; ranges that overlap where NCCL
// does not say that they may are reported, and so are ranks that do not do the
// same, which both are told as an error of usage later.
//
// What is refused by name, as ncclInvalidUsage: reductions other than sums, and
// types other than int32, float32, float64 and bfloat16, and communicators that
// are made within a group. Ranks in several processes are for later.
//
// Where NCCL's documentation is silent, it was decided: a peer that is aborted
// leaves the others waiting; a collective after ncclCommFinalize is
// ncclInvalidUsage, a second Finalize ncclInvalidArgument.
type NCCL struct {
	Version int      // what ncclGetVersion says; 0: 22907
	Polls   int      // how often a call that does not block is said to be under way; 0: twice
	Nets    []string // networks that a communicator may demand; nil: Socket
}

// NCCLResult is an ncclResult_t of 2.29; NCCL API reference, "Types".
type NCCLResult int32

// The results of NCCL.
const (
	NCCLSuccess            NCCLResult = 0
	NCCLUnhandledCudaError NCCLResult = 1
	NCCLSystemError        NCCLResult = 2
	NCCLInternalError      NCCLResult = 3
	NCCLInvalidArgument    NCCLResult = 4
	NCCLInvalidUsage       NCCLResult = 5
	NCCLRemoteError        NCCLResult = 6
	NCCLInProgress         NCCLResult = 7
)

// ncclTexts are what ncclGetErrorString says.
var ncclTexts = map[NCCLResult]string{
	NCCLSuccess:            "no error",
	NCCLUnhandledCudaError: "unhandled cuda error",
	NCCLSystemError:        "unhandled system error",
	NCCLInternalError:      "internal error",
	NCCLInvalidArgument:    "invalid argument",
	NCCLInvalidUsage:       "invalid usage",
	NCCLRemoteError:        "remote process exited or there was a network error",
	NCCLInProgress:         "NCCL operation in progress",
}

func (r NCCLResult) String() string { return fmt.Sprintf("ncclResult %d (%s)", int32(r), ncclTexts[r]) }

// ncclRefusal is an error that a call returns as a number, with the reason.
type ncclRefusal struct {
	result NCCLResult
	why    string
}

func (r *ncclRefusal) Error() string { return r.result.String() + ": " + r.why }

func deny(r NCCLResult, format string, args ...any) error {
	return &ncclRefusal{r, fmt.Sprintf(format, args...)}
}

// ncclState is what a machine has of NCCL; under the machine's mutex.
type ncclState struct {
	version int // 0: as configured
	last    string
	ids     int
	groups  map[[128]byte]*commGroup
	comms   map[uintptr]*comm
	batches map[int]*batch // by thread
}

// SetNCCLVersion changes what ncclGetVersion says from now on.
func (m *Machine) SetNCCLVersion(v int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nccl.version = v
}

// Disconnect is the end of the process of a rank, as its peers see it: theirs is
// a remote error in all communicators that it is in.
func (m *Machine) Disconnect(rank int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.nccl.comms {
		if c.group.has(rank) && c.rank != rank {
			c.group.fault(c, NCCLRemoteError)
		}
	}
}

// endComms ends all communicators, so that nothing waits for a peer any more.
func (m *Machine) endComms() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.nccl.comms {
		c.end()
	}
}

// kindComm is the kind of communicators' handles.
const kindComm = 12

// batch are the collectives between ncclGroupStart and ncclGroupEnd.
type batch struct {
	depth int
	calls []func() error
	comms []*comm
	err   error
}

// inNCCL runs a call.
func inNCCL(call string, f func(m *Machine) error) NCCLResult {
	m := running.Load()
	if m == nil {
		return NCCLUnhandledCudaError
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := f(m)
	var r *ncclRefusal
	switch {
	case err == nil:
		return NCCLSuccess
	case errors.Is(err, errInProgress):
		return NCCLInProgress
	}
	m.refuse(call, err)
	m.nccl.last = err.Error()
	if errors.As(err, &r) {
		return r.result
	}
	return NCCLUnhandledCudaError // a refusal of the driver's
}

var errInProgress = errors.New("in progress")

// newID is ncclGetUniqueId.
func (m *Machine) newID() (id [128]byte) {
	m.nccl.ids++
	copy(id[:], "sim unique id ")
	binary.LittleEndian.PutUint64(id[120:], uint64(m.nccl.ids))
	if m.nccl.groups == nil {
		m.nccl.groups = map[[128]byte]*commGroup{}
	}
	m.nccl.groups[id] = &commGroup{m: m, ready: make(chan struct{}), rounds: map[int]*round{}}
	return id
}

// comm is one rank's end of a communicator.
type comm struct {
	m        *Machine
	ctx      *context
	group    *commGroup
	rank     int
	handle   uintptr
	name     string
	blocking bool

	polls     int             // answers "in progress" that are to come
	then      func() error    // what is done after them
	finalized bool            // ncclCommFinalize has been called
	tail      <-chan struct{} // closed when its newest collective has ended
	stopped   chan struct{}   // closed when it has been aborted or destroyed
	stop      sync.Once

	// Under the group's mutex.
	async   NCCLResult
	started int // collectives that have begun in a stream
}

// end makes everything that waits for others stop waiting.
func (c *comm) end() { c.stop.Do(func() { close(c.stopped); c.group.withdraw(c) }) }

// commConfig is what matters of an ncclConfig_t.
type commConfig struct {
	size     uint64
	magic    uint32
	version  uint32
	blocking int32
	net      string
	name     string
}

// check is parseCommConfig.
func (g commConfig) check(m *Machine) error {
	nets := m.config.NCCL.Nets
	if nets == nil {
		nets = []string{"Socket"}
	}
	switch {
	case g.magic != 0xcafebeef:
		return deny(NCCLInvalidArgument, "magic %#x: ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER", g.magic)
	case g.size != 72 || g.version != 22700:
		return deny(NCCLInvalidArgument, "a configuration of %d bytes that says version %d: 72 and 22700 are what 2.27 has", g.size, g.version)
	case g.blocking != 0 && g.blocking != 1:
		return deny(NCCLInvalidArgument, "blocking %d", g.blocking)
	case g.net != "" && !slices.Contains(nets, g.net):
		return deny(NCCLInvalidUsage, "Failed to initialize any NET plugin: %q is demanded, and there is %q", g.net, nets)
	}
	return nil
}

// join is ncclCommInitRankConfig.
func (m *Machine) join(ranks int, id [128]byte, rank int, config commConfig) (*comm, error) {
	if ranks < 1 || rank < 0 || rank >= ranks {
		return nil, deny(NCCLInvalidArgument, "rank %d of %d", rank, ranks)
	}
	if err := config.check(m); err != nil {
		return nil, err
	}
	ctx := m.current[syscall.Gettid()]
	if ctx == nil || ctx.retained == 0 {
		return nil, deny(NCCLUnhandledCudaError, "the thread has no current context, and so no device")
	}
	g := m.nccl.groups[id]
	if g == nil {
		return nil, deny(NCCLSystemError, "nobody listens where this unique id says")
	}
	if m.nccl.batches[syscall.Gettid()] != nil {
		return nil, deny(NCCLInvalidUsage, "a communicator in a group")
	}
	c := &comm{m: m, ctx: ctx, group: g, rank: rank, handle: m.handle(kindComm), blocking: config.blocking == 1, tail: closed, stopped: make(chan struct{})}
	c.name = fmt.Sprintf("communicator %d, %q, rank %d of %d", number(c.handle), config.name, rank, ranks)
	if err := g.join(c, ranks); err != nil {
		return nil, err
	}
	if m.nccl.comms == nil {
		m.nccl.comms = map[uintptr]*comm{}
	}
	m.nccl.comms[c.handle] = c
	if !c.blocking {
		c.polls = m.polls()
		return c, errInProgress
	}
	m.mu.Unlock()
	select {
	case <-g.ready:
	case <-c.stopped:
	}
	m.mu.Lock()
	if r := g.state(c); r != NCCLSuccess {
		_ = c.abort() // cannot fail
		return nil, deny(r, "%s: %s", c.name, g.reason())
	}
	return c, nil
}

// polls is how often a call that does not block is said to be under way.
func (m *Machine) polls() int {
	if m.config.NCCL.Polls == 0 {
		return 2
	}
	return m.config.NCCL.Polls
}

// comm returns the communicator of a handle.
func (m *Machine) comm(handle uintptr) (*comm, error) {
	if c := m.nccl.comms[handle]; c != nil {
		return c, nil
	}
	if handle == 0 {
		return nil, deny(NCCLInvalidArgument, "a null communicator")
	}
	return nil, deny(NCCLInvalidArgument, "Error: corrupted comm object detected: %#x is none, or has been destroyed or aborted", handle)
}

// asyncError is ncclCommGetAsyncError: also what moves a call on that does not block.
func (c *comm) asyncError() NCCLResult {
	if r := c.group.state(c); r != NCCLSuccess {
		return r
	}
	if c.polls > 0 {
		c.polls--
		return NCCLInProgress
	}
	if then := c.then; then != nil {
		if err := then(); errors.Is(err, errInProgress) {
			return NCCLInProgress
		} else if err != nil {
			c.m.refuse("a call that does not block", err)
			c.m.nccl.last = err.Error()
			c.group.fault(c, NCCLUnhandledCudaError)
			return NCCLUnhandledCudaError
		}
		c.then = nil
	}
	return NCCLSuccess
}

// ready is ncclCommEnsureReady: the last call must be through.
func (c *comm) ready() error {
	switch r := c.group.state(c); {
	case r != NCCLSuccess && r != NCCLInProgress:
		return deny(r, "%s: %s", c.name, c.group.reason())
	case r == NCCLInProgress || c.polls > 0 || c.then != nil:
		return deny(NCCLInvalidArgument, "%s: attempt to use it before the previous operation returned ncclSuccess", c.name)
	}
	return nil
}

// proceed carries something out: now, or when a call that does not block has been asked about often enough.
func (c *comm) proceed(do func() error) error {
	if c.blocking {
		return do()
	}
	c.polls, c.then = c.m.polls(), do
	return errInProgress
}

// finalize is ncclCommFinalize: it waits for what is in the streams.
func (c *comm) finalize() error {
	if err := c.ready(); err != nil {
		return err
	}
	if c.finalized {
		return deny(NCCLInvalidArgument, "%s: ncclCommFinalize has been called", c.name)
	}
	c.finalized = true
	if c.blocking {
		c.ctx.wait(c.tail)
		return nil
	}
	return c.proceed(func() error {
		if !isDone(c.tail) {
			return errInProgress
		}
		return nil
	})
}

// destroy is ncclCommDestroy.
func (c *comm) destroy() error {
	if err := c.ready(); err != nil {
		return err
	}
	if !c.finalized {
		c.ctx.wait(c.tail)
	}
	return c.abort()
}

// abort is ncclCommAbort.
func (c *comm) abort() error {
	c.end()
	delete(c.m.nccl.comms, c.handle)
	return nil
}

// groupStart is ncclGroupStart.
func (m *Machine) groupStart() error {
	if m.nccl.batches == nil {
		m.nccl.batches = map[int]*batch{}
	}
	b := m.nccl.batches[syscall.Gettid()]
	if b == nil {
		b = &batch{}
		m.nccl.batches[syscall.Gettid()] = b
	}
	b.depth++
	return nil
}

// groupEnd is ncclGroupEnd: the outermost starts what is in the group, or nothing where a call was refused.
func (m *Machine) groupEnd() error {
	b := m.nccl.batches[syscall.Gettid()]
	if b == nil {
		return deny(NCCLInvalidUsage, "ncclGroupEnd: not in a group call")
	}
	if b.depth--; b.depth > 0 {
		return nil
	}
	delete(m.nccl.batches, syscall.Gettid())
	if b.err != nil {
		return b.err
	}
	var result error
	for n, c := range b.comms {
		if slices.Contains(b.comms[:n], c) {
			continue
		}
		result = c.proceed(func() error {
			for i, call := range b.calls {
				if b.comms[i] == c {
					if err := call(); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if result != nil && !errors.Is(result, errInProgress) {
			return result
		}
	}
	return result
}
