package optest

import "github.com/gofsdp/gofsdp/device"

// away is how far the addresses of hidden memory are from where it lies. No
// process has memory there, neither on x86-64 nor on arm64 with its 48 bits of
// addresses and its tags: who follows such an address faults.
const away = 1 << 52

// Hidden returns a Device that does what d, a device of the host's, does, but like a
// GPU keeps its own memory, Local and Shared, from the host. Closing it closes d.
func Hidden(d device.Device) device.Device { return hidden{d} }

type hidden struct{ device.Device }

// Alloc implements device.Device.
func (h hidden) Alloc(size int64, in device.Memory) (device.Buffer, error) {
	b, err := h.Device.Alloc(size, in)
	if err == nil && in != device.Pinned {
		b.Host, b.Addr = nil, b.Addr+away
	}
	return b, err
}

// Free implements device.Device.
func (h hidden) Free(b device.Buffer) error {
	if b.Addr >= away {
		b.Addr -= away
	}
	return h.Device.Free(b)
}

// NewStream implements device.Device.
func (h hidden) NewStream(name string) device.Stream {
	return hiddenStream{h.Device.NewStream(name)}
}

type hiddenStream struct{ device.Stream }

// Launch implements device.Stream.
func (s hiddenStream) Launch(op device.Op) {
	if len(device.Operands(op)) > 0 {
		op = device.Clone(op)
		for _, o := range device.Operands(op) {
			*o.T = Revealed(*o.T)
		}
	}
	s.Stream.Launch(op)
}

// Observe implements device.Observable.
func (s hiddenStream) Observe(o device.Observer) {
	if seen, ok := s.Stream.(device.Observable); ok {
		seen.Observe(o)
	}
}

// Revealed returns t where it lies, for a test to look at.
func Revealed(t device.Tensor) device.Tensor {
	if t.Addr >= away {
		t.Addr -= away
	}
	return t
}
