//go:build sim && cgo && linux

package sim

/*
#include <stdint.h>
#include "../../nccl/table.h"
extern const gofsdp_nccl sim_nccl;
extern char sim_nccl_last[1024];
*/
import "C"

import (
	"errors"
	"sync"
	"unsafe"
)

// NCCLTable returns NCCL's table of functions, a *gofsdp_nccl in C. It is the
// same for every machine: its functions act on the one that runs.
func (m *Machine) NCCLTable() unsafe.Pointer { return unsafe.Pointer(&C.sim_nccl) }

// give is put, with NCCL's result for a null pointer.
func give[T any](to *T, value T) error {
	if to == nil {
		return deny(NCCLInvalidArgument, "a null pointer for the result")
	}
	*to = value
	return nil
}

//export sim_ncclGetVersion
func sim_ncclGetVersion(version *C.int) C.ncclResult_t {
	return C.ncclResult_t(inNCCL("ncclGetVersion", func(m *Machine) error {
		return give(version, C.int(m.ncclVersion()))
	}))
}

//export sim_ncclGetUniqueId
func sim_ncclGetUniqueId(id *C.ncclUniqueId) C.ncclResult_t {
	return C.ncclResult_t(inNCCL("ncclGetUniqueId", func(m *Machine) error {
		if id == nil {
			return give((*int)(nil), 0)
		}
		made, err := m.newID()
		if err != nil {
			return err
		}
		return give((*[128]byte)(unsafe.Pointer(id)), made)
	}))
}

//export sim_ncclCommInitRankConfig
func sim_ncclCommInitRankConfig(to *C.uintptr_t, ranks C.int, id C.ncclUniqueId, rank C.int, config *C.ncclConfig_t) C.ncclResult_t {
	return C.ncclResult_t(inNCCL("ncclCommInitRankConfig", func(m *Machine) error {
		if to == nil {
			return give((*int)(nil), 0)
		}
		g := commConfig{size: 72, magic: 0xcafebeef, version: 22700, blocking: 1}
		if config != nil {
			g = commConfig{
				size: uint64(config.size), magic: uint32(config.magic), version: uint32(config.version),
				blocking: int32(config.blocking), net: C.GoString(config.netName), name: C.GoString(config.commName),
			}
			if g.blocking == -1<<31 { // not set
				g.blocking = 1
			}
		}
		c, err := m.join(int(ranks), *(*[128]byte)(unsafe.Pointer(&id)), int(rank), g)
		if err == nil || errors.Is(err, errInProgress) {
			*to = C.uintptr_t(c.handle)
		}
		return err
	}))
}

// inComm runs a call that has a communicator.
func inComm(call string, handle C.uintptr_t, f func(c *comm) error) C.ncclResult_t {
	return C.ncclResult_t(inNCCL(call, func(m *Machine) error {
		c, err := m.comm(uintptr(handle))
		if err != nil {
			return err
		}
		return f(c)
	}))
}

//export sim_ncclCommFinalize
func sim_ncclCommFinalize(handle C.uintptr_t) C.ncclResult_t {
	return inComm("ncclCommFinalize", handle, func(c *comm) error { c.near("ncclCommFinalize"); return c.finalize() })
}

//export sim_ncclCommDestroy
func sim_ncclCommDestroy(handle C.uintptr_t) C.ncclResult_t {
	return inComm("ncclCommDestroy", handle, func(c *comm) error { c.near("ncclCommDestroy"); return c.destroy() })
}

//export sim_ncclCommAbort
func sim_ncclCommAbort(handle C.uintptr_t) C.ncclResult_t {
	return inComm("ncclCommAbort", handle, func(c *comm) error { return c.aborted() })
}

//export sim_ncclCommGetAsyncError
func sim_ncclCommGetAsyncError(handle C.uintptr_t, to *C.ncclResult_t) C.ncclResult_t {
	return inComm("ncclCommGetAsyncError", handle, func(c *comm) error {
		if to == nil {
			return give((*int)(nil), 0)
		}
		return give(to, C.ncclResult_t(c.asyncError()))
	})
}

