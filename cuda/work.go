//go:build cgo && linux

package cuda

// #include "call.h"
// #include <stdlib.h>
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/kernels"
	"github.com/gofsdp/gofsdp/device"
)

// Native is an operation that starts itself, such as a collective of NCCL's.
type Native interface {
	device.Op
	// Start queues the operation on a CUDA stream and returns. It is called on the thread of the device,
	// with its context current, and allocates nothing where the step loop may not. Its error names the
	// operation.
	Start(stream unsafe.Pointer) error
}

// mostWorks bounds what is remembered of operations: more than the programs of the largest plan have.
// Then all is forgotten, and made again as it is needed.
const mostWorks = 1 << 16

// work is an operation as calls of the driver, ready to be made any number of times, and what the
// operation was when they were made.
type work struct {
	parts []part
	was   []byte // the operation's struct
	lists []list
}

// list is what a list of tensors of the operation's held, and where in the struct it is.
type list struct {
	offset uintptr
	held   []device.Tensor
}

// part is one call: of the driver, or of cuBLAS.
type part interface {
	// start makes the call. Its error is without the operation.
	start(s *stream) *Error
	free()
}

// work returns what op is to the driver, on s or any other stream, whose cuBLAS is asked in either case. It allocates only
// where op is new or has changed.
func (g *gpu) work(op device.Op, s *stream) (*work, error) {
	if w := g.works[op]; w != nil {
		if w.still(op) {
			return w, nil
		}
		w.free()
		delete(g.works, op)
	}
	if len(g.works) >= mostWorks {
		if err := g.forget(); err != nil {
			return nil, err
		}
	}
	parts, err := g.lower(op, s)
	if err != nil {
		return nil, err
	}
	w := &work{parts: parts}
	v := reflect.ValueOf(op).Elem()
	w.was = bytes.Clone(bytesOf(op, v.Type().Size()))
	for i := range v.NumField() {
		if ts, ok := v.Field(i).Interface().([]device.Tensor); ok {
			w.lists = append(w.lists, list{v.Type().Field(i).Offset, slices.Clone(ts)})
		}
	}
	g.works[op] = w
	return w, nil
}

// bytesOf returns the struct that op points to.
func bytesOf(op device.Op, size uintptr) []byte {
	return unsafe.Slice((*byte)(reflect.ValueOf(op).UnsafePointer()), size)
}

// still says whether op is what it was.
func (w *work) still(op device.Op) bool {
	now := bytesOf(op, uintptr(len(w.was)))
	if !bytes.Equal(now, w.was) {
		return false
	}
	for _, l := range w.lists {
		if !slices.Equal(*(*[]device.Tensor)(unsafe.Pointer(&now[l.offset])), l.held) {
			return false
		}
	}
	return true
}

func (w *work) free() {
	for _, p := range w.parts {
		p.free()
	}
}

// forget lets go of all works, and of the graphs that they are in.
func (g *gpu) forget() (err error) {
	for key, l := range g.graphs {
		err = errors.Join(err, l.destroy(g))
		delete(g.graphs, key)
	}
	for _, w := range g.works {
		w.free()
	}
	clear(g.works)
	return err
}

// lower turns an operation into calls. Matrix products are cuBLAS's, copies and fills the driver's own,
// everything else is kernels.
func (g *gpu) lower(op device.Op, s *stream) ([]part, error) {
	if err := op.Check(); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	for _, o := range device.Operands(op) {
		if _, ok := g.buffer(*o.T); !ok {
			return nil, fmt.Errorf("cuda: %s: operand %s (%d bytes at %#x) does not lie in a buffer of %s", device.Name(op), o.Name, o.T.Bytes(), o.T.Addr, g.name)
		}
	}
	switch o := op.(type) {
	case *device.MatMul:
		return g.products(o, s)
	case *device.Copy:
		if p := g.copying(o); p != nil {
			return []part{p}, nil
		}
	case *device.Fill:
		if p := g.filled(o); p != nil {
			return []part{p}, nil
		}
	}
	launches, err := kernels.Lower(op)
	if err != nil {
		return nil, err
	}
	parts := make([]part, len(launches))
	for _, l := range launches {
		if g.functions[l.Kernel] == nil {
			return nil, fmt.Errorf("cuda: %s: no module has the kernel %s", device.Name(op), l.Kernel)
		}
	}
	for i, l := range launches {
		parts[i] = newKernel(g.functions[l.Kernel], l)
	}
	return parts, nil
}

// kernel starts a kernel.
type kernel struct {
	name   string
	launch *C.gofsdp_launch
}

