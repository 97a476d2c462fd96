package bench

import (
	"context"
	"errors"
	"time"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/train"
)

// watcher is a Device whose streams run one operation at a time and report
// each with the seconds that it took, on a CPU its launch and the wait for it
// included.
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
	var seconds float64
	if seconds, s.err = timeIn(s.Stream, func() { s.Stream.Launch(op) }); s.err == nil {
		s.w.seen(op, seconds)
	}
}

// timeIn returns the seconds that a stream takes for what f launches, until all is
// done; a GPU's are its own, without the host's.
func timeIn(s device.Stream, f func()) (float64, error) {
	if t, ok := s.(TimedStream); ok {
		took, err := t.Time(f)
		return max(took.Seconds(), 1e-9), err // its clock may be coarse
	}
	began := time.Now()
	f()
	err := s.Sync()
	return time.Since(began).Seconds(), err
}

// Sync implements device.Stream.
func (s *watchedStream) Sync() error {
	err := errors.Join(s.err, s.Stream.Sync())
	s.err = nil
	return err
}

// Watch runs Watched training steps in the first of the precisions, after warm
// others, and returns the times of their operations by name, most time first.
// It blocks until they are done or ctx ends.
func Watch(ctx context.Context, s Settings, warm int, open Open) (times []KindTimes, err error) {
	src, err := model.Resolve(s.Model)
	if err != nil {
		return nil, err
	}
	if err := train.CheckRows(s.Sequences, s.Length); err != nil {
		return nil, err
	}
	b, typ := &bench{Settings: s, ctx: ctx, config: src.Config, open: open}, s.Precisions[0]
	err = b.with(s.Threads, func(dev device.Device, l Limits) (err error) {
		watch := &watcher{Device: dev, seen: ignore}
		e, err := b.engine(b.options(typ, false), watch, new(Startup))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, e.Close()) }()
		t, g, step := newTrainee(e), gauge{l, typ, s.Reading / 2}, newCollection(InStep)
		var before rates
		for i := range warm + s.Watched {
			if err := ctx.Err(); err != nil {
				return err
			}
			if i == warm {
				before, watch.seen = g.all(), step.add
			}
			if _, err := t.step(); err != nil {
				return err
			}
			if i >= warm {
				after := g.all()
				step.endRun(between(before, after))
				before = after
			}
		}
		times = step.times()
		return nil
	})
	return times, err
}
