//go:build sim && cgo && linux

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
)

// NCCL says how the simulated NCCL is. Its communicators join devices of one
// machine and of others: goroutines or threads of one process, and processes of
// one computer, each with a machine of its own. The process that made the unique
// id brings them together (hub), and so must live as long as the communicator;
// with NCCL until all have joined. What a collective does it does in its streams,
// once the streams of all ranks have come to it; sums are made in the order of
// ranks, in fp32 for bf16.
//
// Where it is stricter than NCCL, on purpose: a thread must have the context of
// the communicator's device, also to end one, where NCCL would make a context on
// another device, which is reported; addresses are checked, as with NCCL_CHECK_POINTERS;
// a communicator is used on one thread at a time; ranges that overlap where NCCL
// does not say that they may are reported, and so are ranks that do not do the
// same, which all are told as an error of usage later.
//
// What is refused by name, as ncclInvalidUsage: reductions other than sums, and
// types other than int32, float32, float64 and bfloat16, and communicators that
// are made within a group.
//
// As in NCCL two ranks are on one GPU where host and place on the PCI bus are the
// same, and NCCL_HOSTID stands for the host where it is set: so processes on one
// computer can be several nodes.
//
// Where NCCL's documentation is silent, or leaves it open, it was decided: a peer
// that is aborted or leaves in order leaves the others waiting; one that dies is
// ncclRemoteError, at once. NCCL promises neither: of a death it tells where the
// connection goes over a network, and in one host nothing at all (its authors in
// NCCL's issue 279), so a caller needs a deadline of its own as well. A collective
// after ncclCommFinalize is ncclInvalidUsage, a second Finalize ncclInvalidArgument.
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
	hub     *hub // nil until the first unique id
	comms   map[uintptr]*comm
	batches map[int]*batch // by thread

	listening sync.WaitGroup // for the hubs of comms
	aborts    sync.RWMutex   // locked while none may return
	held      bool           // calls that do not block stay under way
}

// SetNCCLVersion changes what ncclGetVersion says from now on.
func (m *Machine) SetNCCLVersion(v int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nccl.version = v
}

// Disconnect is the end of the process of a rank, as its peers on this machine see it: theirs is a remote error
// in all communicators that it is in.
func (m *Machine) Disconnect(rank int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.nccl.comms {
		if rank < c.ranks && rank != c.rank {
			c.fault(NCCLRemoteError, fmt.Sprintf("rank %d has been disconnected", rank))
		}
	}
}

// HoldAborts keeps ncclCommAbort from returning until release is called, as NCCL does where what it waits for does
// not come. What the communicator has in streams ends all the same.
func (m *Machine) HoldAborts() (release func()) {
	m.nccl.aborts.Lock()
	return sync.OnceFunc(m.nccl.aborts.Unlock)
}

// HoldCalls keeps what calls that do not block have asked for from being carried out until release is called, as
// NCCL does where it connects ranks first, and some of them have not come.
func (m *Machine) HoldCalls() (release func()) {
	set := func(held bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.nccl.held = held
	}
	set(true)
	return func() { set(false) }
}

// endComms ends all communicators, so that nothing waits for a peer any more.
func (m *Machine) endComms() {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.nccl.comms))
	m.mu.Unlock()
	var ends sync.WaitGroup
	for _, c := range all {
		ends.Go(c.end)
	}
	ends.Wait()
}

// closeHub ends what others of this machine's unique ids need, and waits for all that speaks with hubs.
func (m *Machine) closeHub() {
	m.mu.Lock()
	h := m.nccl.hub
	m.mu.Unlock()
	if h != nil {
		h.close()
	}
	m.nccl.listening.Wait()
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
	m.count(call)
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
func (m *Machine) newID() ([128]byte, error) {
	if m.nccl.hub == nil {
		h, err := openHub(m.refuse)
		if err != nil {
			return [128]byte{}, err
		}
		m.nccl.hub = h
	}
	return m.nccl.hub.newID(), nil
}

// ncclVersion is ncclGetVersion.
func (m *Machine) ncclVersion() int { return cmp.Or(m.nccl.version, m.config.NCCL.Version, 22907) }

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
	if m.nccl.batches[syscall.Gettid()] != nil {
		return nil, deny(NCCLInvalidUsage, "a communicator in a group")
	}
	c := &comm{
		m: m, ctx: ctx, rank: rank, ranks: ranks, handle: m.handle(kindComm), blocking: config.blocking == 1, tail: closed,
		stopped: make(chan struct{}), known: make(chan struct{}), answered: make(chan struct{}), turn: make(chan struct{}, 1),
	}
	c.name = fmt.Sprintf("communicator %d, %q, rank %d of %d", number(c.handle), config.name, rank, ranks)
	if m.nccl.comms == nil {
		m.nccl.comms = map[uintptr]*comm{}
	}
	m.nccl.comms[c.handle] = c
	hub, who := m.nccl.hub, hello{ID: id, Version: m.ncclVersion(), Ranks: ranks, Rank: rank, Host: hostID(), Bus: ctx.device.busID()}
	m.mu.Unlock()
	err := c.enter(hub, who)
	if err == nil && c.blocking {
		select {
		case <-c.known:
		case <-c.stopped:
		}
	}
	m.mu.Lock()
	if err == nil && c.blocking {
		if r := c.state(); r != NCCLSuccess {
			err = deny(r, "%s: %s", c.name, c.reason())
		}
	}
	if err != nil {
		_ = c.abort() // cannot fail
		return nil, err
	}
	if !c.blocking {
		c.polls = m.polls()
		return c, errInProgress
	}
	return c, nil
}

// hostID is what machines differ in, as NCCL's getHostHash has it.
func hostID() string {
	if id := os.Getenv("NCCL_HOSTID"); id != "" {
		return id
	}
	name, _ := os.Hostname() // without one all processes are on one host, as they are
	return name
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
	if r := c.state(); r != NCCLSuccess {
		return r
	}
	if c.m.nccl.held && c.then != nil {
		return NCCLInProgress
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
			c.fault(NCCLUnhandledCudaError, err.Error())
			return NCCLUnhandledCudaError
		}
		c.then = nil
	}
	return NCCLSuccess
}

// ready is ncclCommEnsureReady: the last call must be through.
func (c *comm) ready() error {
	switch r := c.state(); {
	case r != NCCLSuccess && r != NCCLInProgress:
		return deny(r, "%s: %s", c.name, c.reason())
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

// near reports a call on a thread whose device is not the communicator's.
func (c *comm) near(call string) {
	if c.m.current[syscall.Gettid()] != c.ctx {
		c.m.report(&Fault{Device: c.ctx.device.number, Stream: c.name, Call: call, Err: errors.New("on a thread whose device is not its own: NCCL would make a context on device 0")})
	}
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

// abort ends it, which is what ncclCommAbort does.
func (c *comm) abort() error {
	delete(c.m.nccl.comms, c.handle)
	c.m.mu.Unlock()
	defer c.m.mu.Lock()
	c.end()
	return nil
}

// aborted is ncclCommAbort as its caller has it: it may last.
func (c *comm) aborted() error {
	c.near("ncclCommAbort")
	err := c.abort()
	c.m.mu.Unlock()
	defer c.m.mu.Lock()
	c.m.nccl.aborts.RLock()
	defer c.m.nccl.aborts.RUnlock()
	return err
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
