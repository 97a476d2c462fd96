package device

import (
	"math/rand/v2"
	"time"
)

// wrap returns a host whose memory is d and whose executors are d's streams, so
// that a wrapper sees each operation finish. Streams stay as independent of the
// caller and of each other as d's are; their events are the host's own.
func wrap(d Device, executor func(stream string, s Stream) Executor) *host {
	return &host{info: d.Info(), memory: d, inner: true, open: func(name string) (Executor, error) {
		return executor(name, d.NewStream(name)), nil
	}}
}

// streamExecutor runs operations on a stream of another device, one by one. The
// stream ends with its device.
type streamExecutor struct{ Stream }

func (e streamExecutor) Run(op Op) error {
	e.Launch(op)
	return e.Sync()
}

func (streamExecutor) Close() error { return nil }

// NewDelayer returns a Device that does what d does, but every stream sleeps up
// to longest before each operation, record and wait, so that streams that are
// not ordered by events really run in different orders. The sleeps follow from
// the seed and the order in which streams are made. Closing it closes d.
func NewDelayer(d Device, seed uint64, longest time.Duration) Device {
	h := wrap(d, func(_ string, s Stream) Executor { return streamExecutor{s} })
	var streams uint64
	h.pause = func() func() {
		streams++
		rng := rand.New(rand.NewPCG(seed, streams))
		return func() { time.Sleep(time.Duration(rng.Int64N(int64(longest) + 1))) }
	}
	return h
}
