//go:build sim && cgo && linux

package sim

/*
#include <stdint.h>
#include "../table.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// Options of cuModuleLoadDataEx that give a place for messages: enum CUjit_option.
const (
	jitInfoLog      = 3
	jitInfoLogSize  = 4
	jitErrorLog     = 5
	jitErrorLogSize = 6
	jitOptions      = 34 // how many there are in CUDA 12
)

// jitLog writes a text where an option said, and its length where the size was.
func jitLog(options []C.int, values []unsafe.Pointer, buffer, size C.int, text string) {
	var at *byte
	var room *unsafe.Pointer
	for i, o := range options {
		switch o {
		case buffer:
			at = (*byte)(values[i])
		case size:
			room = &values[i]
		}
	}
	if room == nil {
		return
	}
	n := uintptr(*room)
	written := uintptr(0)
	if at != nil && n > 0 {
		b := unsafe.Slice(at, n)
		written = uintptr(copy(b[:n-1], text))
		b[written] = 0
	}
	*(*uintptr)(unsafe.Pointer(room)) = written
}

//export sim_cuModuleLoadDataEx
func sim_cuModuleLoadDataEx(to *C.uintptr_t, image unsafe.Pointer, count C.uint, options *C.int, values *unsafe.Pointer) C.CUresult {
	return C.CUresult(inContext("cuModuleLoadDataEx", func(c *context) error {
		if to == nil || image == nil || count > 0 && (options == nil || values == nil) {
			return null(nil)
		}
		names, places := unsafe.Slice(options, count), unsafe.Slice(values, count)
		for _, o := range names {
			if o < 0 || o >= jitOptions {
				return refuse(InvalidValue, "option %d of a module", int(o))
			}
		}
		o, err := c.load(C.GoString((*C.char)(image)))
		why := ""
		if r := (*refusal)(nil); errors.As(err, &r) {
			why = r.why
		}
		jitLog(names, places, jitErrorLog, jitErrorLogSize, why)
		jitLog(names, places, jitInfoLog, jitInfoLogSize, "")
		if err != nil {
			return err
		}
		*to = C.uintptr_t(o.handle)
		return nil
	}))
}

//export sim_cuModuleUnload
func sim_cuModuleUnload(handle C.uintptr_t) C.CUresult {
	return C.CUresult(inContext("cuModuleUnload", func(c *context) error {
		o, err := find(c.m.modules, kindModule, uintptr(handle))
		if err != nil {
			return err
		}
		return o.unload()
	}))
}

//export sim_cuModuleGetFunction
func sim_cuModuleGetFunction(to *C.uintptr_t, handle C.uintptr_t, name *C.char) C.CUresult {
	return C.CUresult(inContext("cuModuleGetFunction", func(c *context) error {
		o, err := find(c.m.modules, kindModule, uintptr(handle))
		if err != nil {
			return err
		}
		if to == nil || name == nil {
			return null(nil)
		}
		f, err := o.function(C.GoString(name))
		if err != nil {
			return err
		}
		*to = C.uintptr_t(f.handle)
		return nil
	}))
}

// withFunction runs a call that has a function.
func withFunction(call string, handle C.uintptr_t, f func(c *context, f *function) error) C.CUresult {
	return C.CUresult(inContext(call, func(c *context) error {
		found, err := find(c.m.functions, kindFunction, uintptr(handle))
		if err != nil {
			return err
		}
		return f(c, found)
	}))
}

//export sim_cuFuncGetAttribute
func sim_cuFuncGetAttribute(value *C.int, which C.int, handle C.uintptr_t) C.CUresult {
	return withFunction("cuFuncGetAttribute", handle, func(_ *context, f *function) error {
		v, err := f.attribute(int(which))
		return put(value, C.int(v), err)
	})
}

//export sim_cuFuncSetAttribute
func sim_cuFuncSetAttribute(handle C.uintptr_t, which, value C.int) C.CUresult {
	return withFunction("cuFuncSetAttribute", handle, func(_ *context, f *function) error {
		return f.setAttribute(int(which), int(value))
	})
}

//export sim_cuLaunchKernel
func sim_cuLaunchKernel(handle C.uintptr_t, gridX, gridY, gridZ, blockX, blockY, blockZ, shared C.uint,
	stream C.uintptr_t, parameters, extra *unsafe.Pointer,
) C.CUresult {
	return withFunction("cuLaunchKernel", handle, func(c *context, f *function) error {
		s, err := c.stream(uintptr(stream))
		switch {
		case err != nil:
			return err
		case parameters != nil && extra != nil:
			return refuse(InvalidValue, "both kernelParams and extra")
		case extra != nil:
			return refuse(NotSupported, "parameters in extra: give kernelParams")
		case parameters == nil && len(f.kernel.Params) > 0:
			return refuse(InvalidValue, "%s has %d parameters, and none are given", f.kernel.Name, len(f.kernel.Params))
		}
		// "The parameters are copied before the call returns": their places are the caller's.
		args := make([]byte, f.kernel.ArgsSize)
		for i, from := range unsafe.Slice(parameters, len(f.kernel.Params)) {
			p := f.kernel.Params[i]
			if from == nil {
				return refuse(InvalidValue, "parameter %d of %s is at a null pointer", i, f.kernel.Name)
			}
			copy(args[p.Offset:], unsafe.Slice((*byte)(from), p.Size))
		}
		grid := [3]uint32{uint32(gridX), uint32(gridY), uint32(gridZ)}
		block := [3]uint32{uint32(blockX), uint32(blockY), uint32(blockZ)}
		return f.launch(grid, block, uint32(shared), s, args)
	})
}
