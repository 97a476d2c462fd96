//go:build cgo && amd64

package cpu

// #include "peak.h"
import "C"

import (
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// peakFLOPS measures the limit of matrix products of the type, in FLOP/s: multiply-adds on registers
// alone, on all threads at once, the best of five slices of the given time.
func (k *kernels) peakFLOPS(typ device.DType, d time.Duration) float64 {
	dtype := C.int(C.GK_F32)
	if typ == device.BF16 {
		dtype = C.GK_BF16
	}
	return 1e9 * float64(C.gk_peak_flops(k.ctx, dtype, C.double(d.Seconds())))
}

// PeakFLOPS measures, in FLOP/s, the limit of matrix products of the type (F32 or BF16) at the
// level on the given number of threads at once, in about the given time.
func PeakFLOPS(threads int, isa ISA, typ device.DType, d time.Duration) (float64, error) {
	k, err := newPool(threads, isa)
	if err != nil {
		return 0, err
	}
	defer k.close()
	return k.peakFLOPS(typ, d), nil
}

// PeakBandwidth measures memory bandwidth in bytes/s, as STREAM's triad counts it (three arrays,
// without the reads that stores cause), on the given number of threads at once, in about the given
// time. It takes 384 MiB for that long.
func PeakBandwidth(threads int, d time.Duration) (float64, error) {
	k, err := newPool(threads, Generic)
	if err != nil {
		return 0, err
	}
	defer k.close()
	const array = 128 << 20
	rate := k.peakBandwidth(triadTraffic, array, d)
	if rate == 0 {
		return 0, fmt.Errorf("cpu: no memory for three arrays of %d MiB to measure the bandwidth with", array>>20)
	}
	return rate, nil
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
