//go:build sim && cgo && linux

package cuda_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/device"
)

func TestThePeakIsMeasuredOfAProductAndGivesItsMemoryBack(t *testing.T) {
	d := simulated(t, 1, sim.Config{}, cuda.Options{})[0]
	for _, typ := range []device.DType{device.F32, device.BF16, device.BF16} {
		if rate, err := cuda.Peak(d, typ, 128, 5*time.Millisecond); err != nil || rate <= 0 {
			t.Errorf("of %s: %g FLOP/s, %v", typ, rate, err)
		}
	}
	if _, err := cuda.Peak(d, device.I32, 64, time.Millisecond); err == nil || !strings.Contains(err.Error(), "f32 and bf16 are") {
		t.Errorf("of whole numbers: %v", err)
	}
}

// Its memory does not hold three of the smallest matrices.
func TestAGPUWithoutRoomHasNoPeakThatIsKnown(t *testing.T) {
	l4 := sim.L4()
	l4.Memory = 8 << 20
	m, err := sim.Start(sim.Config{Devices: []sim.Device{l4}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	driver, err := cuda.OpenTable(m.Table(), m.BLAS())
	if err != nil {
		t.Fatal(err)
	}
	d, err := cuda.New(driver, cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if rate := d.(interface {
		PeakFLOPS(device.DType, time.Duration) float64
	}).PeakFLOPS(device.F32, time.Millisecond); rate != 0 {
		t.Errorf("%g FLOP/s", rate)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if leaks := m.Leaks(); len(leaks) > 0 {
		t.Errorf("left: %v", leaks)
	}
}
