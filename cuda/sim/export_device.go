//go:build sim && cgo && linux

package sim

/*
#include <stdint.h>
#include "../table.h"
extern const gofsdp_driver sim_table;
*/
import "C"

import (
	"slices"
	"sync"
	"syscall"
	"unsafe"
)

// The functions of the table, by topic: they check what a null pointer would
// break, find what handles stand for, and call what the other files define.

// Table returns the driver's table of functions, a *gofsdp_driver in C. It is
// the same for every machine: its functions act on the one that runs.
func (m *Machine) Table() unsafe.Pointer { return unsafe.Pointer(&C.sim_table) }

// null refuses a pointer that nothing can be written to.
func null(p unsafe.Pointer) error {
	if p == nil {
		return refuse(InvalidValue, "a null pointer")
	}
	return nil
}

// put writes the result of a call, unless it failed or there is no place for it.
func put[T any](to *T, value T, err error) error {
	if err != nil {
		return err
	}
	if to == nil {
		return refuse(InvalidValue, "a null pointer for the result")
	}
	*to = value
	return nil
}

//export sim_cuInit
func sim_cuInit(flags C.uint) C.CUresult {
	return C.CUresult(inDriver("cuInit", func(m *Machine) error {
		switch {
		case flags != 0:
			return refuse(InvalidValue, "flags %#x; they must be 0", uint(flags))
		case m.config.Init != Success:
			return refuse(m.config.Init, "as the machine was configured")
		case len(m.devices) == 0:
			return refuse(NoDevice, "the machine has no device")
		}
		m.ready = true
		return nil
	}))
}

//export sim_cuDriverGetVersion
func sim_cuDriverGetVersion(version *C.int) C.CUresult {
	return C.CUresult(inDriver("cuDriverGetVersion", func(m *Machine) error {
		return put(version, C.int(m.config.Driver), nil)
	}))
}

// cTexts are C copies of what texts holds, which stay for ever.
var cTexts = sync.OnceValue(func() map[Result][2]*C.char {
	all := map[Result][2]*C.char{}
	for r, t := range texts {
		all[r] = [2]*C.char{C.CString(t[0]), C.CString(t[1])}
	}
	return all
})

// text is cuGetErrorName and cuGetErrorString, which need no cuInit.
func text(call string, r C.CUresult, which int, to **C.char) C.CUresult {
	return C.CUresult(inDriver(call, func(*Machine) error {
		t, ok := cTexts()[Result(r)]
		err := put(to, t[which], nil)
		if err == nil && !ok {
			return refuse(InvalidValue, "%d is no CUresult that is known", int(r))
		}
		return err
	}))
}

//export sim_cuGetErrorName
func sim_cuGetErrorName(r C.CUresult, name **C.char) C.CUresult {
	return text("cuGetErrorName", r, 0, name)
}

//export sim_cuGetErrorString
func sim_cuGetErrorString(r C.CUresult, s **C.char) C.CUresult {
	return text("cuGetErrorString", r, 1, s)
}

//export sim_cuDeviceGetCount
func sim_cuDeviceGetCount(count *C.int) C.CUresult {
	return C.CUresult(inDevice("cuDeviceGetCount", func(m *Machine) error {
		return put(count, C.int(len(m.devices)), nil)
	}))
}

//export sim_cuDeviceGet
func sim_cuDeviceGet(to *C.CUdevice, ordinal C.int) C.CUresult {
	return C.CUresult(inDevice("cuDeviceGet", func(m *Machine) error {
		_, err := m.device(int(ordinal))
		return put(to, C.CUdevice(ordinal), err)
	}))
}

// putText writes a text with its final zero into len bytes; whole says that it may not be cut.
func putText(to *C.char, length C.int, s string, whole bool) error {
	if to == nil || length <= 0 || whole && int(length) <= len(s) {
		return refuse(InvalidValue, "%d bytes for %q and a zero", int(length), s)
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(to)), int(length))
	b[copy(b[:len(b)-1], s)] = 0
	return nil
}

//export sim_cuDeviceGetName
func sim_cuDeviceGetName(name *C.char, length C.int, n C.CUdevice) C.CUresult {
	return C.CUresult(inDevice("cuDeviceGetName", func(m *Machine) error {
		d, err := m.device(int(n))
		if err != nil {
			return err
		}
		return putText(name, length, d.Name, false)
	}))
}

//export sim_cuDeviceGetPCIBusId
func sim_cuDeviceGetPCIBusId(id *C.char, length C.int, n C.CUdevice) C.CUresult {
	return C.CUresult(inDevice("cuDeviceGetPCIBusId", func(m *Machine) error {
		d, err := m.device(int(n))
		if err != nil {
			return err
		}
		return putText(id, length, d.bus(int(n)), true)
	}))
}

