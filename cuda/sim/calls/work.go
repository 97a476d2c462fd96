//go:build sim && cgo && linux

package calls

/*
#include <stdlib.h>
#include <string.h>
#include "calls.h"
*/
import "C"

import "unsafe"

func (Driver) StreamCreateWithPriority(stream *uintptr, flags uint32, priority int) int {
	return int(C.call_cuStreamCreateWithPriority((*C.CUstream)(place(stream)), C.uint(flags), C.int(priority)))
}

func (Driver) StreamDestroy(stream uintptr) int {
	return int(C.call_cuStreamDestroy(C.CUstream(handle(stream))))
}

func (Driver) StreamQuery(stream uintptr) int {
	return int(C.call_cuStreamQuery(C.CUstream(handle(stream))))
}

func (Driver) StreamSynchronize(stream uintptr) int {
	return int(C.call_cuStreamSynchronize(C.CUstream(handle(stream))))
}

func (Driver) StreamWaitEvent(stream, event uintptr, flags uint32) int {
	return int(C.call_cuStreamWaitEvent(C.CUstream(handle(stream)), C.CUevent(handle(event)), C.uint(flags)))
}

func (Driver) StreamBeginCapture(stream uintptr, mode int) int {
	return int(C.call_cuStreamBeginCapture(C.CUstream(handle(stream)), C.int(mode)))
}

func (Driver) StreamEndCapture(stream uintptr, graph *uintptr) int {
	return int(C.call_cuStreamEndCapture(C.CUstream(handle(stream)), (*C.CUgraph)(place(graph))))
}

func (Driver) GraphInstantiate(executable *uintptr, graph uintptr, flags uint64) int {
	return int(C.call_cuGraphInstantiate((*C.CUgraphExec)(place(executable)), C.CUgraph(handle(graph)), C.ulonglong(flags)))
}

func (Driver) GraphLaunch(executable, stream uintptr) int {
	return int(C.call_cuGraphLaunch(C.CUgraphExec(handle(executable)), C.CUstream(handle(stream))))
}

func (Driver) GraphExecDestroy(executable uintptr) int {
	return int(C.call_cuGraphExecDestroy(C.CUgraphExec(handle(executable))))
}

func (Driver) GraphDestroy(graph uintptr) int {
	return int(C.call_cuGraphDestroy(C.CUgraph(handle(graph))))
}

func (Driver) EventCreate(event *uintptr, flags uint32) int {
	return int(C.call_cuEventCreate((*C.CUevent)(place(event)), C.uint(flags)))
}

func (Driver) EventRecord(event, stream uintptr) int {
	return int(C.call_cuEventRecord(C.CUevent(handle(event)), C.CUstream(handle(stream))))
}

func (Driver) EventQuery(event uintptr) int {
	return int(C.call_cuEventQuery(C.CUevent(handle(event))))
}

func (Driver) EventSynchronize(event uintptr) int {
	return int(C.call_cuEventSynchronize(C.CUevent(handle(event))))
}

func (Driver) EventElapsedTime(milliseconds *float32, from, to uintptr) int {
	return int(C.call_cuEventElapsedTime((*C.float)(milliseconds), C.CUevent(handle(from)), C.CUevent(handle(to))))
}

func (Driver) EventDestroy(event uintptr) int {
	return int(C.call_cuEventDestroy(C.CUevent(handle(event))))
}

// ModuleLoadDataEx loads a PTX text. What the driver has to say about errors
// goes to log, where that is not nil, cut to room bytes.
func (Driver) ModuleLoadDataEx(module *uintptr, image string, log *string, room int) int {
	text := C.CString(image)
	defer C.free(unsafe.Pointer(text))
	if log == nil {
		return int(C.call_cuModuleLoadDataEx((*C.CUmodule)(place(module)), unsafe.Pointer(text), 0, nil, nil))
	}
	// 5 and 6: CU_JIT_ERROR_LOG_BUFFER and its size.
	buffer := C.calloc(1, C.size_t(room+1))
	defer C.free(buffer)
	options := (*[2]C.int)(C.calloc(2, 4))
	defer C.free(unsafe.Pointer(options))
	values := (*[2]uintptr)(C.calloc(2, 8))
	defer C.free(unsafe.Pointer(values))
	options[0], options[1] = 5, 6
	values[0], values[1] = uintptr(buffer), uintptr(room)
	r := C.call_cuModuleLoadDataEx((*C.CUmodule)(place(module)), unsafe.Pointer(text), 2, &options[0], (*unsafe.Pointer)(unsafe.Pointer(&values[0])))
	*log = C.GoStringN((*C.char)(buffer), C.int(min(int(values[1]), room)))
	return int(r)
}

// ModuleLoadOption loads nothing, with one option of this number.
func (Driver) ModuleLoadOption(module *uintptr, option int32) int {
	image := [1]byte{}
	o, value := C.int(option), unsafe.Pointer(nil)
	return int(C.call_cuModuleLoadDataEx((*C.CUmodule)(place(module)), unsafe.Pointer(&image), 1, &o, &value))
}

func (Driver) ModuleUnload(module uintptr) int {
	return int(C.call_cuModuleUnload(C.CUmodule(handle(module))))
}

func (Driver) ModuleGetFunction(function *uintptr, module uintptr, name string) int {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return int(C.call_cuModuleGetFunction((*C.CUfunction)(place(function)), C.CUmodule(handle(module)), n))
}

func (Driver) FuncGetAttribute(value *int32, which int, function uintptr) int {
	return int(C.call_cuFuncGetAttribute((*C.int)(value), C.int(which), C.CUfunction(handle(function))))
}

func (Driver) FuncSetAttribute(function uintptr, which, value int) int {
	return int(C.call_cuFuncSetAttribute(C.CUfunction(handle(function)), C.int(which), C.int(value)))
}

// LaunchKernel starts a kernel with its parameters, each as bytes; nil stands
// for a null pointer. The places they are passed in are overwritten before it
// returns. Extra says to pass a pointer for that as well.
func (Driver) LaunchKernel(function uintptr, grid, block [3]uint32, shared uint32, stream uintptr, extra bool, parameters ...[]byte) int {
	var places *unsafe.Pointer
	var more *unsafe.Pointer
	if len(parameters) > 0 {
		places = (*unsafe.Pointer)(C.calloc(C.size_t(len(parameters)), 8))
		defer C.free(unsafe.Pointer(places))
		for i, p := range parameters {
			if p == nil {
				continue
			}
			c := C.CBytes(p)
			defer C.free(c)
			defer C.memset(c, 0xee, C.size_t(len(p)))
			unsafe.Slice(places, len(parameters))[i] = c
		}
	}
	if extra {
		more = (*unsafe.Pointer)(C.calloc(1, 8))
		defer C.free(unsafe.Pointer(more))
	}
	return int(C.call_cuLaunchKernel(C.CUfunction(handle(function)), C.uint(grid[0]), C.uint(grid[1]), C.uint(grid[2]),
		C.uint(block[0]), C.uint(block[1]), C.uint(block[2]), C.uint(shared), C.CUstream(handle(stream)), places, more))
}
