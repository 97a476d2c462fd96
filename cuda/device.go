//go:build cgo && linux

package cuda

// #include "blas.h"
// #include "call.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

// queueLen is how many commands a device queues before Launch blocks.
const queueLen = 1024

// gpu is a device.Device. One goroutine on a thread of its own, in which the GPU's primary context is
// current, makes all calls, in the order in which they were asked for; a Sync waits, and an event is
// asked, on the thread of the caller.
type gpu struct {
	driver  *Driver
	options Options
	info    device.Info
	name    string // in messages
	context C.CUcontext
	queue   chan command
	ended   chan struct{} // closed when the thread has ended

	gate   sync.Mutex     // of closed
	closed bool           // nobody may come any more
	users  sync.WaitGroup // who needs the thread or the context for now
	alive  sync.RWMutex   // held to read by who asks an event, for as long as that takes
	gone   bool           // under alive: there is no context any more

	compiled []Compiled // by New

	peaks     sync.Mutex // held while the peak is measured
	measuring *stream    // by which, once it has been; under peaks

	// Of the thread alone, from here on.
	filling   C.CUstream // zeroes new memory
	room      Room       // as it was when the device was opened
	priority  struct{ least, greatest C.int }
	modules   []C.CUmodule
	functions map[string]C.CUfunction
	shapes    map[C.gofsdp_product]bool       // of products that have been started
	ways      map[C.gofsdp_product]*algorithm // by shape, of products with a bias; nil where cuBLASLt has none
	works     map[device.Op]*work
	graphs    map[listed]*graph
	buffers   map[device.Addr]device.Buffer
	ones      device.Buffer // what biases are spread with; of no size where there is no cuBLAS
	workspace C.size_t      // of each stream's cuBLAS
	streams   []*stream
	events    []*event
}

// command is what the thread is to do, for a stream: launch op, or ops; record event, for the turn-th time;
// wait for event; or else say how the stream has fared. A command with a call is for no stream.
type command struct {
	stream *stream
	op     device.Op
	ops    []device.Op
	event  *event
	turn   uint64 // 0: wait
	call   func()
}

// New returns a GPU as a Device. The driver compiles all kernels for it first, which takes seconds
// where they are not in its cache (~/.nv/ComputeCache) from an earlier run. Local and Shared memory are
// the GPU's, which the host does not see; Pinned is the host's, which both see at one address.
//
// A Launch, Record or Wait blocks only while 1,024 of them are queued, of all streams together. A
// failed stream skips operations but still records. An operation that implements Native starts itself.
func New(d *Driver, o Options) (device.Device, error) {
	p, err := d.Properties(o.Ordinal)
	if err == nil {
		err = p.check()
	}
	if err == nil {
		err = d.noBLAS
	}
	if err != nil {
		return nil, err
	}
	g := &gpu{
		driver: d, options: o, name: fmt.Sprintf("device %d", o.Ordinal),
		info:  p.Info(),
		queue: make(chan command, queueLen), ended: make(chan struct{}),
		functions: map[string]C.CUfunction{}, shapes: map[C.gofsdp_product]bool{}, ways: map[C.gofsdp_product]*algorithm{}, works: map[device.Op]*work{}, graphs: map[listed]*graph{},
		buffers: map[device.Addr]device.Buffer{},
	}
	go g.serve()
	if err := g.Do(func() error { return g.open(p) }); err != nil {
		_ = g.Close() // the first error is the one that tells
		return nil, err
	}
	return g, nil
}

func (g *gpu) Info() device.Info { return g.info }

// Runs says what of an operation the device cannot do, nil where it can: before the operands have memory.
func (g *gpu) Runs(op device.Op) error { return Runs(op) }

// serve is the thread. It ends with the goroutine, since it stays locked, and so the context is current
// nowhere afterwards.
func (g *gpu) serve() {
	runtime.LockOSThread()
	defer close(g.ended)
	for c := range g.queue {
		switch {
		case c.call != nil:
			c.call()
		case c.op != nil:
			c.stream.perform(c.op)
		case len(c.ops) > 0:
			c.stream.performAll(c.ops)
		case c.event == nil:
			c.stream.answer()
		case c.turn > 0:
			c.stream.record(c.event, c.turn)
		default:
			c.stream.wait(c.event)
		}
	}
}

// Do runs f on the thread of the device, with the GPU's context current, behind what is queued: for
// libraries that take the device from the thread, such as NCCL. F must not use the device or its streams.
func (g *gpu) Do(f func() error) error {
	if !g.enter() {
		return fmt.Errorf("cuda: %s is closed", g.name)
	}
	defer g.users.Done()
	answer := make(chan error, 1)
	g.queue <- command{call: func() { answer <- f() }}
	return <-answer
}

// enter lets in who needs the thread or the context, and is to call users.Done; false once the device is closing.
func (g *gpu) enter() bool {
	g.gate.Lock()
	defer g.gate.Unlock()
	if !g.closed {
		g.users.Add(1)
	}
	return !g.closed
}

