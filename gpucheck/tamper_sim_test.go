//go:build sim && cgo && linux

package gpucheck_test

import (
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/gpucheck"
	"github.com/gofsdp/gofsdp/nccl"
)

// tamperer is a GPU whose streams launch something else too.
type tamperer struct {
	nccl.Device
	then func(op device.Op) (device.Op, error) // what comes behind op, if not nil; an error: op is refused
	held device.Buffer
}

// Room passes on what the GPU says, less what the tamperer holds.
func (d *tamperer) Room() (cuda.Room, error) {
	return d.Device.(interface{ Room() (cuda.Room, error) }).Room()
}

// Epilogues passes on what the GPU says.
func (d *tamperer) Epilogues() (fused, apart int, err error) {
	return d.Device.(interface {
		Epilogues() (fused, apart int, err error)
	}).Epilogues()
}

// Close implements device.Device.
func (d *tamperer) Close() error {
	if d.held.Size > 0 {
		if err := d.Free(d.held); err != nil {
			return err
		}
	}
	return d.Device.Close()
}

// NewStream implements device.Device.
func (d *tamperer) NewStream(name string) device.Stream {
	return &tamperedStream{stream: d.Device.NewStream(name).(stream), d: d}
}

// stream is what streams of package cuda are.
type stream interface {
	device.Stream
	LaunchAll(ops []device.Op)
	Time(f func()) (time.Duration, error)
}

type tamperedStream struct {
	stream
	d   *tamperer
	err error
}

// Launch implements device.Stream.
func (s *tamperedStream) Launch(op device.Op) {
	more, err := s.d.then(op)
	if err != nil {
		s.err = err
		return
	}
	s.stream.Launch(op)
	if more != nil {
		s.stream.Launch(more)
	}
}

// LaunchAll launches one by one.
func (s *tamperedStream) LaunchAll(ops []device.Op) {
	for _, op := range ops {
		s.Launch(op)
	}
}

// Sync implements device.Stream.
func (s *tamperedStream) Sync() error {
	err := s.stream.Sync()
	if s.err != nil {
		err, s.err = s.err, nil
	}
	return err
}

// opened lets change have each GPU that is opened.
func opened(m *gpucheck.Machine, change func(*tamperer) error) {
	open := m.Open
	m.Open = func(o cuda.Options) (device.Device, error) {
		d, err := open(o)
		if err != nil {
			return nil, err
		}
		t := &tamperer{Device: d.(nccl.Device), then: func(device.Op) (device.Op, error) { return nil, nil }}
		return t, change(t)
	}
}

// tampered lets something come behind each operation of a kind.
func tampered[O device.Op](more func(O) device.Op) func(*gpucheck.Machine) {
	return func(m *gpucheck.Machine) {
		opened(m, func(t *tamperer) error {
			t.then = func(op device.Op) (device.Op, error) {
				if o, ok := op.(O); ok {
					return more(o), nil
				}
				return nil, nil
			}
			return nil
		})
	}
}

// refusing refuses operations of a kind.
func refusing[O device.Op](m *gpucheck.Machine) {
	opened(m, func(t *tamperer) error {
		t.then = func(op device.Op) (device.Op, error) {
			if o, ok := op.(O); ok {
				return nil, fmt.Errorf("%s is refused", device.Name(o))
			}
			return nil, nil
		}
		return nil
	})
}

// spoilt changes an element of the tensor that was last brought to a GPU, behind each collective. That of ranks'
// agreement is of text.
func spoilt(m *gpucheck.Machine) {
	opened(m, func(t *tamperer) error {
		var last device.Tensor
		t.then = func(op device.Op) (device.Op, error) {
			if c, ok := op.(*device.Copy); ok && c.Dst.Type == device.F32 && c.N > 8 {
				last = c.Dst
			}
			if _, ok := op.(cuda.Native); ok && !last.Absent() {
				return &device.Fill{Dst: last.Slice(3, 1), N: 1, Value: 99}, nil
			}
			return nil, nil
		}
		return nil
	})
}

// hoarding holds memory of the second GPU that is opened, on which the sum is tried.
func hoarding(m *gpucheck.Machine) {
	n := 0
	opened(m, func(t *tamperer) (err error) {
		if n++; n == 2 {
			t.held, err = t.Alloc(100<<20, device.Local)
		}
		return err
	})
}

// forgetful sets what the second GPU's optimizer has made of the weights to zero.
func forgetful(m *gpucheck.Machine) {
	n := 0
	opened(m, func(t *tamperer) error {
		if n++; n == 2 {
			t.then = func(op device.Op) (device.Op, error) {
				if o, ok := op.(*device.AdamW); ok {
					return &device.Fill{Dst: o.Param, N: o.N}, nil
				}
				return nil, nil
			}
		}
		return nil
	})
}
