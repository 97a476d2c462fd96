//go:build sim && cgo && linux

package sim

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/gofsdp/gofsdp/cpu"
	host "github.com/gofsdp/gofsdp/device"
)

// blas is a handle of cuBLAS's: cuBLAS library reference, "cuBLAS context".
type blas struct {
	ctx       *context
	handle    uintptr
	name      string
	stream    uintptr // as it was set; looked at by products
	mode      int
	workspace *span // nil while it is cuBLAS's own
	cores     *cores
}

// Modes of cublasMath_t. The last is a flag beside one of the others.
const (
	mathDefault    = 0
	mathPedantic   = 2
	mathTF32       = 3
	mathInFullSums = 16 // CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
)

// leastWorkspace is what keeps a product from CUBLAS_STATUS_ALLOC_FAILED: cublasSetWorkspace.
const leastWorkspace = 16 << 10

// inBLAS runs a call of cuBLAS's.
func inBLAS(call string, f func(m *Machine) error) Status {
	m := running.Load()
	if m == nil {
		return BLASNotInitialized
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count(call)
	err := f(m)
	if err != nil {
		m.refuse(call, err)
	}
	return statusOf(err)
}

// withBLAS runs a call that has a handle. "The library was not initialized" is what the reference
// gives each of them for a handle that is none.
func withBLAS(call string, handle uintptr, f func(h *blas) error) Status {
	return inBLAS(call, func(m *Machine) error {
		h, err := find(m.blas, kindBLAS, handle)
		if err != nil {
			return declineFor(BLASNotInitialized, err)
		}
		return f(h)
	})
}

// newBLAS is cublasCreate. It allocates, so it may not be called while capturing, and then says
// NOT_INITIALIZED and invalidates the capture (pytorch/pytorch, issue 99397).
func (m *Machine) newBLAS() (*blas, error) {
	c := m.current[syscall.Gettid()]
	if c == nil || c.retained == 0 {
		return nil, decline(BLASNotInitialized, "thread %d has no current context; the runtime would take device 0", syscall.Gettid())
	}
	if err := firstError(c.broken(), m.safe("cublasCreate")); err != nil {
		return nil, declineFor(BLASNotInitialized, err)
	}
	d := c.device
	if free := d.Memory - d.used; d.BLAS > free {
		return nil, decline(BLASAllocFailed, "a handle takes %d bytes of the device, and %d are free", d.BLAS, free)
	}
	k, err := m.newCores()
	if err != nil {
		return nil, declineFor(BLASInternalError, err)
	}
	d.take(d.BLAS)
	h := &blas{ctx: c, handle: m.handle(kindBLAS), cores: k}
	h.name = fmt.Sprintf("cuBLAS handle %d", number(h.handle))
	m.blas[h.handle] = h
	return h, nil
}

// newCores returns what computes products, on cores of its own: products of different handles wait for
// each other only where streams and events say so.
func (m *Machine) newCores() (*cores, error) {
	if m.cores == nil {
		d, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			return nil, err
		}
		m.cores = d
	}
	return &cores{stream: m.cores.NewStream("products")}, nil
}

// destroy is cublasDestroy, which waits for the device: cudaDeviceSynchronize, says the reference. What
// the device has had before is no reason to keep the handle.
func (h *blas) destroy() error {
	m, c := h.ctx.m, h.ctx
	if i := slices.IndexFunc(m.captures, func(o *capture) bool { return o.origin.ctx == c }); i >= 0 {
		return declineFor(BLASInternalError, m.captures[i].violated("cublasDestroy waits for the device"))
	}
	delete(m.blas, h.handle)
	c.device.used -= c.device.BLAS
	_ = c.drain()
	return nil
}

// setStream is cublasSetStream. It "unconditionally resets the cuBLAS library workspace back to the
// default workspace pool".
func (h *blas) setStream(stream uintptr) { h.stream, h.workspace = stream, nil }

// setWorkspace is cublasSetWorkspace.
func (h *blas) setWorkspace(addr, n uint64) error {
	w, err := h.room(addr, n)
	if err != nil {
		return err
	}
	if w == nil {
		w = &span{}
	}
	h.workspace = w
	return nil
}

// room returns a workspace of n bytes, nil of none.
func (h *blas) room(addr, n uint64) (*span, error) {
	m := h.ctx.m
	if addr%workspaceAlignment != 0 {
		return nil, decline(BLASInvalidValue, "a workspace at %#x, which is no multiple of %d", addr, workspaceAlignment)
	}
	if n == 0 {
		return nil, nil
	}
	w, err := memory{h.ctx}.span(addr, n)
	switch {
	case err != nil:
		return nil, decline(BLASInvalidValue, "the workspace: %v", err)
	case w.host:
		return nil, decline(BLASInvalidValue, "the workspace is in %v, and is to be the device's", w.allocation)
	}
	for _, o := range m.blas {
		if v := o.workspace; o != h && v != nil && v.allocation == w.allocation && v.off < w.off+n && w.off < v.off+v.n {
			return nil, decline(BLASInvalidValue, "%d bytes at %#x are in the workspace of %s as well", n, addr, o.name)
		}
	}
	return &w, nil
}

// setMathMode is cublasSetMathMode.
func (h *blas) setMathMode(mode int) error {
	if base := mode &^ mathInFullSums; base < mathDefault || base > mathTF32 {
		return decline(BLASInvalidValue, "mode %#x of cublasMath_t", mode)
	}
	h.mode = mode
	return nil
}

// multiply is cublasGemmEx of arguments that have been checked.
func (h *blas) multiply(p *product) error {
	if w := h.workspace; w != nil && w.n < leastWorkspace {
		return decline(BLASAllocFailed, "a workspace of %d bytes; %d keep every product from this", w.n, leastWorkspace)
	}
	return h.submit("cublasGemmEx", h.stream, p, h.workspace, h.loose(p))
}

// submit queues a product in a stream, with what is to be reported of it.
func (h *blas) submit(call string, stream uintptr, p *product, workspace *span, loose error) error {
	c := h.ctx
	if current := c.m.current[syscall.Gettid()]; current != c {
		return decline(BLASExecutionFailed, "%s is of device %d, whose context is not current on thread %d", h.name, c.device.number, syscall.Gettid())
	}
	if c.retained == 0 {
		return decline(BLASExecutionFailed, "the context of device %d has been released", c.device.number)
	}
	s, err := c.stream(stream)
	if err = firstError(c.broken(), err); err != nil {
		return declineFor(BLASExecutionFailed, err)
	}
	if s.ctx != c {
		return decline(BLASExecutionFailed, "%s of device %d in %s of device %d", h.name, c.device.number, s.name, s.ctx.device.number)
	}
	k := h.cores
	return declineFor(BLASExecutionFailed, s.submit(call, func() error {
		if err := k.multiply(memory{c}, p, workspace); err != nil {
			return err
		}
		return loose
	}))
}

// loose reports what leaves open in which order, or in which format, cuBLAS adds: a device would not
// notice, and two runs need not be the same. Source: cuBLAS library reference, "Results
// reproducibility" and cublasMath_t.
func (h *blas) loose(p *product) error {
	switch {
	case h.workspace == nil:
		return &unnoticed{fmt.Sprintf("%s has no workspace of its own since cublasSetStream: sums have no one order", h.name)}
	case p.a.typ == host.BF16 && p.compute == compute32F && h.mode != mathPedantic && h.mode&mathInFullSums == 0:
		return &unnoticed{fmt.Sprintf("%s has mode %d, by which parts of a sum may be rounded to bf16", h.name, h.mode)}
	}
	return nil
}
