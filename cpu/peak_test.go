//go:build cgo && amd64

package cpu

import (
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// Loose bounds: the machine may be busy. A loop that the compiler removed would be far outside.
func TestMeasuredPeaksArePossible(t *testing.T) {
	for isa := Generic; isa <= Detect(); isa++ {
		pool, err := newPool(1, isa)
		if err != nil {
			t.Fatal(err)
		}
		for _, typ := range []device.DType{device.F32, device.BF16} {
			lanes := map[ISA]float64{Generic: 1, AVX2: 8, AVX512: 16, AVX512BF16: 16}[isa]
			if isa == AVX512BF16 && typ == device.BF16 {
				lanes *= 2
			}
			// At least one multiply-add in ten cycles of 1 GHz, at most four in a cycle of 8 GHz.
			if got := pool.peakFLOPS(typ, 20*time.Millisecond); got < lanes*0.2e9 || got > lanes*64e9 {
				t.Errorf("%v %v: %.1f GFLOP/s", isa, typ, got/1e9)
			}
		}
		pool.close()
	}
}

func TestMeasuredBandwidthIsPossible(t *testing.T) {
	pool, err := newPool(2, Detect())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.close()
	for _, kind := range []traffic{copyTraffic, triadTraffic} {
		if got := pool.peakBandwidth(kind, 64<<20, 20*time.Millisecond); got < 1e8 || got > 4e12 {
			t.Errorf("kind %d: %.1f GB/s", kind, got/1e9)
		}
	}
	if got := pool.peakBandwidth(copyTraffic, 1<<60, time.Millisecond); got != 0 {
		t.Errorf("a bandwidth of %v without the memory for it", got)
	}
}

func TestTheMachinesLimitsAreMeasuredInOneCall(t *testing.T) {
	if got, err := PeakFLOPS(1, Detect(), device.F32, 10*time.Millisecond); err != nil || got < 1e8 {
		t.Errorf("PeakFLOPS = %v, %v", got, err)
	}
	if got, err := PeakBandwidth(1, 10*time.Millisecond); err != nil || got < 1e8 {
		t.Errorf("PeakBandwidth = %v, %v", got, err)
	}
	if _, err := PeakFLOPS(0, Generic, device.F32, time.Millisecond); err == nil {
		t.Error("0 threads have a peak")
	}
}
