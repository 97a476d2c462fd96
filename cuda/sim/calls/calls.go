//go:build sim && cgo && linux

package calls

/*
#include "calls.h"
*/
import "C"

import "unsafe"

// Driver calls the table that Use named last. Its methods are the table's
// functions without their "cu": handles and device addresses are numbers,
// results CUresults. Pointers may be nil, as in C.
type Driver struct{}

// Use returns what calls a table, a *gofsdp_driver in C.
func Use(table unsafe.Pointer) Driver {
	C.calls_table = (*C.gofsdp_driver)(table)
	return Driver{}
}

// Count is how often a function has been called, by what it answered.
type Count struct{ Succeeded, Refused int }

// Counts returns the counts of every function of the driver's table since the program began.
func Counts() map[string]Count { return counted(C.calls_counts, C.calls_functions) }

func counted(counts *C.calls_count, functions C.int) map[string]Count {
	all := map[string]Count{}
	for _, c := range unsafe.Slice(counts, functions) {
		all[C.GoString(c.name)] = Count{int(c.succeeded), int(c.refused)}
	}
	return all
}

// handle turns a handle's number into what C takes.
func handle(h uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&h)) }

// place is where C writes a handle.
func place(h *uintptr) *unsafe.Pointer { return (*unsafe.Pointer)(unsafe.Pointer(h)) }

func (Driver) Init(flags uint32) int { return int(C.call_cuInit(C.uint(flags))) }

func (Driver) DriverGetVersion(version *int32) int {
	return int(C.call_cuDriverGetVersion((*C.int)(version)))
}

// text gives a call a place for a C string, and copies it.
func text(to *string, call func(**C.char) C.CUresult) int {
	if to == nil {
		return int(call(nil))
	}
	var s *C.char
	r := call(&s)
	*to = C.GoString(s)
	return int(r)
}

func (Driver) GetErrorName(e int, to *string) int {
	return text(to, func(s **C.char) C.CUresult { return C.call_cuGetErrorName(C.CUresult(e), s) })
}

func (Driver) GetErrorString(e int, to *string) int {
	return text(to, func(s **C.char) C.CUresult { return C.call_cuGetErrorString(C.CUresult(e), s) })
}

func (Driver) DeviceGetCount(count *int32) int { return int(C.call_cuDeviceGetCount((*C.int)(count))) }

func (Driver) DeviceGet(device *int32, ordinal int) int {
	return int(C.call_cuDeviceGet((*C.CUdevice)(device), C.int(ordinal)))
}

func (Driver) DeviceGetName(name []byte, device int32) int {
	return int(C.call_cuDeviceGetName((*C.char)(unsafe.Pointer(unsafe.SliceData(name))), C.int(len(name)), C.CUdevice(device)))
}

func (Driver) DeviceGetUuid(id *[16]byte, device int32) int {
	return int(C.call_cuDeviceGetUuid((*C.CUuuid)(unsafe.Pointer(id)), C.CUdevice(device)))
}

func (Driver) DeviceGetPCIBusId(id []byte, device int32) int {
	return int(C.call_cuDeviceGetPCIBusId((*C.char)(unsafe.Pointer(unsafe.SliceData(id))), C.int(len(id)), C.CUdevice(device)))
}

func (Driver) DeviceGetAttribute(value *int32, which int, device int32) int {
	return int(C.call_cuDeviceGetAttribute((*C.int)(value), C.int(which), C.CUdevice(device)))
}

func (Driver) DeviceTotalMem(bytes *uint64, device int32) int {
	return int(C.call_cuDeviceTotalMem((*C.size_t)(bytes), C.CUdevice(device)))
}

func (Driver) DevicePrimaryCtxRetain(context *uintptr, device int32) int {
	return int(C.call_cuDevicePrimaryCtxRetain((*C.CUcontext)(place(context)), C.CUdevice(device)))
}

func (Driver) DevicePrimaryCtxRelease(device int32) int {
	return int(C.call_cuDevicePrimaryCtxRelease(C.CUdevice(device)))
}

func (Driver) CtxSetCurrent(context uintptr) int {
	return int(C.call_cuCtxSetCurrent(C.CUcontext(handle(context))))
}

func (Driver) CtxGetCurrent(context *uintptr) int {
	return int(C.call_cuCtxGetCurrent((*C.CUcontext)(place(context))))
}

func (Driver) CtxSynchronize() int { return int(C.call_cuCtxSynchronize()) }

func (Driver) CtxGetStreamPriorityRange(least, greatest *int32) int {
	return int(C.call_cuCtxGetStreamPriorityRange((*C.int)(least), (*C.int)(greatest)))
}

func (Driver) MemGetInfo(free, total *uint64) int {
	return int(C.call_cuMemGetInfo((*C.size_t)(free), (*C.size_t)(total)))
}

func (Driver) MemAlloc(address *uint64, bytes uint64) int {
	return int(C.call_cuMemAlloc((*C.CUdeviceptr)(address), C.size_t(bytes)))
}

func (Driver) MemFree(address uint64) int { return int(C.call_cuMemFree(C.CUdeviceptr(address))) }

func (Driver) MemHostAlloc(host *unsafe.Pointer, bytes uint64, flags uint32) int {
	return int(C.call_cuMemHostAlloc(host, C.size_t(bytes), C.uint(flags)))
}

func (Driver) MemHostGetDevicePointer(address *uint64, host unsafe.Pointer, flags uint32) int {
	return int(C.call_cuMemHostGetDevicePointer((*C.CUdeviceptr)(address), host, C.uint(flags)))
}

func (Driver) MemFreeHost(host unsafe.Pointer) int { return int(C.call_cuMemFreeHost(host)) }

func (Driver) MemcpyHtoDAsync(to uint64, from unsafe.Pointer, bytes uint64, stream uintptr) int {
	return int(C.call_cuMemcpyHtoDAsync(C.CUdeviceptr(to), from, C.size_t(bytes), C.CUstream(handle(stream))))
}

func (Driver) MemcpyDtoHAsync(to unsafe.Pointer, from, bytes uint64, stream uintptr) int {
	return int(C.call_cuMemcpyDtoHAsync(to, C.CUdeviceptr(from), C.size_t(bytes), C.CUstream(handle(stream))))
}

func (Driver) MemcpyDtoDAsync(to, from, bytes uint64, stream uintptr) int {
	return int(C.call_cuMemcpyDtoDAsync(C.CUdeviceptr(to), C.CUdeviceptr(from), C.size_t(bytes), C.CUstream(handle(stream))))
}

func (Driver) MemsetD8Async(to uint64, value uint8, count uint64, stream uintptr) int {
	return int(C.call_cuMemsetD8Async(C.CUdeviceptr(to), C.uchar(value), C.size_t(count), C.CUstream(handle(stream))))
}

func (Driver) MemsetD16Async(to uint64, value uint16, count uint64, stream uintptr) int {
	return int(C.call_cuMemsetD16Async(C.CUdeviceptr(to), C.ushort(value), C.size_t(count), C.CUstream(handle(stream))))
}

func (Driver) MemsetD32Async(to uint64, value uint32, count uint64, stream uintptr) int {
	return int(C.call_cuMemsetD32Async(C.CUdeviceptr(to), C.uint(value), C.size_t(count), C.CUstream(handle(stream))))
}
