//go:build cgo && amd64

package cpu

import (
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

func TestADeviceMeasuresItsOwnLimits(t *testing.T) {
	dev, err := New(Options{Threads: 1, ISA: "generic"})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	l, ok := dev.(interface {
		PeakFLOPS(typ device.DType, d time.Duration) float64
		CopyBandwidth(d time.Duration) float64
		TriadBandwidth(d time.Duration) float64
	})
	if !ok {
		t.Fatal("the device has no such methods")
	}
	for what, rate := range map[string]float64{
		"f32": l.PeakFLOPS(device.F32, time.Millisecond), "bf16": l.PeakFLOPS(device.BF16, time.Millisecond),
		"copy": l.CopyBandwidth(time.Millisecond), "triad": l.TriadBandwidth(time.Millisecond),
	} {
		if rate < 1e7 || rate > 1e14 {
			t.Errorf("%s: %.3g a second", what, rate)
		}
	}
}
