package bench

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// metered is the reference device with limits that are said, not measured.
type metered struct {
	device.Device
	rates
}

func (m metered) PeakFLOPS(typ device.DType, _ time.Duration) float64 { return m.peak(typ) }
func (m metered) CopyBandwidth(time.Duration) float64                 { return m.bandwidth }
func (m metered) TriadBandwidth(time.Duration) float64                { return m.bandwidth / 2 }

func TestTheHigherBoundIsTheLimit(t *testing.T) {
	r := rates{f32: 100, bf16: 200, bandwidth: 10}
	for sentence, c := range map[string]struct {
		typ   device.DType
		cost  device.Cost
		want  float64
		bound Bound
	}{
		"many multiply-adds are bound by the peak":   {device.F32, device.Cost{FLOPs: 1000, Bytes: 10}, 10, ByCompute},
		"many bytes are bound by memory":             {device.F32, device.Cost{FLOPs: 100, Bytes: 50}, 5, ByMemory},
		"bf16 has a peak of its own":                 {device.BF16, device.Cost{FLOPs: 1000, Bytes: 10}, 5, ByCompute},
		"bytes do not care for the type":             {device.BF16, device.Cost{FLOPs: 100, Bytes: 50}, 5, ByMemory},
		"what is neither is bound by the peak, at 0": {device.F32, device.Cost{}, 0, ByCompute},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, bound := r.limit(c.typ, c.cost)
			if got != c.want || bound != c.bound {
				t.Errorf("%v by %s, want %v by %s", got, bound, c.want, c.bound)
			}
		})
	}
}

func TestBetweenTwoReadingsLiesTheirMean(t *testing.T) {
	if got, want := between(rates{1, 2, 3}, rates{3, 6, 9}), (rates{2, 4, 6}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAGaugeTakesTheBetterBandwidthAndOnlyThePeaksOfItsType(t *testing.T) {
	m := metered{rates: rates{f32: 100, bf16: 200, bandwidth: 10}}
	if got, want := (gauge{Limits: m, typ: device.F32}).all(), (rates{100, 100, 10}); got != want {
		t.Errorf("f32: %v, want %v", got, want)
	}
	if got, want := (gauge{Limits: m, typ: device.BF16}).peaks(rates{bandwidth: 7}), (rates{100, 200, 7}); got != want {
		t.Errorf("bf16: %v, want %v", got, want)
	}
}

func TestADeviceThatCannotMeasureItsPeakIsRefused(t *testing.T) {
	dev := device.NewReference()
	defer dev.Close()
	for sentence, d := range map[string]device.Device{"without the methods": dev, "with no peak": metered{Device: dev}, "with no bandwidth": metered{dev, rates{f32: 1, bf16: 1}}} {
		if _, err := LimitsOf(d); err == nil || !strings.Contains(err.Error(), "reference") || !strings.Contains(err.Error(), "CGO_ENABLED=1") {
			t.Errorf("%s: %v, want the device and the remedy", sentence, err)
		}
	}
}

func TestASpreadHasMedianLeastAndGreatest(t *testing.T) {
	for sentence, c := range map[string]struct {
		xs   []float64
		want Spread
	}{
		"of an odd number the middle one":   {[]float64{9, 1, 2}, Spread{2, 1, 9, 3}},
		"of an even number the middle mean": {[]float64{4, 1, 2, 9}, Spread{3, 1, 9, 4}},
		"of one":                            {[]float64{5}, Spread{5, 5, 5, 1}},
		"of none zero":                      {nil, Spread{}},
	} {
		if got := SpreadOf(c.xs); got != c.want {
			t.Errorf("%s: %+v, want %+v", sentence, got, c.want)
		}
	}
	xs := []float64{2, 1}
	if SpreadOf(xs); xs[0] != 2 {
		t.Error("the measurements were sorted in place")
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(math.Abs(a), math.Abs(b)) }
