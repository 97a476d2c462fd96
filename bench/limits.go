package bench

import (
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// Limits is a device that can measure what bounds its operations, with all of
// its threads at once, for about the given time. Each method blocks for that
// time and returns 0 where the device cannot tell.
type Limits interface {
	// PeakFLOPS is that of multiply-adds on registers, FLOP/s; for BF16 of the
	// dot product where there is one.
	PeakFLOPS(typ device.DType, d time.Duration) float64
	// CopyBandwidth and TriadBandwidth are of a = b and a = b + s·c over arrays
	// larger than the last cache, in bytes/s counted as STREAM does
	// (McCalpin, "Memory Bandwidth and Machine Balance", 1995): what a store
	// reads besides does not count.
	CopyBandwidth(d time.Duration) float64
	TriadBandwidth(d time.Duration) float64
}

// LimitsOf returns dev as what it must be to be measured here, or an error that
// says what is missing. It blocks for milliseconds.
func LimitsOf(dev device.Device) (Limits, error) {
	const d = time.Millisecond
	if l, ok := dev.(Limits); ok && l.PeakFLOPS(device.F32, d) > 0 && l.PeakFLOPS(device.BF16, d) > 0 && l.CopyBandwidth(d) > 0 {
		return l, nil
	}
	i := dev.Info()
	if onGPU(i) {
		return nil, fmt.Errorf("bench: device %s cannot measure its own peak and bandwidth, so there is nothing to judge by; leave 512 MiB of its memory free, or look at what nvidia-smi says of it", i.Name)
	}
	return nil, fmt.Errorf("bench: device %s (%s) cannot measure its own peak and bandwidth, so there is nothing to judge by; build with a C compiler (CGO_ENABLED=1) on amd64, and leave 1 GiB of memory free", i.Name, i.ISA)
}

// Bound says what limits an operation.
type Bound string

// The bounds: the peak of multiply-adds, or the bandwidth of memory.
const (
	ByCompute Bound = "compute"
	ByMemory  Bound = "memory"
)

// rates are the limits at one time, a second.
type rates struct{ f32, bf16, bandwidth float64 }

// between returns the means of two readings: the best guess of what held while
// something was measured between them.
func between(a, b rates) rates {
	return rates{(a.f32 + b.f32) / 2, (a.bf16 + b.bf16) / 2, (a.bandwidth + b.bandwidth) / 2}
}

// peak returns the limit of products of the type.
func (r rates) peak(typ device.DType) float64 {
	if typ == device.BF16 {
		return r.bf16
	}
	return r.f32
}

// limit returns the least time that an operation on elements of typ can take,
// in seconds, and why. Data that is in a cache moves faster than memory does,
// so a small operation may be faster than ByMemory allows.
func (r rates) limit(typ device.DType, c device.Cost) (float64, Bound) {
	compute, memory := float64(c.FLOPs)/r.peak(typ), float64(c.Bytes)/r.bandwidth
	if compute >= memory {
		return compute, ByCompute
	}
	return memory, ByMemory
}

// gauge reads the limits again and again.
type gauge struct {
	Limits
	typ device.DType  // what the workload computes in
	d   time.Duration // of each reading
}

// peaks reads the peaks that the workload needs; the bandwidth is left as it
// was in last.
func (g gauge) peaks(last rates) rates {
	last.f32 = g.PeakFLOPS(device.F32, g.d)
	last.bf16 = last.f32
	if g.typ == device.BF16 {
		last.bf16 = g.PeakFLOPS(device.BF16, g.d)
	}
	return last
}

// all reads the peaks and the bandwidth: the better of its two kinds.
func (g gauge) all() rates {
	return g.peaks(rates{bandwidth: max(g.CopyBandwidth(g.d), g.TriadBandwidth(g.d))})
}
