//go:build sim && cgo && linux

package sim

/*
#include <stdint.h>
#include "../blas.h"
*/
import "C"

import "unsafe"

//export sim_cublasLtMatmulDescCreate
func sim_cublasLtMatmulDescCreate(to *C.uintptr_t, compute, scale C.int) C.cublasStatus_t {
	return C.cublasStatus_t(inBLAS("cublasLtMatmulDescCreate", func(m *Machine) error {
		return describes(m, m.lt.operations, kindOperation, (*uintptr)(unsafe.Pointer(to)), func(name string) *operation {
			return &operation{name: name, compute: int(compute), scale: int(scale), epilogue: epilogueDefault}
		})
	}))
}

//export sim_cublasLtMatmulDescDestroy
func sim_cublasLtMatmulDescDestroy(op C.uintptr_t) C.cublasStatus_t {
	return C.cublasStatus_t(inBLAS("cublasLtMatmulDescDestroy", func(m *Machine) error {
		return drops(m.lt.operations, kindOperation, uintptr(op))
	}))
}

//export sim_cublasLtMatmulDescSetAttribute
func sim_cublasLtMatmulDescSetAttribute(op C.uintptr_t, attribute C.int, value unsafe.Pointer, bytes C.size_t) C.cublasStatus_t {
	return C.cublasStatus_t(inBLAS("cublasLtMatmulDescSetAttribute", func(m *Machine) error {
		o, err := described(m.lt.operations, kindOperation, uintptr(op))
		if err != nil {
			return err
		}
		return sets(o.attributes(), int(attribute), value, uint64(bytes))
	}))
}

//export sim_cublasLtMatrixLayoutCreate
func sim_cublasLtMatrixLayoutCreate(to *C.uintptr_t, typ C.int, rows, columns C.uint64_t, ld C.int64_t) C.cublasStatus_t {
	return C.cublasStatus_t(inBLAS("cublasLtMatrixLayoutCreate", func(m *Machine) error {
		return describes(m, m.lt.layouts, kindLayout, (*uintptr)(unsafe.Pointer(to)), func(name string) *layout {
			return &layout{name, int(typ), uint64(rows), uint64(columns), int64(ld)}
		})
	}))
}

//export sim_cublasLtMatrixLayoutDestroy
func sim_cublasLtMatrixLayoutDestroy(l C.uintptr_t) C.cublasStatus_t {
	return C.cublasStatus_t(inBLAS("cublasLtMatrixLayoutDestroy", func(m *Machine) error {
		return drops(m.lt.layouts, kindLayout, uintptr(l))
	}))
}

//export sim_cublasLtMatmulPreferenceCreate
func sim_cublasLtMatmulPreferenceCreate(to *C.uintptr_t) C.cublasStatus_t {
	return C.cublasStatus_t(inBLAS("cublasLtMatmulPreferenceCreate", func(m *Machine) error {
		return describes(m, m.lt.preferences, kindPreference, (*uintptr)(unsafe.Pointer(to)), func(name string) *preference {
			const aligned = defaultAlignment
			return &preference{name: name, schemes: defaultSchemes, alignments: [4]uint32{aligned, aligned, aligned, aligned}}
		})
	}))
}

//export sim_cublasLtMatmulPreferenceDestroy
func sim_cublasLtMatmulPreferenceDestroy(p C.uintptr_t) C.cublasStatus_t {
	return C.cublasStatus_t(inBLAS("cublasLtMatmulPreferenceDestroy", func(m *Machine) error {
		return drops(m.lt.preferences, kindPreference, uintptr(p))
	}))
}

//export sim_cublasLtMatmulPreferenceSetAttribute
func sim_cublasLtMatmulPreferenceSetAttribute(p C.uintptr_t, attribute C.int, value unsafe.Pointer, bytes C.size_t) C.cublasStatus_t {
	return C.cublasStatus_t(inBLAS("cublasLtMatmulPreferenceSetAttribute", func(m *Machine) error {
		o, err := described(m.lt.preferences, kindPreference, uintptr(p))
		if err != nil {
			return err
		}
		return sets(o.attributes(), int(attribute), value, uint64(bytes))
	}))
}

//export sim_cublasLtMatmulAlgoGetHeuristic
func sim_cublasLtMatmulAlgoGetHeuristic(handle, op, a, b, c, d, by C.uintptr_t, wanted C.int, results *C.cublasLtMatmulHeuristicResult_t, found *C.int) C.cublasStatus_t {
	none := false // which is an answer, and no refusal
	s := withBLAS("cublasLtMatmulAlgoGetHeuristic", uintptr(handle), func(h *blas) error {
		m := h.ctx.m
		if wanted < 1 || results == nil || found == nil {
			return decline(BLASInvalidValue, "%d algorithms are asked for, to %p, their number to %p", wanted, results, found)
		}
		p, err := m.problem(uintptr(op), [4]uintptr{uintptr(a), uintptr(b), uintptr(c), uintptr(d)})
		if err != nil {
			return err
		}
		preference, err := described(m.lt.preferences, kindPreference, uintptr(by))
		if err != nil {
			return err
		}
		w, ok, err := p.choose(preference)
		if err != nil || !ok {
			none, *found = err == nil, 0
			return err
		}
		*results = C.cublasLtMatmulHeuristicResult_t{workspaceSize: C.size_t(w.workspace), wavesCount: 1}
		w.write(unsafe.Slice((*uint64)(unsafe.Pointer(&results.algo)), 8))
		*found = 1
		return nil
	})
	if none {
		s = BLASNotSupported
	}
	return C.cublasStatus_t(s)
}

//export sim_cublasLtMatmul
func sim_cublasLtMatmul(handle, op C.uintptr_t, alpha unsafe.Pointer, a, layoutA, b, layoutB C.uintptr_t, beta unsafe.Pointer,
	c, layoutC, d, layoutD C.uintptr_t, algorithm *C.cublasLtMatmulAlgo_t, workspace C.uintptr_t, bytes C.size_t, stream C.uintptr_t,
) C.cublasStatus_t {
	return C.cublasStatus_t(withBLAS("cublasLtMatmul", uintptr(handle), func(h *blas) error {
		p, err := h.ctx.m.problem(uintptr(op), [4]uintptr{uintptr(layoutA), uintptr(layoutB), uintptr(layoutC), uintptr(layoutD)})
		if err != nil {
			return err
		}
		if c != d {
			return decline(BLASNotSupported, "C is at %#x and the result at %#x: the simulator's results lie where C does", c, d)
		}
		x, err := p.product((*float32)(alpha), (*float32)(beta), uint64(a), uint64(b), uint64(d))
		if err != nil {
			return err
		}
		var words []uint64
		if algorithm != nil {
			words = unsafe.Slice((*uint64)(unsafe.Pointer(algorithm)), 8)
		}
		w, err := p.wayOf(words)
		if err != nil {
			return err
		}
		return h.matmul(x, w, uint64(workspace), uint64(bytes), uintptr(stream))
	}))
}
