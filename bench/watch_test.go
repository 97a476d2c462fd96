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

func TestTheOperationsOfStepsAreTimedByName(t *testing.T) {
	s := little(t)
	s.Precisions, s.Watched = s.Precisions[1:], 2
	times, err := Watch(t.Context(), s, 1, openMetered)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, k := range times {
		if len(k.Seconds) != 2 || len(k.Limit) != 2 || slices.Min(k.Seconds) <= 0 || slices.Min(k.Limit) <= 0 || k.Count < 1 || seen[k.Name] {
			t.Errorf("%+v", k)
		}
		seen[k.Name] = true
	}
	for _, op := range []device.Op{&device.MatMul{}, &device.AttentionBackward{}, &device.AdamW{}} {
		if !seen[device.Name(op)] {
			t.Errorf("%s is not among %v", device.Name(op), times)
		}
	}
	s.Sequences = 1 << 30
	if _, err := Watch(t.Context(), s, 0, openMetered); err == nil {
		t.Error("more sequences than can be planned are no error")
	}
}
