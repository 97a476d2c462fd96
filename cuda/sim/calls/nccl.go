//go:build sim && cgo && linux

package calls

/*
#include <stdlib.h>
#include "nccl.h"
*/
import "C"

import "unsafe"

// NCCL calls the table that UseNCCL named last. Its methods are the table's
// functions without their "nccl": communicators, streams and addresses are
// numbers, results ncclResult_t.
type NCCL struct{}

// UseNCCL returns what calls a table, a *gofsdp_nccl in C.
func UseNCCL(table unsafe.Pointer) NCCL {
	C.calls_nccl_table = (*C.gofsdp_nccl)(table)
	return NCCL{}
}

// NCCLCounts returns the counts of every function of the table since the program began.
func NCCLCounts() map[string]Count {
	all := map[string]Count{}
	for _, c := range unsafe.Slice(C.calls_nccl_counts, C.calls_nccl_functions) {
		all[C.GoString(c.name)] = Count{int(c.succeeded), int(c.refused)}
	}
	return all
}

// Config is what a communicator is made with. The rest is not set.
type Config struct {
	Size           uint64
	Magic, Version uint32
	Blocking       int32
	Net, Name      string // empty: not set
}

func (NCCL) GetVersion(version *int32) int { return int(C.call_ncclGetVersion((*C.int)(version))) }

func (NCCL) GetUniqueId(id *[128]byte) int {
	return int(C.call_ncclGetUniqueId((*C.ncclUniqueId)(unsafe.Pointer(id))))
}

func (NCCL) GetErrorString(result int) string {
	return C.GoString(C.call_ncclGetErrorString(C.ncclResult_t(result)))
}

func (NCCL) GetLastError(comm uintptr) string {
	return C.GoString(C.call_ncclGetLastError(C.ncclComm_t(handle(comm))))
}

// CommInitRankConfig makes a communicator; a nil Config is a null pointer.
func (NCCL) CommInitRankConfig(comm *uintptr, ranks int, id [128]byte, rank int, c *Config) int {
	var config *C.ncclConfig_t
	if c != nil {
		config = (*C.ncclConfig_t)(C.calloc(1, C.sizeof_ncclConfig_t))
		defer C.free(unsafe.Pointer(config))
		config.size, config.magic, config.version, config.blocking = C.size_t(c.Size), C.uint(c.Magic), C.uint(c.Version), C.int(c.Blocking)
		if c.Net != "" {
			config.netName = C.CString(c.Net)
			defer C.free(unsafe.Pointer(config.netName))
		}
		if c.Name != "" {
			config.commName = C.CString(c.Name)
			defer C.free(unsafe.Pointer(config.commName))
		}
	}
	return int(C.call_ncclCommInitRankConfig((*C.ncclComm_t)(place(comm)), C.int(ranks), *(*C.ncclUniqueId)(unsafe.Pointer(&id)), C.int(rank), config))
}

func (NCCL) CommFinalize(comm uintptr) int {
	return int(C.call_ncclCommFinalize(C.ncclComm_t(handle(comm))))
}

func (NCCL) CommDestroy(comm uintptr) int {
	return int(C.call_ncclCommDestroy(C.ncclComm_t(handle(comm))))
}

func (NCCL) CommAbort(comm uintptr) int {
	return int(C.call_ncclCommAbort(C.ncclComm_t(handle(comm))))
}

func (NCCL) CommGetAsyncError(comm uintptr, to *int32) int {
	return int(C.call_ncclCommGetAsyncError(C.ncclComm_t(handle(comm)), (*C.ncclResult_t)(to)))
}

// address turns a device's address into what C takes.
func address(a uint64) unsafe.Pointer { return handle(uintptr(a)) }

func (NCCL) AllGather(send, recv, count uint64, typ int, comm, stream uintptr) int {
	return int(C.call_ncclAllGather(address(send), address(recv), C.size_t(count), C.int(typ), C.ncclComm_t(handle(comm)), handle(stream)))
}

func (NCCL) ReduceScatter(send, recv, count uint64, typ, op int, comm, stream uintptr) int {
	return int(C.call_ncclReduceScatter(address(send), address(recv), C.size_t(count), C.int(typ), C.int(op), C.ncclComm_t(handle(comm)), handle(stream)))
}

func (NCCL) AllReduce(send, recv, count uint64, typ, op int, comm, stream uintptr) int {
	return int(C.call_ncclAllReduce(address(send), address(recv), C.size_t(count), C.int(typ), C.int(op), C.ncclComm_t(handle(comm)), handle(stream)))
}

func (NCCL) Reduce(send, recv, count uint64, typ, op, root int, comm, stream uintptr) int {
	return int(C.call_ncclReduce(address(send), address(recv), C.size_t(count), C.int(typ), C.int(op), C.int(root), C.ncclComm_t(handle(comm)), handle(stream)))
}

func (NCCL) Broadcast(send, recv, count uint64, typ, root int, comm, stream uintptr) int {
	return int(C.call_ncclBroadcast(address(send), address(recv), C.size_t(count), C.int(typ), C.int(root), C.ncclComm_t(handle(comm)), handle(stream)))
}

func (NCCL) GroupStart() int { return int(C.call_ncclGroupStart()) }

func (NCCL) GroupEnd() int { return int(C.call_ncclGroupEnd()) }
