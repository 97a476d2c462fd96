//go:build cgo && amd64

package cpu

// #include "peak.h"
import "C"

import (
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// peakFLOPS measures the limit of matrix products of the type, in FLOP/s: multiply-adds on registers
// alone, on all threads at once, for about the given time after a short start.
func (k *kernels) peakFLOPS(typ device.DType, d time.Duration) float64 {
	dtype := C.int(C.GK_F32)
	if typ == device.BF16 {
		dtype = C.GK_BF16
	}
	return 1e9 * float64(C.gk_peak_flops(k.ctx, dtype, C.double(d.Seconds())))
}

// The kinds of memory traffic that peakBandwidth measures.
type traffic int

const (
	copyTraffic  traffic = C.GK_COPY  // a = b
	triadTraffic traffic = C.GK_TRIAD // a = b + s·c
)

// peakBandwidth measures memory bandwidth in bytes/s, counted as STREAM does, on all threads at once
// over arrays of the given size, which should be larger than the last cache; it maps three of them.
// Without the memory it returns 0.
func (k *kernels) peakBandwidth(kind traffic, bytes int64, d time.Duration) float64 {
	return 1e9 * float64(C.gk_peak_bandwidth(k.ctx, C.int(kind), C.size_t(bytes), C.double(d.Seconds())))
}
