//go:build sim && cgo && linux

package cuda

// #include "blas.h"
import "C"

import "unsafe"

// OpenTable is Open for tables that somebody else has filled, all of them, and keeps to the end of the
// process: a gofsdp_driver, and a gofsdp_blas or nil, without which there are no products. Handles that
// their functions give must look like addresses that are not Go's: none below 4096, which Go's memory
// management takes for mistakes.
func OpenTable(table, blas unsafe.Pointer) (*Driver, error) {
	d := &Driver{table: (*C.gofsdp_driver)(table), blas: (*C.gofsdp_blas)(blas), library: Library{Name: "a table"}}
	return d, d.start()
}
