//go:build cgo && linux

package cuda

// #include "blas.h"
// #include "call.h"
// #include "lt.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

// multiplier is a stream's cuBLAS.
type multiplier struct {
	handle    C.cublasHandle_t
	workspace C.CUdeviceptr
}

// onesRows is how many ones there are of each type, and so how many rows are given their bias at once.
const onesRows = 8192

// product is a matrix product of cuBLAS's.
type product struct {
	call    *C.gofsdp_product
	started bool // or one of its shape
}

// Numbers of cudaDataType and cublasComputeType_t.
const (
	typeF32         = 0
	typeBF16        = 14
	computeF32      = 68
	computePedantic = 69 // fp32 without the tensor cores' TF32, whatever the environment asks
)

// products returns what a MatMul is to cuBLAS. By columns, as cuBLAS counts, a row-major matrix is its
// transpose, so C = A·B is made as Cᵀ = Bᵀ·Aᵀ and nothing is turned round.
//
// A bias is cuBLASLt's to add, where it has an algorithm. Where it has none, or C is of another type, the bias is
// first spread over the rows of C, as the product of a column of ones with it, which is exact: the sum is rounded once
// in either way, but this one writes C, and reads it, once more. By bytes that is 1 % of a step of Qwen2.5-1.5B on an
// L4, 0.3 % on an H200.
func (g *gpu) products(o *device.MatMul, s *stream) ([]part, error) {
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
	if o.C.Type == o.A.Type { // as cuBLASLt's bias is
		fused := p
		fused.bias = C.CUdeviceptr(o.Bias.Addr)
		switch b, err := newBiased(fused, s); {
		case err != nil && late(err.Code):
			return nil, err // o is not to blame
		case err != nil:
			err.Op = o
			return nil, err
		case b != nil:
			return []part{b}, nil
		}
	}
	var parts []part
	for row := 0; row < o.M; row += onesRows {
		spread := p
		spread.transa, spread.transb, spread.n, spread.k, spread.lda, spread.ldb = 0, 0, C.int(min(onesRows, o.M-row)), 1, p.m, 1
		spread.a, spread.b = C.CUdeviceptr(o.Bias.Addr), C.CUdeviceptr(g.onesOf(o.A.Type).Addr)
		spread.c += C.CUdeviceptr(int64(row) * int64(o.N) * o.C.Type.Size())
		parts = append(parts, newProduct(spread))
	}
	p.beta = 1
	return append(parts, newProduct(p)), nil
}

func newProduct(p C.gofsdp_product) *product {
	own := (*C.gofsdp_product)(C.malloc(C.sizeof_gofsdp_product))
	*own = p
	return &product{call: own}
}

// shape is what cuBLAS chooses its kernels by: all but where the operands are, of which it sees the alignment.
func (p *product) shape() C.gofsdp_product {
	s := *p.call
	for _, at := range []*C.CUdeviceptr{&s.a, &s.b, &s.c, &s.bias} {
		if *at != 0 { // there is a bias
			*at = C.CUdeviceptr(C.gofsdp_alignment(*at))
		}
	}
	return s
}

// strange says whether no product of its shape has been started on the device.
func (p *product) strange(g *gpu) bool {
	p.started = p.started || g.shapes[p.shape()]
	return !p.started
}

// settle waits for all that the GPU has to do before a product is started whose shape is new. The driver loads
// cuBLAS's kernels as they are first used, which waits for the GPU and meanwhile holds the context's lock; NCCL's
// threads may need the lock to end a collective that the GPU is at (torchcomms, issue 2334; openxla/xla, issue
// 38932). After this none is under way.
//
// Here is where waiting ends, on every rank: the device's thread starts what the engine asks for in the order of
// the plan, which is that of all ranks, so each has started the same collectives before this product, and none of
// these needs what any rank starts later. The plan's shapes are the same too: all ranks wait at the same product,
// in the first step of a program, and in no later one. Not while capturing: see graph.capture.
func (g *gpu) settle(p *product) *Error {
	if err := g.idle(); err != nil {
		return err
	}
	g.shapes[p.shape()], p.started = true, true
	return nil
}

func (g *gpu) idle() *Error {
	if r := C.call_cuCtxSynchronize(g.driver.table); r != 0 {
		return g.driver.failure(r, "cuCtxSynchronize", g.name)
	}
	return nil
}

