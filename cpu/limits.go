//go:build cgo && amd64

package cpu

import (
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// limited is a device that measures its own limits, with as many threads as it computes with and at
// its level. Each measurement has a pool of its own, so no stream is held up by anything but the cores.
type limited struct {
	device.Device
	level ISA
}

// PeakFLOPS is that of the function PeakFLOPS; 0 where it fails.
func (l limited) PeakFLOPS(typ device.DType, d time.Duration) float64 {
	rate, _ := PeakFLOPS(l.Info().Threads, l.level, typ, d)
	return rate
}

// CopyBandwidth is what a = b moves, in bytes/s as STREAM counts them; 0 where it fails.
func (l limited) CopyBandwidth(d time.Duration) float64 { return l.bandwidth(copyTraffic, d) }

// TriadBandwidth is what a = b + s·c moves, in bytes/s as STREAM counts them; 0 where it fails.
func (l limited) TriadBandwidth(d time.Duration) float64 { return l.bandwidth(triadTraffic, d) }

func (l limited) bandwidth(kind traffic, d time.Duration) float64 {
	k, err := newPool(l.Info().Threads, l.level)
	if err != nil {
		return 0
	}
	defer k.close()
	return k.peakBandwidth(kind, 128<<20, d)
}