// ncclCTexts are C copies of what results are called, which stay for ever.
var ncclCTexts = sync.OnceValue(func() map[NCCLResult]*C.char {
	all := map[NCCLResult]*C.char{-1: C.CString("unknown result code")}
	for r, t := range ncclTexts {
		all[r] = C.CString(t)
	}
	return all
})

//export sim_ncclGetErrorString
func sim_ncclGetErrorString(r C.ncclResult_t) *C.char {
	if text, ok := ncclCTexts()[NCCLResult(r)]; ok {
		return text
	}
	return ncclCTexts()[-1]
}

// sim_ncclGetLastError tells the last of all communicators, as NCCL does.
//
//export sim_ncclGetLastError
func sim_ncclGetLastError(C.uintptr_t) *C.char {
	inNCCL("ncclGetLastError", func(m *Machine) error {
		b := unsafe.Slice((*byte)(unsafe.Pointer(&C.sim_nccl_last[0])), len(C.sim_nccl_last))
		b[copy(b[:len(b)-1], m.nccl.last)] = 0
		return nil
	})
	return &C.sim_nccl_last[0]
}

// inCollective runs a collective.
func inCollective(handle, stream C.uintptr_t, a collectiveCall) C.ncclResult_t {
	return C.ncclResult_t(inNCCL(a.Call, func(m *Machine) error { return m.collective(uintptr(handle), uintptr(stream), a) }))
}

//export sim_ncclAllGather
func sim_ncclAllGather(send, recv C.uintptr_t, count C.size_t, typ C.int, comm, stream C.uintptr_t) C.ncclResult_t {
	return inCollective(comm, stream, collectiveCall{task{"ncclAllGather", uint64(count), int(typ), -1}, 0, uint64(send), uint64(recv), 1, perRank})
}

//export sim_ncclReduceScatter
func sim_ncclReduceScatter(send, recv C.uintptr_t, count C.size_t, typ, op C.int, comm, stream C.uintptr_t) C.ncclResult_t {
	return inCollective(comm, stream, collectiveCall{task{"ncclReduceScatter", uint64(count), int(typ), -1}, int(op), uint64(send), uint64(recv), perRank, 1})
}

//export sim_ncclAllReduce
func sim_ncclAllReduce(send, recv C.uintptr_t, count C.size_t, typ, op C.int, comm, stream C.uintptr_t) C.ncclResult_t {
	return inCollective(comm, stream, collectiveCall{task{"ncclAllReduce", uint64(count), int(typ), -1}, int(op), uint64(send), uint64(recv), 1, 1})
}

//export sim_ncclReduce
func sim_ncclReduce(send, recv C.uintptr_t, count C.size_t, typ, op, root C.int, comm, stream C.uintptr_t) C.ncclResult_t {
	return inCollective(comm, stream, collectiveCall{task{"ncclReduce", uint64(count), int(typ), rootOf(root)}, int(op), uint64(send), uint64(recv), 1, 1})
}

//export sim_ncclBroadcast
func sim_ncclBroadcast(send, recv C.uintptr_t, count C.size_t, typ, root C.int, comm, stream C.uintptr_t) C.ncclResult_t {
	return inCollective(comm, stream, collectiveCall{task{"ncclBroadcast", uint64(count), int(typ), rootOf(root)}, 0, uint64(send), uint64(recv), 1, 1})
}

// rootOf keeps a wrong root from being none.
func rootOf(root C.int) int {
	if root < 0 {
		return 1 << 30
	}
	return int(root)
}

//export sim_ncclGroupStart
func sim_ncclGroupStart() C.ncclResult_t {
	return C.ncclResult_t(inNCCL("ncclGroupStart", func(m *Machine) error { return m.groupStart() }))
}

//export sim_ncclGroupEnd
func sim_ncclGroupEnd() C.ncclResult_t {
	return C.ncclResult_t(inNCCL("ncclGroupEnd", func(m *Machine) error { return m.groupEnd() }))
}
