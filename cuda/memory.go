//go:build cgo && linux

package cuda

// #include "call.h"
import "C"

// Room tells of the GPU's memory. Work that is under way may be about to take some: Sync first.
func (g *gpu) Room() (r Room, err error) {
	err = g.Do(func() error {
		r = g.room
		r.Unused, r.Total, err = g.unused()
		return err
	})
	return r, err
}

// unused asks the driver, on the device's thread.
func (g *gpu) unused() (unused, total int64, err error) {
	var free, all C.size_t
	err = g.failed(C.call_cuMemGetInfo(g.driver.table, &free, &all), "cuMemGetInfo")
	return int64(free), int64(all), err
}