// makeOnes fills the memory that biases are spread with.
func (g *gpu) makeOnes() (err error) {
	if g.ones, err = g.alloc(onesRows*(device.F32.Size()+device.BF16.Size()), device.Local); err != nil {
		return err
	}
	table, f32, bf16 := g.driver.table, C.CUdeviceptr(g.onesOf(device.F32).Addr), C.CUdeviceptr(g.onesOf(device.BF16).Addr)
	return errors.Join(
		g.failed(C.call_cuMemsetD32Async(table, f32, C.uint(math.Float32bits(1)), onesRows, g.filling), "cuMemsetD32Async"),
		g.failed(C.call_cuMemsetD16Async(table, bf16, C.ushort(device.ToBF16(1)), onesRows, g.filling), "cuMemsetD16Async"),
		g.failed(C.call_cuStreamSynchronize(table, g.filling), "cuStreamSynchronize"),
	)
}

// onesOf returns the ones of a type: those of fp32 come first, those of bf16 behind.
func (g *gpu) onesOf(typ device.DType) device.Tensor {
	if typ == device.BF16 {
		return g.ones.In(typ, onesRows*device.F32.Size(), onesRows)
	}
	return g.ones.In(typ, 0, onesRows)
}

func (p *product) start(s *stream) *Error {
	if err := p.ready(s); err != nil {
		return err
	}
	if r := C.gofsdp_multiply(s.gpu.driver.blas, s.blas.handle, p.call); r != 0 {
		return p.failure(r, "cublasGemmEx", "stream "+s.name)
	}
	return nil
}

// ready waits where the product's shape is new.
func (p *product) ready(s *stream) *Error {
	if p.strange(s.gpu) {
		return s.gpu.settle(p)
	}
	return nil
}

// failure makes an error of a status.
func (p *product) failure(r C.cublasStatus_t, call, where string) *Error {
	e, c := blasFailure(r, call, where), p.call
	e.Detail = fmt.Sprintf("m %d, n %d, k %d, transposed %d %d, types %d %d", c.m, c.n, c.k, c.transa, c.transb, c._type, c.ctype)
	return e
}

func (p *product) free() { C.free(unsafe.Pointer(p.call)) }

// open makes it, before the first step.
func (m *multiplier) open(s *stream) error {
	g := s.gpu
	if r := C.call_cuMemAlloc(g.driver.table, &m.workspace, g.workspace); r != 0 {
		e := g.driver.failure(r, "cuMemAlloc", g.name)
		e.Detail = fmt.Sprintf("%d bytes of workspace for cuBLAS", g.workspace)
		return e
	}
	if r := C.gofsdp_blas_open(g.driver.blas, &m.handle, s.handle, m.workspace, g.workspace); r != 0 {
		e := blasFailure(r, "cublasCreate", g.name)
		e.Detail = "a handle with its stream and workspace"
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

func blasFailure(r C.cublasStatus_t, call, where string) *Error {
	e := &Error{Call: call, Code: int(r), Name: "unknown status", Text: "cuBLAS refuses", Where: where}
	if s, ok := statuses[int(r)]; ok {
		e.Name, e.Text = s[0], s[1]
	}
	return e
}

// statuses are those of cublasStatus_t.
var statuses = map[int][2]string{
	1:  {"CUBLAS_STATUS_NOT_INITIALIZED", "cuBLAS finds no driver that it can use: that of CUDA 13 needs a driver of CUDA 13 (R580)"},
	3:  {"CUBLAS_STATUS_ALLOC_FAILED", "cuBLAS finds no memory on the device"},
	7:  {"CUBLAS_STATUS_INVALID_VALUE", "a size or an address is wrong"},
	8:  {"CUBLAS_STATUS_ARCH_MISMATCH", "the device lacks what was asked for"},
	11: {"CUBLAS_STATUS_MAPPING_ERROR", "memory cannot be reached"},
	13: {"CUBLAS_STATUS_EXECUTION_FAILED", "a kernel of cuBLAS could not be started"},
	14: {"CUBLAS_STATUS_INTERNAL_ERROR", "something failed inside cuBLAS"},
	15: {"CUBLAS_STATUS_NOT_SUPPORTED", "cuBLAS has no product of these types"},
	16: {"CUBLAS_STATUS_LICENSE_ERROR", "a licence is missing"},
}
