//go:build cgo && linux

package cuda

// #include "call.h"
import "C"

import (
	"errors"
	"time"
)

// Time returns how long the GPU took for what f launches on the stream, from the end of what was queued
// before: for measuring, since it makes and waits for events of its own. What has failed since the last
// Sync is its error.
func (s *stream) Time(f func()) (took time.Duration, err error) {
	g := s.gpu
	table := g.driver.table
	var from, to C.CUevent
	mark := func(e *C.CUevent) error {
		return g.Do(func() error {
			if err := g.failed(C.call_cuEventCreate(table, e, blockingSync), "cuEventCreate"); err != nil {
				return err
			}
			return g.failed(C.call_cuEventRecord(table, *e, s.handle), "cuEventRecord")
		})
	}
	defer func() {
		err = errors.Join(err, g.Do(func() (err error) {
			for _, e := range []C.CUevent{from, to} {
				if e != nil {
					err = errors.Join(err, g.failed(C.call_cuEventDestroy(table, e), "cuEventDestroy"))
				}
			}
			return err
		}))
	}()
	if s.broken != nil {
		return 0, s.broken
	}
	if err := mark(&from); err != nil {
		return 0, err
	}
	f()
	if err := errors.Join(mark(&to), s.Sync()); err != nil {
		return 0, err
	}
	var ms C.float
	err = g.Do(func() error {
		return g.failed(C.call_cuEventElapsedTime(table, &ms, from, to), "cuEventElapsedTime")
	})
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}
