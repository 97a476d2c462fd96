//go:build cgo && linux

package cuda

// #include "blas.h"
// #include "call.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

// workspaceBytes is what cuBLAS may use beside a product's operands: what its documentation advises for
// Hopper; elsewhere 4 MiB would do.
const workspaceBytes = 32 << 20

// multiplier is a stream's cuBLAS, made at its first product.
type multiplier struct {
	handle    C.cublasHandle_t
	workspace C.CUdeviceptr
}

// product is a matrix product of cuBLAS's.
type product struct{ call *C.gofsdp_product }

// Numbers of cudaDataType and cublasComputeType_t.
const (
	typeF32         = 0
	typeBF16        = 14
	computeF32      = 68
	computePedantic = 69 // fp32 without the tensor cores' TF32, whatever the environment asks
)

// products returns what a MatMul is to cuBLAS. By columns, as cuBLAS counts, a row-major matrix is its
// transpose, so C = A·B is made as Cᵀ = Bᵀ·Aᵀ and nothing is turned round. A bias is first spread over
// the rows of C, as the product of a column of ones with it, which is exact.
func (g *gpu) products(o *device.MatMul) ([]part, error) {
	fail := func(format string, args ...any) ([]part, error) {
		return nil, fmt.Errorf("cuda: MatMul: "+format, args...)
	}
	if g.driver.blas == nil {
		return fail("there is no cuBLAS for products")
	}
	if o.A.Type != device.F32 && o.A.Type != device.BF16 {
		return fail("operands of %s: cuBLAS is called for f32 and bf16", o.A.Type)
	}
	if max(o.M, o.N, o.K) > math.MaxInt32 {
		return fail("sizes %d × %d × %d are more than cuBLAS counts", o.M, o.N, o.K)
	}
	p := C.gofsdp_product{
		m: C.int(o.N), n: C.int(o.M), k: C.int(o.K), ldc: C.int(o.N), lda: C.int(o.N), ldb: C.int(o.K),
		a: C.CUdeviceptr(o.B.Addr), b: C.CUdeviceptr(o.A.Addr), c: C.CUdeviceptr(o.C.Addr),
		_type: typeF32, ctype: typeF32, compute: computePedantic,
	}
	if o.TransB {
		p.transa, p.lda = 1, C.int(o.K)
	}
	if o.TransA {
		p.transb, p.ldb = 1, C.int(o.M)
	}
	if o.A.Type == device.BF16 {
		p._type, p.compute = typeBF16, computeF32
	}
	if o.C.Type == device.BF16 {
		p.ctype = typeBF16
	}
	if o.Accumulate {
		p.beta = 1
	}
	if o.Bias.Absent() {
		return []part{newProduct(p)}, nil
	}
	ones, err := g.someOnes(o.A.Type, o.M)
	if err != nil {
		return nil, err
	}
	spread := p
	spread.transa, spread.transb, spread.k, spread.lda, spread.ldb = 0, 0, 1, p.m, 1
	spread.a, spread.b = C.CUdeviceptr(o.Bias.Addr), C.CUdeviceptr(ones)
	p.beta = 1
	return []part{newProduct(spread), newProduct(p)}, nil
}

func newProduct(p C.gofsdp_product) *product {
	own := (*C.gofsdp_product)(C.malloc(C.sizeof_gofsdp_product))
	*own = p
	return &product{own}
}

// someOnes returns where n ones of a type are. What was there for fewer stays until the operations that
// use it are forgotten: a longer row of ones begins a new memory, and all works with it.
func (g *gpu) someOnes(typ device.DType, n int) (device.Addr, error) {
	// Ones of fp32 come first, those of bf16 behind.
	if held := int(g.ones.Size / 6); held < n {
		n := (n + 127) / 128 * 128
		longer, err := g.alloc(6*int64(n), device.Local)
		if err != nil {
			return 0, err
		}
		table, at := g.driver.table, C.CUdeviceptr(longer.Addr)
		err = errors.Join(
			g.failed(C.call_cuMemsetD32Async(table, at, C.uint(math.Float32bits(1)), C.size_t(n), g.filling), "cuMemsetD32Async"),
			g.failed(C.call_cuMemsetD16Async(table, at+4*C.CUdeviceptr(n), C.ushort(device.ToBF16(1)), C.size_t(n), g.filling), "cuMemsetD16Async"),
			g.failed(C.call_cuCtxSynchronize(table), "cuCtxSynchronize"), // nothing uses the old ones any more
		)
		if err == nil {
			err = g.forget()
		}
		if err == nil && g.ones.Size > 0 {
			err = g.release(g.ones)
		}
		if err != nil {
			return 0, errors.Join(err, g.release(longer))
		}
		g.ones = longer
	}
	if typ == device.BF16 {
		return g.ones.Addr + device.Addr(4*(g.ones.Size/6)), nil
	}
	return g.ones.Addr, nil
}

