//go:build sim && cgo && linux

package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
	host "github.com/gofsdp/gofsdp/device"
)

// Config says which machine is simulated.
type Config struct {
	Devices []Device
	Driver  int    // what cuDriverGetVersion says, 1000*major + 10*minor; 0: 12020
	Init    Result // what cuInit returns, where it is to fail although there are devices

	HostMemory uint64 // bytes that can be pinned; 0: any number

	Seed  uint64        // of the pauses, and of Order
	Pause time.Duration // the longest pause before an operation; 0: none

	// How kernels run: see ptx.Launch. Limit is against loops that never end.
	Order   ptx.Order
	Eager   bool
	Workers int
	Limit   int64

	NCCL NCCL
}

// Fault is what work did wrong after its call had returned.
type Fault struct {
	Device int
	Stream string // which stream it was in
	Call   string // the call that started it
	Result Result // what calls of the context return from then on; Success where a device would not notice
	Err    error  // the whole report, a *ptx.Fault where a kernel was at fault
}

// Error names device, stream and call.
func (f *Fault) Error() string {
	return fmt.Sprintf("device %d, %s, %s: %v: %v", f.Device, f.Stream, f.Call, f.Result, f.Err)
}

// Unwrap returns the report.
func (f *Fault) Unwrap() error { return f.Err }

// Machine is one simulated machine: what a process sees of the driver. There is
// one at a time, as there is one driver; its table is good while it lives.
type Machine struct {
	config  Config
	devices []*device
	host    space

	mu      sync.Mutex // of everything below, and of what contexts, streams, events and graphs hold
	ready   bool       // cuInit has succeeded
	current map[int]*context
	handles uintptr
	random  *rand.Rand
	pinned  uint64
	cores   host.Device // what computes products; nil before cuBLAS's first handle

	contexts  map[uintptr]*context
	streams   map[uintptr]*stream
	events    map[uintptr]*event
	modules   map[uintptr]*module
	functions map[uintptr]*function
	graphs    map[uintptr]*graph
	execs     map[uintptr]*executable
	blas      map[uintptr]*blas
	lt        ltState
	captures  []*capture
	lost      []string // what went down with its context
	nccl      ncclState

	working sync.WaitGroup // operations that have not ended
	held    sync.RWMutex   // locked while none may begin

	reports sync.Mutex
	faults  []*Fault
	refused []string
}

// device is a Device with its memory.
type device struct {
	Device
	number int
	space  space
	used   uint64
	most   uint64 // that was ever used
	calls  map[string]int
	ctx    *context
}

// take counts memory as used.
func (d *device) take(n uint64) {
	d.used += n
	d.most = max(d.most, d.used)
}

// Memory returns how many bytes of a device are used, and the most that ever were.
func (m *Machine) Memory(device int) (used, most uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.devices[device]
	return d.used, d.most
}

// Calls returns how often each function was called so far in the context of a device, refused calls
// included: of the driver, of cuBLAS and of NCCL.
func (m *Machine) Calls(device int) map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.devices[device].calls)
}

// count notes a call for the device whose context is current.
func (m *Machine) count(call string) {
	if c := m.current[syscall.Gettid()]; c != nil {
		c.device.calls[call]++
	}
}

// running is the machine that the table's functions act on.
var running atomic.Pointer[Machine]

// Start makes a machine and lets the table's functions act on it. It refuses
// while another one has not been closed.
func Start(c Config) (*Machine, error) {
	if c.Driver == 0 {
		c.Driver = 12020
	}
	m := &Machine{
		config:    c,
		current:   map[int]*context{},
		random:    rand.New(rand.NewPCG(c.Seed, 0x51)),
		contexts:  map[uintptr]*context{},
		streams:   map[uintptr]*stream{},
		events:    map[uintptr]*event{},
		modules:   map[uintptr]*module{},
		functions: map[uintptr]*function{},
		graphs:    map[uintptr]*graph{},
		execs:     map[uintptr]*executable{},
		blas:      map[uintptr]*blas{},
		lt:        ltState{map[uintptr]*operation{}, map[uintptr]*layout{}, map[uintptr]*preference{}},
	}
	for n, d := range c.Devices {
		own := &device{Device: d, number: n, calls: map[string]int{}}
		own.space.next = deviceBase + uint64(n)<<deviceBits
		own.ctx = &context{m: m, device: own, handle: m.handle(kindContext)}
		m.contexts[own.ctx.handle] = own.ctx
		m.devices = append(m.devices, own)
	}
	if !running.CompareAndSwap(nil, m) {
		return nil, errors.New("sim: a machine is running already; Close it first, as a process has one driver")
	}
	return m, nil
}

