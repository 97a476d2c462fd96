//go:build sim && cgo && linux

package sim

import (
	"errors"
	"runtime"
	"sync"
	"unsafe"

	host "github.com/gofsdp/gofsdp/device"
)

// product is C = alpha·op(A)·op(B) + beta·C, by columns as cuBLAS counts. A bias is added to each column.
type product struct {
	transA, transB bool
	m, n, k        int
	alpha, beta    float32
	a, b, c        matrix
	bias           *matrix // of one column; nil where there is none
	compute        int
}

// Numbers of cudaDataType and cublasComputeType_t.
const (
	typeF32         = 0
	typeBF16        = 14
	compute32F      = 68
	computePedantic = 69 // CUBLAS_COMPUTE_32F_PEDANTIC
	computeFast16F  = 74 // and fast 16BF up to fast TF32
	computeFastTF32 = 77
)

// gemmArguments are those of cublasGemmEx as they were given.
type gemmArguments struct {
	transA, transB      int
	m, n, k             int
	alpha, beta         *float32 // in the host's memory, which is the default pointer mode
	a, b, c             uint64
	typeA, typeB, typeC int
	ldA, ldB, ldC       int
	compute, algorithm  int
	mode                int
}

// check returns the product, or the status that cublasGemmEx's list of error values has.
func (g *gemmArguments) check() (*product, error) {
	for _, t := range []int{g.transA, g.transB} {
		if t < 0 || t > 2 { // N, T and C, which is T for real numbers
			return nil, decline(BLASInvalidValue, "operation %d of a matrix", t)
		}
	}
	if g.m < 0 || g.n < 0 || g.k < 0 {
		return nil, decline(BLASInvalidValue, "sizes %d × %d × %d", g.m, g.n, g.k)
	}
	p := &product{
		transA: g.transA != 0, transB: g.transB != 0, m: g.m, n: g.n, k: g.k, compute: g.compute,
		a: matrix{"A", g.a, host.F32, g.m, g.k, g.ldA},
		b: matrix{"B", g.b, host.F32, g.k, g.n, g.ldB},
		c: matrix{"C", g.c, host.F32, g.m, g.n, g.ldC},
	}
	if p.transA {
		p.a.rows, p.a.cols = p.a.cols, p.a.rows
	}
	if p.transB {
		p.b.rows, p.b.cols = p.b.cols, p.b.rows
	}
	for _, x := range []*matrix{&p.a, &p.b, &p.c} {
		if least := max(1, x.rows); x.ld < least {
			return nil, decline(BLASInvalidValue, "%s: a leading dimension of %d for columns of %d elements", x.name, x.ld, least)
		}
	}
	for _, s := range []*float32{g.alpha, g.beta} {
		if s == nil || uint64(uintptr(unsafe.Pointer(s))) >= deviceBase {
			return nil, decline(BLASInvalidValue, "alpha or beta at %p, which is no address of the host's", s)
		}
	}
	p.alpha, p.beta = *g.alpha, *g.beta
	return p, g.supported(p)
}

// supported sets the types of the operands. Those of the table "supported combinations" of cublasGemmEx
// that gofsdp never asks for are refused by name, those of TF32 on purpose.
func (g *gemmArguments) supported(p *product) error {
	types := [3]int{g.typeA, g.typeB, g.typeC}
	switch {
	case types == [3]int{typeF32, typeF32, typeF32}:
	case types == [3]int{typeBF16, typeBF16, typeBF16}:
		p.a.typ, p.b.typ, p.c.typ = host.BF16, host.BF16, host.BF16
	case types == [3]int{typeBF16, typeBF16, typeF32}:
		p.a.typ, p.b.typ = host.BF16, host.BF16
	default:
		return decline(BLASNotSupported, "matrices of types %v: the simulator has fp32 (0) and bf16 (14), the result as the factors or fp32", types)
	}
	switch tf32 := g.mode&^mathInFullSums == mathTF32; {
	case g.compute >= computeFast16F && g.compute <= computeFastTF32, tf32 && g.compute == compute32F && p.a.typ == host.F32:
		return decline(BLASNotSupported, "fp32 by a shorter format (compute type %d, mode %d): the simulator has none", g.compute, g.mode)
	case g.compute != compute32F && g.compute != computePedantic:
		return decline(BLASNotSupported, "compute type %d: the simulator adds in fp32 (68 and 69)", g.compute)
	case g.algorithm < -1 || g.algorithm > 23 && g.algorithm < 99 || g.algorithm > 115:
		return decline(BLASNotSupported, "algorithm %d of cublasGemmAlgo_t", g.algorithm)
	}
	return nil
}

