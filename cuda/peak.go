//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// The sizes of the square product whose rate is taken for the GPU's peak: the largest that there is memory for.
const largestPeak, smallestPeak = 8192, 1024

// PeakFLOPS measures, in FLOP/s, what the GPU's products of the type (F32 or BF16) reach: a large one, again
// and again for about d, of numbers that are drawn, since those that are all alike take less power and let
// clocks rise. It needs up to 768 MiB of the GPU's memory for the time. 0 where it fails.
func (g *gpu) PeakFLOPS(typ device.DType, d time.Duration) float64 {
	for n := largestPeak; n >= smallestPeak; n /= 2 {
		rate, err := g.peak(typ, n, d)
		if e := (*Error)(nil); err == nil || !errors.As(err, &e) || e.Code != outOfMemory {
			return rate
		}
	}
	return 0
}

// peak measures a product of n × n matrices.
func (g *gpu) peak(typ device.DType, n int, d time.Duration) (rate float64, err error) {
	var made []device.Buffer
	defer func() {
		for _, b := range made {
			err = errors.Join(err, g.Free(b))
		}
	}()
	tensor := func(elements int64, in device.Memory) (device.Tensor, error) {
		b, err := g.Alloc(elements*typ.Size(), in)
		if err != nil {
			return device.Tensor{}, err
		}
		made = append(made, b)
		return b.In(typ, 0, elements), nil
	}
	whole, strip := int64(n)*int64(n), int64(n)*int64(min(n, 64))
	drawn, err := tensor(strip, device.Pinned)
	if err != nil {
		return 0, err
	}
	if err := draw(drawn); err != nil {
		return 0, err
	}
	var m [3]device.Tensor
	for i := range m {
		if m[i], err = tensor(whole, device.Local); err != nil {
			return 0, err
		}
	}
	g.peaks.Lock()
	defer g.peaks.Unlock()
	if g.measuring == nil {
		g.measuring = g.NewStream("measuring").(*stream) // which stays as long as the device
	}
	s := g.measuring
	for _, factor := range m[:2] {
		for at := int64(0); at < whole; at += strip {
			s.Launch(&device.Copy{Src: drawn, Dst: factor.Slice(at, strip), N: int(strip)})
		}
	}
	product := &device.MatMul{A: m[0], B: m[1], C: m[2], M: n, N: n, K: n}
	repeat := func(times int) (time.Duration, error) {
		return s.Time(func() {
			for range times {
				s.Launch(product)
			}
		})
	}
	if _, err := repeat(1); err != nil { // cuBLAS loads its kernel
		return 0, err
	}
	once, err := repeat(1)
	if err != nil {
		return 0, err
	}
	times := 1
	if once > 0 {
		times = int(min(max(d/once, 1), 1<<16))
	}
	took, err := repeat(times)
	if err != nil {
		return 0, err
	}
	if took <= 0 {
		return 0, fmt.Errorf("cuda: %s: %d products took no time", g.name, times)
	}
	return 2 * float64(n) * float64(whole) * float64(times) / took.Seconds(), nil
}

// draw fills a tensor with numbers about zero.
func draw(t device.Tensor) error {
	r := rand.New(rand.NewPCG(1, 2))
	switch t.Type {
	case device.F32:
		x := t.F32()
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
	case device.BF16:
		x := t.BF16()
		for i := range x {
			x[i] = device.ToBF16(float32(r.NormFloat64()))
		}
	default:
		return fmt.Errorf("cuda: the peak of products of %s is not measured: f32 and bf16 are", t.Type)
	}
	return nil
}
