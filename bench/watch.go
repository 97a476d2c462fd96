package bench

import (
	"errors"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// watcher is a Device whose streams run one operation at a time and report
// each with the seconds that it took, its launch and the wait for it included.
// It is for one stream at a time.
type watcher struct {
	device.Device
	seen func(op device.Op, seconds float64)
}

// NewStream implements device.Device.
func (w *watcher) NewStream(name string) device.Stream {
	return &watchedStream{Stream: w.Device.NewStream(name), w: w}
}

type watchedStream struct {
	device.Stream
	w   *watcher
	err error // the first since the last Sync
}

// Launch runs op and waits for it.
func (s *watchedStream) Launch(op device.Op) {
	if s.err != nil {
		return
	}
	began := time.Now()
	s.Stream.Launch(op)
	if s.err = s.Stream.Sync(); s.err == nil {
		s.w.seen(op, time.Since(began).Seconds())
	}
}

// Sync implements device.Stream.
func (s *watchedStream) Sync() error {
	err := errors.Join(s.err, s.Stream.Sync())
	s.err = nil
	return err
}
