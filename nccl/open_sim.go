//go:build sim && cgo && linux

package nccl

// #include "table.h"
import "C"

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda"
)

// OpenTable is Open for a gofsdp_nccl that somebody else has filled, all of it, and keeps to the end of the
// process.
func OpenTable(table unsafe.Pointer) (*Library, error) {
	l := &Library{table: (*C.gofsdp_nccl)(table), found: cuda.Library{Name: "a table", Path: "in memory"}}
	if err := l.start(); err != nil {
		return nil, err
	}
	return l, nil
}
