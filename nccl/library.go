//go:build cgo && linux

package nccl

// #include "call.h"
// #include "load.h"
// #include <stdlib.h>
// #cgo LDFLAGS: -ldl
import "C"

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda"
)

// Library is NCCL's functions. It stays to the end of the process.
type Library struct {
	table   *C.gofsdp_nccl
	version int
	found   cuda.Library
}

// Open finds NCCL and opens it. That needs no GPU. The error is cuda.ErrNoLibrary, or says what is wrong with
// the library that is there, and the remedy.
func Open(s cuda.Sources) (*Library, error) {
	handle, found, err := s.OpenNCCL()
	if err != nil {
		return nil, err
	}
	l := &Library{table: (*C.gofsdp_nccl)(C.calloc(1, C.sizeof_gofsdp_nccl)), found: found}
	var missing [4]*C.char
	if lacks := int(C.gofsdp_nccl_fill(handle, l.table, &missing[0], C.int(len(missing)))); lacks > 0 {
		var names []string
		for _, name := range missing[:min(lacks, len(missing))] {
			names = append(names, C.GoString(name))
		}
		C.free(unsafe.Pointer(l.table))
		return nil, fmt.Errorf("nccl: %s (%s) lacks %d functions, %s first; %s", found.Name, found.Path, lacks, strings.Join(names, ", "), wantedVersion)
	}
	if err := l.start(); err != nil {
		return nil, err
	}
	return l, nil
}

const wantedVersion = "NCCL 2.27 or newer is needed: install NVIDIA's wheel of it (pip install nvidia-nccl-cu12), or let " + cuda.OverrideNCCL + " name its file"

// start asks for the version.
func (l *Library) start() error {
	var v C.int
	if r := C.call_ncclGetVersion(l.table, &v); r != success {
		return l.failure(r, "ncclGetVersion", "NCCL", nil)
	}
	l.version = int(v)
	l.found.Version = versionText(l.version)
	if l.version < oldest || l.version >= newest {
		return fmt.Errorf("nccl: %s (%s) is NCCL %s, which is not supported; %s", l.found.Name, l.found.Path, l.Version(), wantedVersion)
	}
	return nil
}

// Version is NCCL's own, such as 2.29.7.
func (l *Library) Version() string { return versionText(l.version) }

// Found says which file was opened.
func (l *Library) Found() cuda.Library { return l.found }

// UniqueID is what the ranks of a communicator find each other by. Its maker listens for them.
type UniqueID [128]byte

// UniqueID makes one. It needs no GPU, but a network interface. The process must live until all ranks have
// joined.
func (l *Library) UniqueID() (id UniqueID, err error) {
	if r := C.call_ncclGetUniqueId(l.table, (*C.ncclUniqueId)(unsafe.Pointer(&id))); r != success {
		return id, l.failure(r, "ncclGetUniqueId", "NCCL", nil)
	}
	return id, nil
}

// failure makes an error of a result, with NCCL's own words for it.
func (l *Library) failure(r C.ncclResult_t, call, where string, comm C.ncclComm_t) *Error {
	e := &Error{Call: call, Code: int(r), Where: where, Name: "unknown result"}
	if name, ok := resultNames[int(r)]; ok {
		e.Name = name
	}
	e.Text = C.GoString(C.call_ncclGetErrorString(l.table, r))
	if last := C.call_ncclGetLastError(l.table, comm); last != nil {
		e.Detail = strings.TrimSpace(C.GoString(last))
	}
	return e
}
