//go:build cgo && linux

package cuda

// #include "call.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/kernels"
	"github.com/gofsdp/gofsdp/device"
)

// loadKernels lets the driver compile all modules, and finds the kernels. Doing all at once, before
// anything else has memory, makes what modules take the same from run to run.
func (g *gpu) loadKernels(p Properties) error {
	modules := map[string]C.CUmodule{}
	for _, name := range kernels.Modules() {
		m, err := g.compile(name, kernels.PTX(name))
		if err != nil {
			return err
		}
		modules[name] = m
	}
	for _, k := range kernels.All() {
		f, err := g.function(modules[k.Module], k, p)
		if err != nil {
			return err
		}
		g.functions[k.Name] = f
	}
	return nil
}

// compile loads a module. Its error has what the driver's compiler complained of.
func (g *gpu) compile(name, text string) (m C.CUmodule, err error) {
	const size = 16 << 10
	ptx, log := C.CString(text), (*C.char)(C.malloc(size))
	defer C.free(unsafe.Pointer(ptx))
	defer C.free(unsafe.Pointer(log))
	if r := C.gofsdp_compile(g.driver.table, &m, ptx, log, size); r != 0 {
		e := g.driver.failure(r, "cuModuleLoadDataEx", fmt.Sprintf("%s: module %s of kernels", g.name, name))
		e.Detail = strings.TrimSpace(C.GoString(log))
		return nil, e
	}
	g.modules = append(g.modules, m)
	return m, nil
}

// function finds a kernel, lets it have the shared memory that its launches ask for, and asks what the compiler
// made of it. Drivers may put off loading a function until it is first used, which then waits for the GPU and
// holds the context's lock: a collective that other threads must keep going would never end. To ask for an
// attribute loads it now.
func (g *gpu) function(m C.CUmodule, k kernels.Kernel, p Properties) (f C.CUfunction, err error) {
	const (
		staticShared, localBytes, registers, maxDynamicShared = 1, 3, 4, 8 // CUfunction_attribute

		withoutConsent = 48 << 10 // what any kernel may have
	)
	name := C.CString(k.Name)
	defer C.free(unsafe.Pointer(name))
	if r := C.call_cuModuleGetFunction(g.driver.table, &f, m, name); r != 0 {
		return nil, g.driver.failure(r, "cuModuleGetFunction", fmt.Sprintf("%s: kernel %s of module %s", g.name, k.Name, k.Module))
	}
	if int64(k.Shared) > p.Shared {
		return nil, fmt.Errorf("cuda: %s, %s, has %d bytes of shared memory for a block, and kernel %s needs %d", g.name, p.Name, p.Shared, k.Name, k.Shared)
	}
	if k.Shared > withoutConsent {
		if r := C.call_cuFuncSetAttribute(g.driver.table, f, maxDynamicShared, C.int(k.Shared)); r != 0 {
			return nil, g.driver.failure(r, "cuFuncSetAttribute", fmt.Sprintf("%s: kernel %s, %d bytes of shared memory", g.name, k.Name, k.Shared))
		}
	}
	var made [registers + 1]C.int
	for _, which := range []C.int{staticShared, localBytes, registers} {
		if r := C.call_cuFuncGetAttribute(g.driver.table, &made[which], which, f); r != 0 {
			return nil, g.driver.failure(r, "cuFuncGetAttribute", fmt.Sprintf("%s: kernel %s, attribute %d", g.name, k.Name, which))
		}
	}
	g.compiled = append(g.compiled, Compiled{
		Kernel: k, Registers: int(made[registers]), Spilled: int(made[localBytes]), Shared: int(made[staticShared]) + k.Shared,
	})
	return f, nil
}

// CompiledKernels returns what the driver's compiler made of each kernel for a device of New; nil for another.
func CompiledKernels(d device.Device) []Compiled {
	if g, ok := d.(*gpu); ok {
		return g.compiled
	}
	return nil
}
