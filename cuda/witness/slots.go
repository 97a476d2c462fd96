//go:build cu && cgo && linux && amd64

package witness

// #include <dlfcn.h>
// #include <stdlib.h>
// #include "slots.h"
// #cgo LDFLAGS: -ldl
//
// CUresult cuInit(unsigned flags);
import "C"

import (
	"fmt"
	"unsafe"
)

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

// Missed names the function that was called last while its slot was empty; empty where none was.
func Missed() string {
	if C.cu_missed < 0 {
		return ""
	}
	names := unsafe.Slice((**C.char)(unsafe.Pointer(&C.cu_names)), int(C.cu_count))
	return C.GoString(names[C.cu_missed])
}
