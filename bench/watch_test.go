package bench

import (
	"errors"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

func TestAWatcherSeesEachOperationOnceAndInOrder(t *testing.T) {
	dev := device.NewReference()
	defer dev.Close()
	buf, err := dev.Alloc(64, device.Local)
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	w := &watcher{Device: dev, seen: func(op device.Op, seconds float64) {
		if seconds <= 0 {
			t.Errorf("%s took %v s", device.Name(op), seconds)
		}
		seen = append(seen, device.Name(op))
	}}
	s := w.NewStream("test")
	x, y := buf.In(device.F32, 0, 4), buf.In(device.F32, 16, 4)
	s.Launch(&device.Fill{Dst: x, N: 4, Value: 3})
	s.Launch(&device.Copy{Src: x, Dst: y, N: 4})
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"Fill", "Copy"}; !slices.Equal(seen, want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
	if y.F32()[3] != 3 {
		t.Errorf("copied %v, want 3s", y.F32())
	}
}

func TestAWatchedStreamThatFailsSaysSoOnce(t *testing.T) {
	dev := device.NewReference()
	defer dev.Close()
	buf, err := dev.Alloc(64, device.Local)
	if err != nil {
		t.Fatal(err)
	}
	ids := buf.In(device.I32, 0, 1)
	ids.I32()[0] = 9
	seen := 0
	w := &watcher{Device: dev, seen: func(device.Op, float64) { seen++ }}
	s := w.NewStream("test")
	s.Launch(&device.Embed{Table: buf.In(device.F32, 4, 2), IDs: ids, Out: buf.In(device.F32, 12, 1), Rows: 1, Dim: 1, Vocab: 2})
	s.Launch(&device.Fill{Dst: buf.In(device.F32, 4, 2), N: 2})
	var index *device.IndexError
	if err := s.Sync(); !errors.As(err, &index) {
		t.Errorf("%v, want an index error", err)
	}
	if err := s.Sync(); err != nil {
		t.Errorf("again: %v", err)
	}
	if seen != 0 {
		t.Errorf("%d operations seen after one failed", seen)
	}
}