func newKernel(function C.CUfunction, l kernels.Launch) *kernel {
	k := &kernel{name: l.Kernel, launch: (*C.gofsdp_launch)(C.calloc(1, C.sizeof_gofsdp_launch))}
	k.launch.function = function
	for i := range 3 {
		k.launch.grid[i], k.launch.block[i] = C.uint(l.Grid[i]), C.uint(l.Block[i])
	}
	k.launch.shared = C.uint(l.Shared)
	k.launch.arguments = C.CBytes(l.Args)
	return k
}

func (k *kernel) start(s *stream) *Error {
	if r := C.gofsdp_start(s.gpu.driver.table, k.launch, s.handle); r != 0 {
		l := k.launch
		return s.failed(r, "cuLaunchKernel", fmt.Sprintf("kernel %s, grid %v, block %v, %d bytes of shared memory", k.name, l.grid, l.block, l.shared))
	}
	return nil
}

func (k *kernel) free() {
	C.free(k.launch.arguments)
	C.free(unsafe.Pointer(k.launch))
}

// copied copies bytes within the GPU's memory, from the host's or to it.
type copied struct{ src, dst device.Tensor }

type (
	fetched struct{ copied } // from the host's
	stored  struct{ copied } // to the host's
)

// copying returns a copy that the driver can do, nil for one from host memory to host memory.
func (g *gpu) copying(o *device.Copy) part {
	src, _ := g.buffer(o.Src)
	dst, _ := g.buffer(o.Dst)
	c := copied{o.Src, o.Dst}
	switch {
	case src.Host != nil && dst.Host != nil:
		return nil
	case src.Host != nil:
		return &fetched{c}
	case dst.Host != nil:
		return &stored{c}
	}
	return &c
}

func (c *copied) start(s *stream) *Error {
	r := C.call_cuMemcpyDtoDAsync(s.gpu.driver.table, C.CUdeviceptr(c.dst.Addr), C.CUdeviceptr(c.src.Addr), C.size_t(c.src.Bytes()), s.handle)
	return c.told(s, r, "cuMemcpyDtoDAsync")
}

func (c *fetched) start(s *stream) *Error {
	r := C.call_cuMemcpyHtoDAsync(s.gpu.driver.table, C.CUdeviceptr(c.dst.Addr), c.src.Pointer(), C.size_t(c.src.Bytes()), s.handle)
	return c.told(s, r, "cuMemcpyHtoDAsync")
}

func (c *stored) start(s *stream) *Error {
	r := C.call_cuMemcpyDtoHAsync(s.gpu.driver.table, c.dst.Pointer(), C.CUdeviceptr(c.src.Addr), C.size_t(c.src.Bytes()), s.handle)
	return c.told(s, r, "cuMemcpyDtoHAsync")
}

func (c *copied) told(s *stream, r C.CUresult, call string) *Error {
	if r == 0 {
		return nil
	}
	return s.failed(r, call, fmt.Sprintf("%d bytes from %#x to %#x", c.src.Bytes(), c.src.Addr, c.dst.Addr))
}

func (c *copied) free() {}

// fill sets elements of 2 or 4 bytes of the GPU's memory.
type fill struct {
	dst  device.Tensor
	bits uint32
}

// filled returns a fill that the driver can do, nil for others.
func (g *gpu) filled(o *device.Fill) part {
	if b, _ := g.buffer(o.Dst); b.Host != nil {
		return nil
	}
	switch o.Dst.Type {
	case device.F32:
		return &fill{o.Dst, math.Float32bits(o.Value)}
	case device.BF16:
		return &fill{o.Dst, uint32(device.ToBF16(o.Value))}
	case device.I32:
		return &fill{o.Dst, uint32(int32(o.Value))}
	}
	return nil
}

func (f *fill) start(s *stream) *Error {
	table, at, n := s.gpu.driver.table, C.CUdeviceptr(f.dst.Addr), C.size_t(f.dst.Len)
	call, r := "cuMemsetD32Async", C.CUresult(0)
	if f.dst.Type.Size() == 2 {
		call, r = "cuMemsetD16Async", C.call_cuMemsetD16Async(table, at, C.ushort(f.bits), n, s.handle)
	} else {
		r = C.call_cuMemsetD32Async(table, at, C.uint(f.bits), n, s.handle)
	}
	if r != 0 {
		return s.failed(r, call, fmt.Sprintf("%d elements at %#x", f.dst.Len, f.dst.Addr))
	}
	return nil
}

func (f *fill) free() {}