// nothing tells whether the product leaves C as it is.
func (p *product) nothing() bool {
	return p.m == 0 || p.n == 0 || !p.multiplies() && p.beta == 1
}

// multiplies tells whether A and B are read.
func (p *product) multiplies() bool { return p.k > 0 && p.alpha != 0 }

// cores computes the products of a handle: in fp32, since bf16 is exact in it and cuBLAS adds in it.
type cores struct {
	mu      sync.Mutex // held by the product that is under way
	stream  host.Stream
	a, b, c []float32
	bias    []float32
}

// multiply makes a product in the memory that a context's kernels reach.
func (k *cores) multiply(v memory, p *product, workspace *span) error {
	if workspace != nil && workspace.freed.Load() {
		return refuse(IllegalAddress, "the workspace in %v was freed while a product that uses it was queued", workspace.allocation)
	}
	out, err := v.reach(&p.c)
	if err != nil {
		return err
	}
	reads := []*matrix{}
	if p.multiplies() {
		reads = append(reads, &p.a, &p.b)
	}
	if p.bias != nil {
		reads = append(reads, p.bias)
	}
	if err := apart(&p.c, reads, workspace); err != nil {
		return err
	}
	if p.beta != 0 {
		reads = append(reads, &p.c)
	}
	ins := map[*matrix]span{}
	for _, x := range reads {
		if ins[x], err = v.reach(x); err == nil {
			err = x.complete(ins[x])
		}
		if err != nil {
			return err
		}
	}
	if !k.mu.TryLock() {
		return errors.New("another product of the same handle is under way, with the same workspace: two graphs of one handle must wait for each other")
	}
	defer k.mu.Unlock()
	k.c = sized(k.c, p.m*p.n)
	if p.multiplies() {
		k.a, k.b = p.a.load(k.a, ins[&p.a]), p.b.load(k.b, ins[&p.b])
		if err := k.raw(p); err != nil {
			return err
		}
	} else {
		clear(k.c)
	}
	k.bias = sized(k.bias, p.m)
	clear(k.bias)
	if p.bias != nil {
		k.bias = p.bias.load(k.bias, ins[p.bias])
	}
	p.finish(k.c, k.bias, out)
	return nil
}

// raw makes C = op(A)·op(B) of matrices without gaps. Row by row a matrix by columns is its transpose,
// so it is Cᵀ = op(B)ᵀ·op(A)ᵀ.
func (k *cores) raw(p *product) error {
	transB := p.transB
	if p.transA && transB { // which package cpu does not take
		k.b, transB = transposed(k.b, p.b.cols, p.b.rows), false
	}
	k.stream.Launch(&host.MatMul{
		A: tensor(k.b), B: tensor(k.a), C: tensor(k.c),
		M: p.n, N: p.m, K: p.k, TransA: transB, TransB: p.transA,
	})
	err := k.stream.Sync()
	runtime.KeepAlive(k)
	return err
}

// finish writes alpha·product + beta·C and the bias, rounded once.
func (p *product) finish(product, bias []float32, out span) {
	for j := range p.n {
		column, from := p.c.column(out, j), product[j*p.m:][:p.m]
		if p.c.typ == host.BF16 {
			to := elements[uint16](column)
			for i, x := range from {
				if x *= p.alpha; p.beta != 0 {
					x += p.beta * host.FromBF16(to[i])
				}
				to[i] = host.ToBF16(x + bias[i])
			}
		} else {
			to := elements[float32](column)
			for i, x := range from {
				if x *= p.alpha; p.beta != 0 {
					x += p.beta * to[i]
				}
				to[i] = x + bias[i]
			}
		}
		column.mark()
	}
}
