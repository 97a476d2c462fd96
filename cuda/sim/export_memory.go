//go:build sim && cgo && linux

package sim

/*
#include <stdint.h>
#include "../table.h"
*/
import "C"

import "unsafe"

//export sim_cuMemGetInfo
func sim_cuMemGetInfo(unused, total *C.size_t) C.CUresult {
	return C.CUresult(inContext("cuMemGetInfo", func(c *context) error {
		if unused == nil || total == nil {
			return null(nil)
		}
		*unused, *total = C.size_t(c.device.Memory-c.device.used), C.size_t(c.device.Memory)
		return nil
	}))
}

//export sim_cuMemAlloc
func sim_cuMemAlloc(address *C.CUdeviceptr, bytes C.size_t) C.CUresult {
	return C.CUresult(inContext("cuMemAlloc", func(c *context) error {
		if err := null(unsafe.Pointer(address)); err != nil {
			return err
		}
		a, err := c.alloc(uint64(bytes))
		if err != nil {
			return err
		}
		*address = C.CUdeviceptr(a.Base)
		return nil
	}))
}

//export sim_cuMemFree
func sim_cuMemFree(address C.CUdeviceptr) C.CUresult {
	return C.CUresult(inContext("cuMemFree", func(c *context) error { return c.free(uint64(address)) }))
}

//export sim_cuMemHostAlloc
func sim_cuMemHostAlloc(host *unsafe.Pointer, bytes C.size_t, flags C.uint) C.CUresult {
	return C.CUresult(inContext("cuMemHostAlloc", func(c *context) error {
		if err := null(unsafe.Pointer(host)); err != nil {
			return err
		}
		a, err := c.pin(uint64(bytes), uint32(flags))
		if err != nil {
			return err
		}
		*host = unsafe.Pointer(&a.Bytes[0])
		return nil
	}))
}

//export sim_cuMemHostGetDevicePointer
func sim_cuMemHostGetDevicePointer(address *C.CUdeviceptr, host unsafe.Pointer, flags C.uint) C.CUresult {
	return C.CUresult(inContext("cuMemHostGetDevicePointer", func(c *context) error {
		switch {
		case flags != 0:
			return refuse(InvalidValue, "flags %#x; they must be 0", uint(flags))
		case c.m.pinnedAt(uintptr(host)) == nil:
			return refuse(InvalidValue, "%#x is not in pinned memory", uintptr(host))
		}
		// One address space: CUDA driver API reference, "Unified addressing".
		return put(address, C.CUdeviceptr(uintptr(host)), nil)
	}))
}

//export sim_cuMemFreeHost
func sim_cuMemFreeHost(host unsafe.Pointer) C.CUresult {
	return C.CUresult(inContext("cuMemFreeHost", func(c *context) error { return c.unpin(uintptr(host)) }))
}

// inStream runs a call that has a stream.
func inStream(call string, handle C.uintptr_t, f func(c *context, s *stream) error) C.CUresult {
	return C.CUresult(inContext(call, func(c *context) error {
		s, err := c.stream(uintptr(handle))
		if err != nil {
			return err
		}
		return f(c, s)
	}))
}

//export sim_cuMemcpyHtoDAsync
func sim_cuMemcpyHtoDAsync(to C.CUdeviceptr, from unsafe.Pointer, bytes C.size_t, handle C.uintptr_t) C.CUresult {
	return inStream("cuMemcpyHtoDAsync", handle, func(c *context, s *stream) error {
		return c.toDevice(uint64(to), from, uint64(bytes), s)
	})
}

//export sim_cuMemcpyDtoHAsync
func sim_cuMemcpyDtoHAsync(to unsafe.Pointer, from C.CUdeviceptr, bytes C.size_t, handle C.uintptr_t) C.CUresult {
	return inStream("cuMemcpyDtoHAsync", handle, func(c *context, s *stream) error {
		return c.toHost(to, uint64(from), uint64(bytes), s)
	})
}

//export sim_cuMemcpyDtoDAsync
func sim_cuMemcpyDtoDAsync(to, from C.CUdeviceptr, bytes C.size_t, handle C.uintptr_t) C.CUresult {
	return inStream("cuMemcpyDtoDAsync", handle, func(c *context, s *stream) error {
		return c.onDevice(uint64(to), uint64(from), uint64(bytes), s)
	})
}

//export sim_cuMemsetD8Async
func sim_cuMemsetD8Async(to C.CUdeviceptr, value C.uchar, count C.size_t, handle C.uintptr_t) C.CUresult {
	return inStream("cuMemsetD8Async", handle, func(c *context, s *stream) error {
		return c.fill(uint64(to), uint32(value), 1, uint64(count), s)
	})
}

//export sim_cuMemsetD16Async
func sim_cuMemsetD16Async(to C.CUdeviceptr, value C.ushort, count C.size_t, handle C.uintptr_t) C.CUresult {
	return inStream("cuMemsetD16Async", handle, func(c *context, s *stream) error {
		return c.fill(uint64(to), uint32(value), 2, uint64(count), s)
	})
}

//export sim_cuMemsetD32Async
func sim_cuMemsetD32Async(to C.CUdeviceptr, value C.uint, count C.size_t, handle C.uintptr_t) C.CUresult {
	return inStream("cuMemsetD32Async", handle, func(c *context, s *stream) error {
		return c.fill(uint64(to), uint32(value), 4, uint64(count), s)
	})
}
