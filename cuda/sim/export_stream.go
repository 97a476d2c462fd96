//go:build sim && cgo && linux

package sim

/*
#include <stdint.h>
#include "../table.h"
*/
import "C"

import "unsafe"

//export sim_cuStreamCreateWithPriority
func sim_cuStreamCreateWithPriority(to *C.uintptr_t, flags C.uint, priority C.int) C.CUresult {
	return C.CUresult(inContext("cuStreamCreateWithPriority", func(c *context) error {
		if err := null(unsafe.Pointer(to)); err != nil {
			return err
		}
		s, err := c.newStream(int(flags), int(priority))
		if err != nil {
			return err
		}
		*to = C.uintptr_t(s.handle)
		return nil
	}))
}

//export sim_cuStreamDestroy
func sim_cuStreamDestroy(handle C.uintptr_t) C.CUresult {
	return inStream("cuStreamDestroy", handle, func(c *context, s *stream) error { return c.destroyStream(s) })
}

//export sim_cuStreamQuery
func sim_cuStreamQuery(handle C.uintptr_t) C.CUresult {
	return inStream("cuStreamQuery", handle, func(_ *context, s *stream) error { return s.query() })
}

//export sim_cuStreamSynchronize
func sim_cuStreamSynchronize(handle C.uintptr_t) C.CUresult {
	return inStream("cuStreamSynchronize", handle, func(_ *context, s *stream) error { return s.synchronize() })
}

//export sim_cuStreamWaitEvent
func sim_cuStreamWaitEvent(handle, event C.uintptr_t, flags C.uint) C.CUresult {
	return inStream("cuStreamWaitEvent", handle, func(c *context, s *stream) error {
		e, err := find(c.m.events, kindEvent, uintptr(event))
		if err != nil {
			return err
		}
		return e.wait(s, int(flags))
	})
}

//export sim_cuStreamBeginCapture
func sim_cuStreamBeginCapture(handle C.uintptr_t, mode C.int) C.CUresult {
	return inStream("cuStreamBeginCapture", handle, func(_ *context, s *stream) error { return s.begin(int(mode)) })
}

//export sim_cuStreamEndCapture
func sim_cuStreamEndCapture(handle C.uintptr_t, to *C.uintptr_t) C.CUresult {
	return inStream("cuStreamEndCapture", handle, func(_ *context, s *stream) error {
		if err := null(unsafe.Pointer(to)); err != nil {
			return err
		}
		*to = 0 // "If capture was invalidated, a NULL graph will be returned."
		g, err := s.end()
		if err != nil {
			return err
		}
		*to = C.uintptr_t(g.handle)
		return nil
	})
}

//export sim_cuGraphInstantiate
func sim_cuGraphInstantiate(to *C.uintptr_t, handle C.uintptr_t, flags C.ulonglong) C.CUresult {
	return C.CUresult(inContext("cuGraphInstantiate", func(c *context) error {
		g, err := find(c.m.graphs, kindGraph, uintptr(handle))
		if err != nil {
			return err
		}
		if err := null(unsafe.Pointer(to)); err != nil {
			return err
		}
		x, err := g.instantiate(uint64(flags))
		if err != nil {
			return err
		}
		*to = C.uintptr_t(x.handle)
		return nil
	}))
}

//export sim_cuGraphLaunch
func sim_cuGraphLaunch(executable, handle C.uintptr_t) C.CUresult {
	return inStream("cuGraphLaunch", handle, func(c *context, s *stream) error {
		x, err := find(c.m.execs, kindExecutable, uintptr(executable))
		if err != nil {
			return err
		}
		return x.launch(s)
	})
}

//export sim_cuGraphExecDestroy
func sim_cuGraphExecDestroy(handle C.uintptr_t) C.CUresult {
	return C.CUresult(inContext("cuGraphExecDestroy", func(c *context) error {
		_, err := find(c.m.execs, kindExecutable, uintptr(handle))
		delete(c.m.execs, uintptr(handle))
		return err
	}))
}

//export sim_cuGraphDestroy
func sim_cuGraphDestroy(handle C.uintptr_t) C.CUresult {
	return C.CUresult(inContext("cuGraphDestroy", func(c *context) error {
		_, err := find(c.m.graphs, kindGraph, uintptr(handle))
		delete(c.m.graphs, uintptr(handle))
		return err
	}))
}

//export sim_cuEventCreate
func sim_cuEventCreate(to *C.uintptr_t, flags C.uint) C.CUresult {
	return C.CUresult(inContext("cuEventCreate", func(c *context) error {
		if err := null(unsafe.Pointer(to)); err != nil {
			return err
		}
		e, err := c.newEvent(int(flags))
		if err != nil {
			return err
		}
		*to = C.uintptr_t(e.handle)
		return nil
	}))
}

// withEvent runs a call that has an event.
func withEvent(call string, handle C.uintptr_t, f func(c *context, e *event) error) C.CUresult {
	return C.CUresult(inContext(call, func(c *context) error {
		e, err := find(c.m.events, kindEvent, uintptr(handle))
		if err != nil {
			return err
		}
		return f(c, e)
	}))
}

//export sim_cuEventRecord
func sim_cuEventRecord(handle, stream C.uintptr_t) C.CUresult {
	return withEvent("cuEventRecord", handle, func(c *context, e *event) error {
		s, err := c.stream(uintptr(stream))
		if err != nil {
			return err
		}
		return e.record(s)
	})
}

//export sim_cuEventQuery
func sim_cuEventQuery(handle C.uintptr_t) C.CUresult {
	return withEvent("cuEventQuery", handle, func(_ *context, e *event) error { return e.query() })
}

//export sim_cuEventSynchronize
func sim_cuEventSynchronize(handle C.uintptr_t) C.CUresult {
	return withEvent("cuEventSynchronize", handle, func(c *context, e *event) error { return e.synchronize(c) })
}

//export sim_cuEventElapsedTime
func sim_cuEventElapsedTime(milliseconds *C.float, from, to C.uintptr_t) C.CUresult {
	return withEvent("cuEventElapsedTime", from, func(c *context, first *event) error {
		last, err := find(c.m.events, kindEvent, uintptr(to))
		if err != nil {
			return err
		}
		ms, err := elapsed(first, last)
		return put(milliseconds, C.float(ms), err)
	})
}

//export sim_cuEventDestroy
func sim_cuEventDestroy(handle C.uintptr_t) C.CUresult {
	return withEvent("cuEventDestroy", handle, func(c *context, e *event) error {
		delete(c.m.events, e.handle)
		return nil
	})
}