func (p *product) start(s *stream) *Error {
	if s.blas.handle == nil {
		if e := s.blas.open(s); e != nil {
			return e
		}
	}
	if r := C.gofsdp_multiply(s.gpu.driver.blas, s.blas.handle, p.call); r != 0 {
		c := p.call
		return s.blasFailed(r, "cublasGemmEx", fmt.Sprintf("m %d, n %d, k %d, transposed %d %d, types %d %d", c.m, c.n, c.k, c.transa, c.transb, c._type, c.ctype))
	}
	return nil
}

func (p *product) free() { C.free(unsafe.Pointer(p.call)) }

func (m *multiplier) open(s *stream) *Error {
	table := s.gpu.driver.table
	if r := C.call_cuMemAlloc(table, &m.workspace, workspaceBytes); r != 0 {
		return s.failed(r, "cuMemAlloc", fmt.Sprintf("%d bytes of workspace for cuBLAS", workspaceBytes))
	}
	if r := C.gofsdp_blas_open(s.gpu.driver.blas, &m.handle, s.handle, m.workspace, workspaceBytes); r != 0 {
		e := s.blasFailed(r, "cublasCreate", "a handle with its stream and workspace")
		_ = m.close(s.gpu) // the first error is the one that tells
		return e
	}
	return nil
}

// close gives back what there is.
func (m *multiplier) close(g *gpu) (err error) {
	if m.handle != nil {
		if r := C.gofsdp_blas_close(g.driver.blas, m.handle); r != 0 {
			err = blasFailure(r, "cublasDestroy", g.name)
		}
	}
	if m.workspace != 0 {
		err = errors.Join(err, g.failed(C.call_cuMemFree(g.driver.table, m.workspace), "cuMemFree"))
	}
	*m = multiplier{}
	return err
}

func (s *stream) blasFailed(r C.cublasStatus_t, call, detail string) *Error {
	e := blasFailure(r, call, "stream "+s.name)
	e.Detail = detail
	return e
}

func blasFailure(r C.cublasStatus_t, call, where string) *Error {
	e := &Error{Call: call, Code: int(r), Name: "unknown status", Text: "cuBLAS refuses", Where: where}
	if s, ok := statuses[int(r)]; ok {
		e.Name, e.Text = s[0], s[1]
	}
	return e
}

// statuses are those of cublasStatus_t.
var statuses = map[int][2]string{
	1:  {"CUBLAS_STATUS_NOT_INITIALIZED", "cuBLAS finds no driver that it can use"},
	3:  {"CUBLAS_STATUS_ALLOC_FAILED", "cuBLAS finds no memory on the device"},
	7:  {"CUBLAS_STATUS_INVALID_VALUE", "a size or an address is wrong"},
	8:  {"CUBLAS_STATUS_ARCH_MISMATCH", "the device lacks what was asked for"},
	11: {"CUBLAS_STATUS_MAPPING_ERROR", "memory cannot be reached"},
	13: {"CUBLAS_STATUS_EXECUTION_FAILED", "a kernel of cuBLAS could not be started"},
	14: {"CUBLAS_STATUS_INTERNAL_ERROR", "something failed inside cuBLAS"},
	15: {"CUBLAS_STATUS_NOT_SUPPORTED", "cuBLAS has no product of these types"},
	16: {"CUBLAS_STATUS_LICENSE_ERROR", "a licence is missing"},
}
