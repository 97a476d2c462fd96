//go:build sim && cgo && linux

package sim

/*
#include <stdint.h>
#include "../blas.h"
extern const gofsdp_blas sim_blas_table;
*/
import "C"

import "unsafe"

// BLAS returns cuBLAS's table of functions, a *gofsdp_blas in C. It is the same for every machine, as the
// driver's is.
func (m *Machine) BLAS() unsafe.Pointer { return unsafe.Pointer(&C.sim_blas_table) }

//export sim_cublasCreate
func sim_cublasCreate(to *C.uintptr_t) C.cublasStatus_t {
	return C.cublasStatus_t(inBLAS("cublasCreate", func(m *Machine) error {
		if to == nil {
			return decline(BLASInvalidValue, "a null pointer for the handle")
		}
		h, err := m.newBLAS()
		if err != nil {
			return err
		}
		*to = C.uintptr_t(h.handle)
		return nil
	}))
}

//export sim_cublasDestroy
func sim_cublasDestroy(handle C.uintptr_t) C.cublasStatus_t {
	return C.cublasStatus_t(withBLAS("cublasDestroy", uintptr(handle), func(h *blas) error { return h.destroy() }))
}

//export sim_cublasSetStream
func sim_cublasSetStream(handle, stream C.uintptr_t) C.cublasStatus_t {
	return C.cublasStatus_t(withBLAS("cublasSetStream", uintptr(handle), func(h *blas) error {
		h.setStream(uintptr(stream))
		return nil
	}))
}

//export sim_cublasSetWorkspace
func sim_cublasSetWorkspace(handle, workspace C.uintptr_t, bytes C.size_t) C.cublasStatus_t {
	return C.cublasStatus_t(withBLAS("cublasSetWorkspace", uintptr(handle), func(h *blas) error {
		return h.setWorkspace(uint64(workspace), uint64(bytes))
	}))
}

//export sim_cublasSetMathMode
func sim_cublasSetMathMode(handle C.uintptr_t, mode C.int) C.cublasStatus_t {
	return C.cublasStatus_t(withBLAS("cublasSetMathMode", uintptr(handle), func(h *blas) error { return h.setMathMode(int(mode)) }))
}

//export sim_cublasGemmEx
func sim_cublasGemmEx(handle C.uintptr_t, transA, transB, m, n, k C.int, alpha unsafe.Pointer, a C.uintptr_t, typeA, ldA C.int,
	b C.uintptr_t, typeB, ldB C.int, beta unsafe.Pointer, c C.uintptr_t, typeC, ldC, compute, algorithm C.int,
) C.cublasStatus_t {
	return C.cublasStatus_t(withBLAS("cublasGemmEx", uintptr(handle), func(h *blas) error {
		g := gemmArguments{
			transA: int(transA), transB: int(transB), m: int(m), n: int(n), k: int(k),
			alpha: (*float32)(alpha), beta: (*float32)(beta), a: uint64(a), b: uint64(b), c: uint64(c),
			typeA: int(typeA), typeB: int(typeB), typeC: int(typeC), ldA: int(ldA), ldB: int(ldB), ldC: int(ldC),
			compute: int(compute), algorithm: int(algorithm), mode: h.mode,
		}
		p, err := g.check()
		if err != nil || p.nothing() {
			return err
		}
		return h.multiply(p)
	}))
}
