//go:build cgo && linux

package cuda

// #include "call.h"
// #include "lt.h"
// #include <stdlib.h>
import "C"

import "unsafe"

// biased is a product with a bias, which cuBLASLt adds to the sum before it is rounded.
type biased struct {
	*product
	blas *C.gofsdp_blas
	lt   *C.gofsdp_biased
}

// algorithm is cuBLASLt's way to make a product.
type algorithm C.cublasLtMatmulAlgo_t

// newBiased describes a product with a bias to cuBLASLt, and returns nil where that has no algorithm for it.
func newBiased(p C.gofsdp_product, s *stream) (*biased, *Error) {
	b := &biased{newProduct(p), s.gpu.driver.blas, (*C.gofsdp_biased)(C.calloc(1, C.sizeof_gofsdp_biased))}
	way, err := b.describe(s)
	if way == nil {
		b.free()
		return nil, err
	}
	b.lt.algorithm = C.cublasLtMatmulAlgo_t(*way)
	return b, nil
}

// describe makes the description and returns the algorithm for the product's shape, nil where there is none. It is
// asked for once, with any stream's handle: the answer is a function of library, GPU and shape, so all layers, streams
// and ranks make such a product in one way. Since kernels may be loaded for the answer, the GPU is waited for: see
// settle.
func (b *biased) describe(s *stream) (*algorithm, *Error) {
	g, shape := s.gpu, b.shape()
	var call *C.char
	if r := C.gofsdp_describe(b.blas, b.call, b.lt, &call); r != 0 {
		return nil, b.failure(r, C.GoString(call), g.name)
	}
	way, asked := g.ways[shape]
	if asked {
		return way, nil
	}
	if err := g.idle(); err != nil {
		return nil, err
	}
	var found C.int
	if r := C.gofsdp_choose(b.blas, s.blas.handle, b.call, b.lt, g.workspace, &found, &call); r != 0 {
		return nil, b.failure(r, C.GoString(call), g.name)
	}
	if found > 0 {
		own := algorithm(b.lt.algorithm)
		way = &own
	}
	g.ways[shape] = way
	return way, nil
}

func (b *biased) start(s *stream) *Error {
	if err := b.ready(s); err != nil {
		return err
	}
	if r := C.gofsdp_multiply_biased(b.blas, s.blas.handle, b.call, b.lt, s.blas.workspace, s.gpu.workspace, s.handle); r != 0 {
		return b.failure(r, "cublasLtMatmul", "stream "+s.name)
	}
	return nil
}

func (b *biased) free() {
	C.gofsdp_forget(b.blas, b.lt)
	C.free(unsafe.Pointer(b.lt))
	b.product.free()
}

// Epilogues returns how many shapes of products with a bias have been made so far: those to which cuBLASLt adds it, and
// those for which it has no algorithm.
func (g *gpu) Epilogues() (fused, apart int, err error) {
	err = g.Do(func() error {
		for _, way := range g.ways {
			if way != nil {
				fused++
			} else {
				apart++
			}
		}
		return nil
	})
	return fused, apart, err
}
