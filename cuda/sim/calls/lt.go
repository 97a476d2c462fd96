//go:build sim && cgo && linux

package calls

/*
#include "blas.h"
*/
import "C"

import "unsafe"

func (BLAS) LtMatmulDescCreate(operation *uintptr, compute, scale int) int {
	return int(C.call_cublasLtMatmulDescCreate((*C.cublasLtMatmulDesc_t)(place(operation)), C.int(compute), C.int(scale)))
}

func (BLAS) LtMatmulDescDestroy(operation uintptr) int {
	return int(C.call_cublasLtMatmulDescDestroy(C.cublasLtMatmulDesc_t(handle(operation))))
}

func (BLAS) LtMatmulDescSetAttribute(operation uintptr, attribute int, value unsafe.Pointer, bytes uint64) int {
	return int(C.call_cublasLtMatmulDescSetAttribute(C.cublasLtMatmulDesc_t(handle(operation)), C.int(attribute), value, C.size_t(bytes)))
}

func (BLAS) LtMatrixLayoutCreate(layout *uintptr, typ int, rows, columns uint64, ld int64) int {
	return int(C.call_cublasLtMatrixLayoutCreate((*C.cublasLtMatrixLayout_t)(place(layout)), C.int(typ), C.uint64_t(rows), C.uint64_t(columns), C.int64_t(ld)))
}

func (BLAS) LtMatrixLayoutDestroy(layout uintptr) int {
	return int(C.call_cublasLtMatrixLayoutDestroy(C.cublasLtMatrixLayout_t(handle(layout))))
}

func (BLAS) LtMatmulPreferenceCreate(preference *uintptr) int {
	return int(C.call_cublasLtMatmulPreferenceCreate((*C.cublasLtMatmulPreference_t)(place(preference))))
}

func (BLAS) LtMatmulPreferenceDestroy(preference uintptr) int {
	return int(C.call_cublasLtMatmulPreferenceDestroy(C.cublasLtMatmulPreference_t(handle(preference))))
}

func (BLAS) LtMatmulPreferenceSetAttribute(preference uintptr, attribute int, value unsafe.Pointer, bytes uint64) int {
	return int(C.call_cublasLtMatmulPreferenceSetAttribute(C.cublasLtMatmulPreference_t(handle(preference)), C.int(attribute), value, C.size_t(bytes)))
}

// Described is what a product is described with: handles of an operation and of the layouts of A, B, C and D.
type Described struct{ Operation, A, B, C, D uintptr }

// Heuristic is a cublasLtMatmulHeuristicResult_t.
type Heuristic struct {
	Algorithm [8]uint64
	Workspace uint64
	State     int32
	Waves     float32
	_         [4]int32
}

// LtMatmulAlgoGetHeuristic asks for as many algorithms as wanted says; results has room for all of them, or is nil.
func (BLAS) LtMatmulAlgoGetHeuristic(h uintptr, d Described, preference uintptr, wanted int, results *Heuristic, found *int32) int {
	return int(C.call_cublasLtMatmulAlgoGetHeuristic(C.cublasLtHandle_t(handle(h)), C.cublasLtMatmulDesc_t(handle(d.Operation)),
		C.cublasLtMatrixLayout_t(handle(d.A)), C.cublasLtMatrixLayout_t(handle(d.B)), C.cublasLtMatrixLayout_t(handle(d.C)), C.cublasLtMatrixLayout_t(handle(d.D)),
		C.cublasLtMatmulPreference_t(handle(preference)), C.int(wanted), (*C.cublasLtMatmulHeuristicResult_t)(unsafe.Pointer(results)), (*C.int)(found)))
}

// LtGemm is what LtMatmul is called with beside the description.
type LtGemm struct {
	Alpha, Beta      unsafe.Pointer
	A, B, C, D       uint64
	Algorithm        *[8]uint64
	Workspace, Bytes uint64
	Stream           uintptr
}

func (BLAS) LtMatmul(h uintptr, d Described, g LtGemm) int {
	return int(C.call_cublasLtMatmul(C.cublasLtHandle_t(handle(h)), C.cublasLtMatmulDesc_t(handle(d.Operation)), g.Alpha,
		handle(uintptr(g.A)), C.cublasLtMatrixLayout_t(handle(d.A)), handle(uintptr(g.B)), C.cublasLtMatrixLayout_t(handle(d.B)), g.Beta,
		handle(uintptr(g.C)), C.cublasLtMatrixLayout_t(handle(d.C)), handle(uintptr(g.D)), C.cublasLtMatrixLayout_t(handle(d.D)),
		(*C.cublasLtMatmulAlgo_t)(unsafe.Pointer(g.Algorithm)), handle(uintptr(g.Workspace)), C.size_t(g.Bytes), C.CUstream(handle(g.Stream))))
}