// failed makes an error of a result, nil of success.
func (g *gpu) failed(r C.CUresult, call string) error {
	if r == 0 {
		return nil
	}
	return g.driver.failure(r, call, g.name)
}

// open prepares the thread and the context.
func (g *gpu) open(p Properties) error {
	table := g.driver.table
	if err := g.failed(C.call_cuDevicePrimaryCtxRetain(table, &g.context, C.CUdevice(p.Ordinal)), "cuDevicePrimaryCtxRetain"); err != nil {
		return err
	}
	if err := g.failed(C.call_cuCtxSetCurrent(table, g.context), "cuCtxSetCurrent"); err != nil {
		return err
	}
	before, total, err := g.unused()
	if err != nil {
		return err
	}
	if err := g.failed(C.call_cuCtxGetStreamPriorityRange(table, &g.priority.least, &g.priority.greatest), "cuCtxGetStreamPriorityRange"); err != nil {
		return err
	}
	if err := g.failed(C.call_cuStreamCreateWithPriority(table, &g.filling, nonBlocking, g.priority.least), "cuStreamCreateWithPriority"); err != nil {
		return err
	}
	if g.driver.blas != nil {
		g.workspace = C.size_t(Workspace(p.Major))
		if err := g.makeOnes(); err != nil {
			return err
		}
	}
	if err := g.loadKernels(p); err != nil {
		return err
	}
	after, _, err := g.unused()
	g.room = Room{Context: total - before, Kernels: before - after}
	return err
}

// Alloc implements device.Device.
func (g *gpu) Alloc(size int64, in device.Memory) (b device.Buffer, err error) {
	if size < 1 {
		return b, fmt.Errorf("cuda: a buffer of %d bytes, want at least 1", size)
	}
	err = g.Do(func() error {
		if in == device.Pinned {
			b, err = g.allocHost(size)
		} else {
			b, err = g.alloc(size, in)
		}
		if err == nil {
			g.buffers[b.Addr] = b
		}
		return err
	})
	return b, err
}

// alloc returns memory of the GPU's.
func (g *gpu) alloc(size int64, in device.Memory) (device.Buffer, error) {
	table := g.driver.table
	var at C.CUdeviceptr
	if r := C.call_cuMemAlloc(table, &at, C.size_t(size)); r != 0 {
		e := g.driver.failure(r, "cuMemAlloc", g.name)
		e.Detail = fmt.Sprintf("%d bytes of %v memory", size, in)
		var unused, total C.size_t
		if C.call_cuMemGetInfo(table, &unused, &total) == 0 {
			e.Detail += fmt.Sprintf(", of which the device has %d free of %d", unused, total)
		}
		return device.Buffer{}, e
	}
	err := g.failed(C.call_cuMemsetD8Async(table, at, 0, C.size_t(size), g.filling), "cuMemsetD8Async")
	if err == nil {
		err = g.failed(C.call_cuStreamSynchronize(table, g.filling), "cuStreamSynchronize")
	}
	if err == nil && at%256 != 0 {
		err = fmt.Errorf("cuda: %s: the driver gives memory at %#x, which is no multiple of 256", g.name, uint64(at))
	}
	if err != nil {
		C.call_cuMemFree(table, at)
		return device.Buffer{}, err
	}
	return device.Buffer{Memory: in, Addr: device.Addr(at), Size: size}, nil
}

// allocHost returns memory of the host's that the GPU reads and writes.
func (g *gpu) allocHost(size int64) (device.Buffer, error) {
	const portable, mapped = 1, 2 // CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP
	table := g.driver.table
	var host unsafe.Pointer
	if r := C.call_cuMemHostAlloc(table, &host, C.size_t(size), portable|mapped); r != 0 {
		e := g.driver.failure(r, "cuMemHostAlloc", g.name)
		e.Detail = fmt.Sprintf("%d bytes of the host's memory, pinned", size)
		return device.Buffer{}, e
	}
	var at C.CUdeviceptr
	err := g.failed(C.call_cuMemHostGetDevicePointer(table, &at, host, 0), "cuMemHostGetDevicePointer")
	if err == nil && uintptr(at) != uintptr(host) {
		err = fmt.Errorf("cuda: %s sees the host's memory at other addresses (%#x for %p), which is not supported", g.name, uint64(at), host)
	}
	if err != nil {
		C.call_cuMemFreeHost(table, host)
		return device.Buffer{}, err
	}
	b := device.Buffer{Memory: device.Pinned, Addr: device.Addr(at), Size: size, Host: unsafe.Slice((*byte)(host), size)}
	clear(b.Host)
	return b, nil
}

// Free implements device.Device.
func (g *gpu) Free(b device.Buffer) error {
	return g.Do(func() error {
		mine, ok := g.buffers[b.Addr]
		if !ok {
			return fmt.Errorf("cuda: %s has no buffer at address %#x to free", g.name, b.Addr)
		}
		delete(g.buffers, b.Addr)
		// Operations were checked against the buffers that there were.
		return errors.Join(g.forget(), g.release(mine))
	})
}

