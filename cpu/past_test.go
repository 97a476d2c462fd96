//go:build cgo && amd64

package cpu

import (
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// From some size on, copies and sums are stored past the caches, in whole
// aligned lines: what begins or ends elsewhere must be right all the same, and
// nothing beside it be written.
func TestWhatIsStoredPastTheCachesIsWhatIsStoredThroughThem(t *testing.T) {
	const enough = 4 << 20 / 4 // PAST of vec.h, in fp32
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	const room = 2*enough + 256
	floats := func() device.Tensor {
		return memory.Floats(device.F32, room, func(int) float64 { return rng.NormFloat64() })
	}
	a, b, want, got := floats(), floats(), memory.Blank(device.F32, room), memory.Blank(device.F32, room)
	for _, threads := range []int{1, 2} {
		for _, isa := range levels() {
			k := pool(t, threads, isa)
			for _, begin := range []int64{0, 16, 1 + rng.Int64N(15)} {
				for _, n := range []int64{enough - 1, enough, enough + 1 + rng.Int64N(100), int64(threads)*enough + rng.Int64N(100)} {
					sources := []device.Tensor{a.Slice(begin, n), b.Slice(7, n)}
					for _, op := range []func(device.Tensor) device.Op{
						func(dst device.Tensor) device.Op { return &device.Copy{Src: sources[1], Dst: dst, N: int(n)} },
						func(dst device.Tensor) device.Op { return &device.ReduceSum{Srcs: sources, Dst: dst, N: int(n)} },
					} {
						copy(want.F32(), a.F32())
						copy(got.F32(), a.F32())
						op(want.Slice(begin, n)).Reference()
						mine := op(got.Slice(begin, n))
						if err := k.Run(mine); err != nil {
							t.Fatal(err)
						}
						if !slices.Equal(got.F32(), want.F32()) {
							t.Errorf("%v, %d threads: %s at %d is not what its reference makes, or writes beside it",
								isa, threads, device.Format(mine), begin)
						}
					}
				}
			}
		}
	}
}
