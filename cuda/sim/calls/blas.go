//go:build sim && cgo && linux

package calls

/*
#include "blas.h"
*/
import "C"

import "unsafe"

// BLAS calls the table that UseBLAS named last. Its methods are the table's
// functions without their "cublas", as those of Driver are; results are
// cublasStatus_ts.
type BLAS struct{}

// UseBLAS returns what calls a table, a *gofsdp_blas in C.
func UseBLAS(table unsafe.Pointer) BLAS {
	C.calls_blas_table = (*C.gofsdp_blas)(table)
	return BLAS{}
}

// BLASCounts returns the counts of every function of cuBLAS's table, as Counts does.
func BLASCounts() map[string]Count { return counted(C.calls_blas_counts, C.calls_blas_functions) }

func (BLAS) Create(h *uintptr) int {
	return int(C.call_cublasCreate((*C.cublasHandle_t)(place(h))))
}

func (BLAS) Destroy(h uintptr) int { return int(C.call_cublasDestroy(C.cublasHandle_t(handle(h)))) }

func (BLAS) SetStream(h, stream uintptr) int {
	return int(C.call_cublasSetStream(C.cublasHandle_t(handle(h)), C.CUstream(handle(stream))))
}

func (BLAS) SetWorkspace(h uintptr, address, bytes uint64) int {
	return int(C.call_cublasSetWorkspace(C.cublasHandle_t(handle(h)), handle(uintptr(address)), C.size_t(bytes)))
}

func (BLAS) SetMathMode(h uintptr, mode int) int {
	return int(C.call_cublasSetMathMode(C.cublasHandle_t(handle(h)), C.int(mode)))
}

// Gemm is what GemmEx is called with.
type Gemm struct {
	TransA, TransB      int
	M, N, K             int
	Alpha, Beta         unsafe.Pointer
	A, B, C             uint64
	TypeA, TypeB, TypeC int
	LdA, LdB, LdC       int
	Compute, Algorithm  int
}

func (BLAS) GemmEx(h uintptr, g Gemm) int {
	return int(C.call_cublasGemmEx(C.cublasHandle_t(handle(h)), C.int(g.TransA), C.int(g.TransB), C.int(g.M), C.int(g.N), C.int(g.K),
		g.Alpha, handle(uintptr(g.A)), C.int(g.TypeA), C.int(g.LdA), handle(uintptr(g.B)), C.int(g.TypeB), C.int(g.LdB),
		g.Beta, handle(uintptr(g.C)), C.int(g.TypeC), C.int(g.LdC), C.int(g.Compute), C.int(g.Algorithm)))
}
