package optest

import (
	"runtime/debug"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

func TestWhoFollowsAHiddenAddressFaults(t *testing.T) {
	dev := Hidden(device.NewReference())
	s := dev.NewStream("compute")
	for _, in := range []device.Memory{device.Local, device.Shared, device.Pinned} {
		b, err := dev.Alloc(12, in)
		if err != nil {
			t.Fatal(err)
		}
		x := b.In(device.F32, 0, 3)
		s.Launch(&device.Fill{Dst: x, N: 3, Value: 7})
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if got := At(Revealed(x), 2); got != 7 {
			t.Errorf("an operation left %v in %v memory", got, in)
		}
		if seen := in == device.Pinned; (b.Host != nil) != seen || follows(x) != seen {
			t.Errorf("%v memory is seen by the host: %v", in, !seen)
		}
		if err := dev.Free(b); err != nil {
			t.Error(err)
		}
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// follows reports whether the host can read x in place.
func follows(x device.Tensor) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return x.F32()[0] == 7
}
