//go:build cu && cgo && linux && amd64

package witness

// #include <dlfcn.h>
// #include <stdlib.h>
// #include "slots.h"
// #cgo LDFLAGS: -ldl
//
// CUresult cuInit(unsigned flags);
// CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
import "C"

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// The compiler refuses this where a Function is more than a handle.
var _ = [1]struct{}{}[unsafe.Sizeof(cu.Function{})-unsafe.Sizeof(C.CUfunction(nil))]

// Simulate lets the binding call a table of functions, a *gofsdp_driver in C, which stays to the end of the
// process, and initialises the driver.
func Simulate(table unsafe.Pointer) error {
	if name := C.witness_simulate((*C.gofsdp_driver)(table)); name != nil {
		return fmt.Errorf("witness: cuda.h declares no %s, which our table has", C.GoString(name))
	}
	return initialise()
}

// Open lets the binding call a driver, of which path is the file, and initialises it.
func Open(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	library := C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL)
	if library == nil {
		return fmt.Errorf("witness: %s", C.GoString(C.dlerror()))
	}
	if C.witness_open(library) == 0 {
		return fmt.Errorf("witness: %s has none of the driver's functions", path)
	}
	return initialise()
}

func initialise() error {
	if r := C.cuInit(0); r != 0 {
		return fmt.Errorf("witness: cuInit says %d", int(r))
	}
	return nil
}

// consent lets a kernel have so many bytes of dynamic shared memory: the one call that our kernels need and the
// binding has not. The binding's Function is the driver's, and nothing else.
func consent(f cu.Function, shared int) error {
	const maxDynamicShared = 8 // CUfunction_attribute
	if r := C.cuFuncSetAttribute(*(*C.CUfunction)(unsafe.Pointer(&f)), maxDynamicShared, C.int(shared)); r != 0 {
		return fmt.Errorf("witness: %d bytes of shared memory: cuFuncSetAttribute says %d", shared, int(r))
	}
	return nil
}

// Missed names the function that was called last while its slot was empty; empty where none was.
func Missed() string {
	if C.cu_missed < 0 {
		return ""
	}
	names := unsafe.Slice((**C.char)(unsafe.Pointer(&C.cu_names)), int(C.cu_count))
	return C.GoString(names[C.cu_missed])
}