// Close waits for the work that is under way and ends the machine.
func (m *Machine) Close() {
	m.endComms()
	m.working.Wait()
	m.closeHub()
	running.CompareAndSwap(m, nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cores != nil {
		_ = m.cores.Close() // threads alone: the memory is this machine's
	}
	for _, d := range m.devices {
		d.space.unmap()
	}
	m.host.unmap()
}

// Wait blocks until no work is under way, so that Faults is complete.
func (m *Machine) Wait() { m.working.Wait() }

// Hold keeps work that has not begun from beginning, until release is called:
// for tests of what is true while work is queued. Close waits for that.
func (m *Machine) Hold() (release func()) {
	m.held.Lock()
	return sync.OnceFunc(m.held.Unlock)
}

// begin waits while work is held. What has begun is not.
func (m *Machine) begin() {
	m.held.RLock()
	defer m.held.RUnlock()
}

// Faults returns what work has done wrong so far, in the order it was found.
func (m *Machine) Faults() []*Fault {
	m.reports.Lock()
	defer m.reports.Unlock()
	return slices.Clone(m.faults)
}

// Refused returns one line for each call that got an error, with the reason;
// not for those that said "not ready". The first thousand are kept.
func (m *Machine) Refused() []string {
	m.reports.Lock()
	defer m.reports.Unlock()
	return slices.Clone(m.refused)
}

// Leaks names what has been made and not given back: allocations, pinned memory,
// streams, events, modules, graphs, handles of cuBLAS, descriptions of cuBLASLt and contexts, also what a
// context took down
// with it. Objects of a context that a fault has broken are left out, since
// nothing can give them back.
func (m *Machine) Leaks() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	leaks := slices.Concat(m.lost, m.lt.names())
	for _, d := range m.devices {
		if d.ctx.retained > 0 && d.ctx.fault.Load() == nil {
			leaks = append(leaks, fmt.Sprintf("device %d: its context has been retained %d times more than released", d.number, d.ctx.retained))
			leaks = append(leaks, m.left(d.ctx)...)
		}
	}
	return leaks
}

// left names what a context holds.
func (m *Machine) left(c *context) []string {
	var names []string
	add := func(mine bool, name string) {
		if mine {
			names = append(names, fmt.Sprintf("device %d: %s", c.device.number, name))
		}
	}
	for _, a := range slices.Concat(c.device.space.all(), m.host.all()) {
		add(a.ctx == c && !a.freed.Load(), a.String())
	}
	for _, s := range m.streams {
		add(s.ctx == c, s.name)
	}
	for _, e := range m.events {
		add(e.ctx == c, e.name)
	}
	for _, o := range m.modules {
		add(o.ctx == c, o.name)
	}
	for _, h := range m.blas {
		add(h.ctx == c, h.name)
	}
	for _, g := range m.graphs {
		add(g.ctx == c, g.name)
	}
	for _, x := range m.execs {
		add(x.ctx == c, x.name)
	}
	for _, o := range m.nccl.comms {
		add(o.ctx == c, o.name)
	}
	slices.Sort(names)
	return names
}

// The kinds of handles.
const (
	kindContext = 1 + iota
	kindStream
	kindEvent
	kindModule
	kindFunction
	kindGraph
	kindExecutable
	kindBLAS
	kindOperation
	kindLayout
	kindPreference
)

var kindNames = [...]string{
	"", "context", "stream", "event", "module", "function", "graph", "graph executable", "cuBLAS handle",
	"description of a product", "layout of a matrix", "preference",
}

const handleBase = 0x5100_0000_0000

// handle returns a new handle, which is none of the host's addresses and never comes again.
func (m *Machine) handle(kind int) uintptr {
	m.handles++
	return handleBase | uintptr(kind)<<36 | m.handles<<4
}

// number is the running number that a handle carries.
func number(handle uintptr) int { return int(handle & (1<<36 - 1) >> 4) }

// find returns what a handle stands for.
func find[T any](objects map[uintptr]*T, kind int, handle uintptr) (*T, error) {
	if o, ok := objects[handle]; ok {
		return o, nil
	}
	what := "is of no kind"
	switch k := int(handle >> 36 & 0xf); {
	case handle == 0:
		what = "is null"
	case handle&^(1<<40-1) != handleBase || k == 0 || k >= len(kindNames):
	case k == kind:
		what = "has been destroyed"
	default:
		what = "is that of a " + kindNames[k]
	}
	return nil, refuse(InvalidHandle, "handle %#x of a %s %s", handle, kindNames[kind], what)
}

// pause draws how long an operation waits before it starts.
func (m *Machine) pause() time.Duration {
	if m.config.Pause == 0 || m.random.IntN(4) != 0 {
		return 0
	}
	return time.Duration(m.random.Int64N(int64(m.config.Pause)))
}

// report keeps a fault.
func (m *Machine) report(f *Fault) {
	m.reports.Lock()
	defer m.reports.Unlock()
	m.faults = append(m.faults, f)
}

// refuse keeps why a call got an error.
func (m *Machine) refuse(call string, err error) {
	m.reports.Lock()
	defer m.reports.Unlock()
	if len(m.refused) < 1000 {
		m.refused = append(m.refused, call+": "+err.Error())
	}
}