//export sim_cuDeviceGetUuid
func sim_cuDeviceGetUuid(uuid *C.CUuuid, n C.CUdevice) C.CUresult {
	return C.CUresult(inDevice("cuDeviceGetUuid", func(m *Machine) error {
		d, err := m.device(int(n))
		if err != nil {
			return err
		}
		return put((*[16]byte)(unsafe.Pointer(uuid)), d.uuid(int(n)), nil)
	}))
}

//export sim_cuDeviceGetAttribute
func sim_cuDeviceGetAttribute(value *C.int, which C.int, n C.CUdevice) C.CUresult {
	return C.CUresult(inDevice("cuDeviceGetAttribute", func(m *Machine) error {
		d, err := m.device(int(n))
		if err != nil {
			return err
		}
		if !d.has(int(which)) {
			return refuse(InvalidValue, "attribute %d of a device", int(which))
		}
		return put(value, C.int(d.attribute(int(which), int(n))), nil)
	}))
}

//export sim_cuDeviceTotalMem
func sim_cuDeviceTotalMem(bytes *C.size_t, n C.CUdevice) C.CUresult {
	return C.CUresult(inDevice("cuDeviceTotalMem", func(m *Machine) error {
		d, err := m.device(int(n))
		if err != nil {
			return err
		}
		return put(bytes, C.size_t(d.Memory), nil)
	}))
}

//export sim_cuDevicePrimaryCtxRetain
func sim_cuDevicePrimaryCtxRetain(context *C.uintptr_t, n C.CUdevice) C.CUresult {
	return C.CUresult(inDevice("cuDevicePrimaryCtxRetain", func(m *Machine) error {
		d, err := m.device(int(n))
		if err != nil {
			return err
		}
		if err := null(unsafe.Pointer(context)); err != nil {
			return err
		}
		if d.Taken > d.Memory {
			return refuse(OutOfMemory, "a context takes %d bytes, and the device has %d", d.Taken, d.Memory)
		}
		*context = C.uintptr_t(d.retain().handle)
		return nil
	}))
}

//export sim_cuDevicePrimaryCtxRelease
func sim_cuDevicePrimaryCtxRelease(n C.CUdevice) C.CUresult {
	return C.CUresult(inDevice("cuDevicePrimaryCtxRelease", func(m *Machine) error {
		d, err := m.device(int(n))
		if err != nil {
			return err
		}
		return d.release()
	}))
}

//export sim_cuCtxSetCurrent
func sim_cuCtxSetCurrent(handle C.uintptr_t) C.CUresult {
	return C.CUresult(inDevice("cuCtxSetCurrent", func(m *Machine) error {
		if handle == 0 {
			delete(m.current, syscall.Gettid())
			return nil
		}
		c, ok := m.contexts[uintptr(handle)]
		if !ok || c.retained == 0 {
			return refuse(InvalidContext, "handle %#x is of no context that is retained", uintptr(handle))
		}
		m.current[syscall.Gettid()] = c
		return nil
	}))
}

//export sim_cuCtxGetCurrent
func sim_cuCtxGetCurrent(handle *C.uintptr_t) C.CUresult {
	return C.CUresult(inDevice("cuCtxGetCurrent", func(m *Machine) error {
		var h uintptr
		if c := m.current[syscall.Gettid()]; c != nil {
			h = c.handle
		}
		return put(handle, C.uintptr_t(h), nil)
	}))
}

//export sim_cuCtxSynchronize
func sim_cuCtxSynchronize() C.CUresult {
	return C.CUresult(inContext("cuCtxSynchronize", func(c *context) error {
		i := slices.IndexFunc(c.m.captures, func(o *capture) bool { return o.origin.ctx == c })
		if i >= 0 {
			return c.m.captures[i].violated("the context is waited for")
		}
		if err := c.m.safe("cuCtxSynchronize"); err != nil {
			return err
		}
		return c.drain()
	}))
}

//export sim_cuCtxGetStreamPriorityRange
func sim_cuCtxGetStreamPriorityRange(least, greatest *C.int) C.CUresult {
	return C.CUresult(inContext("cuCtxGetStreamPriorityRange", func(*context) error {
		// "A NULL may be passed in for leastPriority or greatestPriority if the value is not desired."
		if least != nil {
			*least = priorityLeast
		}
		if greatest != nil {
			*greatest = priorityGreatest
		}
		return nil
	}))
}
