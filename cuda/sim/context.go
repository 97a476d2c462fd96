//go:build sim && cgo && linux

package sim

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"syscall"

	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
)

// context is the primary context of a device. Its handle stays the same; what it
// holds goes when the last who retained it releases it.
type context struct {
	m        *Machine
	device   *device
	handle   uintptr
	retained int
	last     map[*stream]<-chan struct{} // the newest operation of each stream, also of those destroyed
	fault    atomic.Pointer[Fault]       // the first of its errors; every later call returns it
}

// inDriver runs a call that needs no context. Calls hold the machine's mutex
// except where they wait.
func inDriver(call string, f func(m *Machine) error) Result {
	m := running.Load()
	if m == nil {
		return NotInitialized
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count(call)
	err := f(m)
	result := resultOf(err)
	if err != nil && result != NotReady {
		m.refuse(call, err)
	}
	return result
}

// inDevice runs a call that needs cuInit, and no context.
func inDevice(call string, f func(m *Machine) error) Result {
	return inDriver(call, func(m *Machine) error {
		if !m.ready {
			return refuse(NotInitialized, "cuInit has not been called, or has failed")
		}
		return f(m)
	})
}

// inContext runs a call in the calling thread's context. An error of work that
// was started before comes first, as "may also return error codes from previous,
// asynchronous launches" says throughout the driver API reference.
func inContext(call string, f func(c *context) error) Result {
	return inDevice(call, func(m *Machine) error {
		c := m.current[syscall.Gettid()]
		switch {
		case c == nil:
			return refuse(InvalidContext, "thread %d has no current context", syscall.Gettid())
		case c.retained == 0:
			return refuse(ContextIsDestroyed, "the current context of thread %d has been released", syscall.Gettid())
		}
		if err := c.broken(); err != nil {
			return err
		}
		return f(c)
	})
}

// broken returns the error that the context has had, if any.
func (c *context) broken() error {
	if f := c.fault.Load(); f != nil {
		return refuse(f.Result, "since %v", f)
	}
	return nil
}

// wait blocks until something is done, and lets other threads call meanwhile.
func (c *context) wait(done <-chan struct{}) {
	c.m.mu.Unlock()
	defer c.m.mu.Lock()
	<-done
}

// drain waits for all work of the context, destroyed streams included, and
// returns what was wrong with it.
func (c *context) drain() error {
	for _, done := range maps.Clone(c.last) {
		c.wait(done)
	}
	return c.broken()
}

// failed takes the error of an operation. The first one breaks the context.
func (c *context) failed(stream, call string, err error) {
	f := &Fault{Device: c.device.number, Stream: stream, Call: call, Result: faultOf(err), Err: err}
	if f.Result != Success {
		c.fault.CompareAndSwap(nil, f)
	}
	c.m.report(f)
}

// unnoticed is a mistake that a device would not notice: it is reported, and the work goes on.
type unnoticed struct{ what string }

func (u *unnoticed) Error() string { return u.what }

// faultOf is the result that an operation's error gives: for what a kernel did,
// CUDA driver API reference, enum cudaError_enum. What a device would not notice
// in a kernel ends it here, as an unspecified failure.
func faultOf(err error) Result {
	var kernel *ptx.Fault
	var kept *unnoticed
	switch {
	case errors.As(err, &kept):
		return Success
	case !errors.As(err, &kernel):
		return resultOf(err)
	case kernel.Kind == ptx.OutOfBounds:
		return IllegalAddress
	case kernel.Kind == ptx.Misaligned:
		return MisalignedAddress
	}
	return LaunchFailed
}

// device returns the device of an ordinal.
func (m *Machine) device(n int) (*device, error) {
	if n < 0 || n >= len(m.devices) {
		return nil, refuse(InvalidDevice, "device %d of %d", n, len(m.devices))
	}
	return m.devices[n], nil
}

// retain is cuDevicePrimaryCtxRetain.
func (d *device) retain() *context {
	c := d.ctx
	if c.retained++; c.retained == 1 {
		c.last = map[*stream]<-chan struct{}{}
		c.fault.Store(nil)
		d.take(d.Taken)
	}
	return c
}

// release is cuDevicePrimaryCtxRelease: the last one destroys what the context holds.
func (d *device) release() error {
	c, m := d.ctx, d.ctx.m
	if c.retained == 1 {
		_ = c.drain() // a broken context can be released, too; others may retain it meanwhile
	}
	if c.retained == 0 {
		return refuse(InvalidContext, "device %d: its context is not retained", d.number)
	}
	if c.retained--; c.retained > 0 {
		return nil
	}
	if c.fault.Load() == nil {
		for _, name := range m.left(c) {
			m.lost = append(m.lost, fmt.Sprintf("%s, lost with its context", name))
		}
	}
	for _, a := range d.space.all() {
		if !a.freed.Load() {
			a.free()
		}
	}
	for _, a := range m.host.all() {
		if a.ctx == c {
			m.pinned -= uint64(len(a.Bytes))
			m.host.unpin(a)
		}
	}
	d.used = 0
	for _, s := range m.streams {
		if s.ctx == c && s.capture != nil {
			s.capture.close()
		}
	}
	drop(m.streams, func(s *stream) bool { return s.ctx == c })
	drop(m.events, func(e *event) bool { return e.ctx == c })
	drop(m.functions, func(f *function) bool { return f.module.ctx == c })
	drop(m.modules, func(o *module) bool { return o.ctx == c })
	drop(m.graphs, func(g *graph) bool { return g.ctx == c })
	drop(m.execs, func(x *executable) bool { return x.ctx == c })
	drop(m.blas, func(h *blas) bool { return h.ctx == c })
	return nil
}

// drop deletes the objects that are to go.
func drop[T any](objects map[uintptr]*T, gone func(*T) bool) {
	maps.DeleteFunc(objects, func(_ uintptr, o *T) bool { return gone(o) })
}
