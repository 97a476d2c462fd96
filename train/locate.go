package train

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/device"
)

// locate runs the step's micro-batches again, in search of the first operation
// whose result is not finite, and returns a NotFinite that says where. All ranks
// call it alike, and go through all of the replay: nobody waits for a rank that
// has found what it looked for. Of several that have, the one that met it first
// says so, as the others had it from there.
func (l *loop) locate(step int, scale float32) error {
	s := &search{Stream: device.NewNaNFinder(l.Device, l.Engine.Describe).NewStream("replay"), plain: l.Device.NewStream("replay's rest")}
	micro := 0
	for m := range l.micros() {
		l.read(step, m)
		if err := l.Engine.Locate(l.batch.Batch, scale, m == 0, s); err != nil {
			return fmt.Errorf("step %d: %w", step+1, err)
		}
		if s.found != nil && micro == 0 {
			micro = m + 1
		}
	}
	p := l.Engine.Plan
	first, least := -1, math.Inf(1)
	for r := range p.Mesh.Size() {
		place := 0
		if r == p.Rank && s.found != nil {
			place = s.place
		}
		at, err := l.Engine.Total(float64(place))
		if err != nil {
			return fmt.Errorf("step %d: %w", step+1, err)
		}
		if at > 0 && at < least {
			first, least = r, at
		}
	}
	switch first {
	case -1:
		return &NotFinite{Step: step + 1}
	case p.Rank:
		return &NotFinite{Step: step + 1, MicroBatch: micro, Where: s.found}
	}
	return &NotFinite{Step: step + 1, Elsewhere: true}
}

// search is the stream of a NaN finder that goes on after the first finding, by
// a plain one.
type search struct {
	device.Stream
	plain    device.Stream
	found    error
	place    int // of the operation that found it, among all that were launched, from 1
	launched int
	failed   error // otherwise
}

// Launch runs op.
func (s *search) Launch(op device.Op) {
	switch {
	case s.failed != nil:
		return
	case s.found != nil:
		s.plain.Launch(op)
		return
	}
	s.launched++
	s.Stream.Launch(op)
	if err := s.Stream.Sync(); errors.As(err, new(*device.NotFiniteError)) {
		s.found, s.place = err, s.launched
	} else {
		s.failed = err
	}
}

// Sync returns what failed, but for the finding.
func (s *search) Sync() error { return cmp.Or(s.failed, s.plain.Sync()) }

// Observe implements device.Observable.
func (s *search) Observe(o device.Observer) {
	for _, stream := range []device.Stream{s.Stream, s.plain} {
		if seen, ok := stream.(device.Observable); ok {
			seen.Observe(o)
		}
	}
}