func (g *gpu) release(b device.Buffer) error {
	if b.Host != nil {
		return g.failed(C.call_cuMemFreeHost(g.driver.table, unsafe.Pointer(unsafe.SliceData(b.Host))), "cuMemFreeHost")
	}
	return g.failed(C.call_cuMemFree(g.driver.table, C.CUdeviceptr(b.Addr)), "cuMemFree")
}

// buffer returns the buffer that holds all of t.
func (g *gpu) buffer(t device.Tensor) (device.Buffer, bool) {
	for addr, b := range g.buffers {
		if t.Addr >= addr && int64(t.Addr-addr)+t.Bytes() <= b.Size {
			return b, true
		}
	}
	return device.Buffer{}, false
}

// NewStream implements device.Device. A stream has a cuBLAS of its own, and takes that one's workspace. Both wait
// for the GPU, so streams are made before the first collective. Where there can be none, each Sync says why.
func (g *gpu) NewStream(name string) device.Stream {
	s := &stream{gpu: g, name: name, answers: make(chan answer, 1)}
	s.err = g.Do(func() error {
		priority := g.priority.least
		if slices.Contains(g.options.Urgent, name) {
			priority = g.priority.greatest
		}
		g.streams = append(g.streams, s)
		err := g.failed(C.call_cuStreamCreateWithPriority(g.driver.table, &s.handle, nonBlocking, priority), "cuStreamCreateWithPriority")
		if err == nil {
			err = g.failed(C.call_cuEventCreate(g.driver.table, &s.finished, blockingSync|disableTiming), "cuEventCreate")
		}
		if err == nil && g.driver.blas != nil {
			err = s.blas.open(s)
		}
		return err
	})
	if s.err != nil {
		s.broken = fmt.Errorf("stream %s: %w", name, s.err)
		s.err = s.broken
	}
	return s
}

// NewEvent implements device.Device. Where there can be none, streams that record it fail.
func (g *gpu) NewEvent() device.Event {
	e := &event{gpu: g}
	e.broken = g.Do(func() error {
		g.events = append(g.events, e)
		return g.failed(C.call_cuEventCreate(g.driver.table, &e.handle, disableTiming), "cuEventCreate")
	})
	return e
}

// Close implements device.Device: it waits for what is queued and for who waits, and lets nobody else come. Its
// error is the first. Events can be asked meanwhile: what ends a hung collective, and so a wait for it, does.
func (g *gpu) Close() (err error) {
	g.gate.Lock()
	before := g.closed
	g.closed = true
	g.gate.Unlock()
	if before {
		return nil
	}
	g.users.Wait()
	g.queue <- command{call: func() {
		err = g.drain()
		g.alive.Lock()
		defer g.alive.Unlock()
		g.gone = true
		if shut := g.shut(); err == nil {
			err = shut
		}
	}}
	close(g.queue)
	<-g.ended
	return err
}

// drain waits for all that the GPU has to do.
func (g *gpu) drain() error {
	if g.context == nil {
		return nil
	}
	return g.failed(C.call_cuCtxSynchronize(g.driver.table), "cuCtxSynchronize")
}

// shut gives everything back that there is, also of a device that was not opened to the end.
func (g *gpu) shut() (first error) {
	if g.context == nil {
		return nil
	}
	table := g.driver.table
	keep := func(r C.CUresult, call string) {
		if err := g.failed(r, call); first == nil {
			first = err
		}
	}
	if err := g.forget(); first == nil {
		first = err
	}
	for _, s := range g.streams {
		if err := s.blas.close(g); first == nil {
			first = err
		}
		if s.finished != nil {
			keep(C.call_cuEventDestroy(table, s.finished), "cuEventDestroy")
		}
		if s.handle != nil {
			keep(C.call_cuStreamDestroy(table, s.handle), "cuStreamDestroy")
		}
	}
	for _, e := range g.events {
		if e.handle != nil {
			keep(C.call_cuEventDestroy(table, e.handle), "cuEventDestroy")
		}
	}
	if g.filling != nil {
		keep(C.call_cuStreamDestroy(table, g.filling), "cuStreamDestroy")
	}
	for _, m := range g.modules {
		keep(C.call_cuModuleUnload(table, m), "cuModuleUnload")
	}
	for _, b := range g.buffers {
		if err := g.release(b); first == nil {
			first = err
		}
	}
	if g.ones.Size > 0 {
		if err := g.release(g.ones); first == nil {
			first = err
		}
	}
	keep(C.call_cuCtxSetCurrent(table, nil), "cuCtxSetCurrent")
	keep(C.call_cuDevicePrimaryCtxRelease(table, C.CUdevice(g.options.Ordinal)), "cuDevicePrimaryCtxRelease")
	return first
}
