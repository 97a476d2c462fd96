//go:build sim && cgo && linux

package cuda_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// biasedProduct returns a product of random shape and numbers with a bias.
func biasedProduct(memory optest.Memory, rng *rand.Rand, typ device.DType) *device.MatMul {
	size := func() int { return 1 + rng.IntN(90) }
	o := &device.MatMul{M: size(), N: size(), K: size(), TransB: rng.IntN(2) == 0}
	o.A, o.B = memory.Normal(typ, o.M*o.K, 0, 1), memory.Normal(typ, o.K*o.N, 0, 1)
	o.Bias, o.C = memory.Normal(typ, o.N, 0, 1), memory.Blank(typ, o.M*o.N)
	return o
}

// placed copies an operation's operands to the device, each off bytes behind a multiple of 256, and the result back
// into host when from is called.
func placed(t *testing.T, d device.Device, host *device.MatMul, off int64) (there *device.MatMul, to, from func(device.Stream)) {
	t.Helper()
	there = device.Clone(host).(*device.MatMul)
	size := int64(off)
	for _, o := range device.Operands(there) {
		size += (o.T.Bytes() + 511) / 256 * 256
	}
	var both [2]device.Buffer
	for i, in := range []device.Memory{device.Local, device.Pinned} {
		b, err := d.Alloc(size, in)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Free(b); err != nil {
				t.Error(err)
			}
		})
		both[i] = b
	}
	whole := func(b device.Buffer) device.Tensor { return b.In(device.BF16, 0, size/2) }
	host = device.Clone(host).(*device.MatMul)
	at, pairs := off, [][2]device.Tensor{}
	for i, o := range device.Operands(there) {
		pairs = append(pairs, [2]device.Tensor{*device.Operands(host)[i].T, both[1].In(o.T.Type, at, o.T.Len)})
		*o.T = both[0].In(o.T.Type, at, o.T.Len)
		at += (o.T.Bytes() + 511) / 256 * 256
	}
	to = func(s device.Stream) {
		for _, p := range pairs {
			copy(optest.Bytes(p[1]), optest.Bytes(p[0]))
		}
		s.Launch(&device.Copy{Src: whole(both[1]), Dst: whole(both[0]), N: int(size / 2)})
	}
	from = func(s device.Stream) {
		s.Launch(&device.Copy{Src: whole(both[0]), Dst: whole(both[1]), N: int(size / 2)})
		if err := s.Sync(); err != nil {
			t.Error(err)
		}
		for _, p := range pairs {
			copy(optest.Bytes(p[0]), optest.Bytes(p[1]))
		}
	}
	return there, to, from
}

// TestABiasIsAddedInOneCallOrInTwo makes products of random shapes at multiples of 16 bytes, and between them, for
// which the simulated cuBLASLt has no algorithm. Either way gives the bits of the other, since each rounds once, and
// what the reference does, within its bounds; the calls tell which way was taken. A product is made alone, in a list
// and as a graph, and on two streams; an algorithm is asked for once.
func TestABiasIsAddedInOneCallOrInTwo(t *testing.T) {
	rng := optest.Rand(t)
	machine, devices := simulatedMachine(t, 1, sim.Config{Seed: rng.Uint64(), Pause: 100 * time.Microsecond}, cuda.Options{Graphs: true})
	d := devices[0]
	s, other := d.NewStream("compute"), d.NewStream("other")
	memory := optest.NewMemory(t, rng)
	names := []string{"cublasLtMatmul", "cublasGemmEx", "cublasLtMatmulAlgoGetHeuristic"}
	for i := range 24 {
		typ := []device.DType{device.F32, device.BF16}[i%2]
		op := biasedProduct(memory, rng, typ)
		t.Run(fmt.Sprintf("%v/%d × %d × %d", typ, op.M, op.N, op.K), func(t *testing.T) {
			want := memory.Clone(op)
			bounds := memory.Bounds(want)
			want.Reference()
			var bits []byte
			for _, way := range []struct {
				off   int64
				calls map[string]int // of the names, in all
			}{
				{0, map[string]int{names[0]: 4, names[1]: 0, names[2]: 1}},
				{16, map[string]int{names[0]: 4, names[1]: 0, names[2]: 0}}, // the same shape
				{typ.Size(), map[string]int{names[0]: 0, names[1]: 2 * 4, names[2]: 1}},
			} {
				got := memory.Clone(op).(*device.MatMul)
				there, to, from := placed(t, d, got, way.off)
				list := []device.Op{there}
				before := machine.Calls(0)
				for turn, start := range []func() device.Stream{
					func() device.Stream { s.Launch(there); return s },
					func() device.Stream { other.Launch(there); return other },
					func() device.Stream { launchAll(s, list); return s },
					func() device.Stream { launchAll(s, list); return s }, // is captured
					func() device.Stream { launchAll(s, list); return s },
				} {
					to(s)
					if err := s.Sync(); err != nil {
						t.Fatal(err)
					}
					from(start())
					if err := optest.Compare(got, want, bounds); err != nil {
						t.Errorf("%d bytes off, turn %d: %v", way.off, turn, err)
					}
					if now := optest.Bytes(got.C); bits == nil {
						bits = bytes.Clone(now)
					} else if !bytes.Equal(bits, now) {
						t.Errorf("%d bytes off, turn %d: other bits", way.off, turn)
					}
					clear(optest.Bytes(got.C))
				}
				after := machine.Calls(0)
				for _, name := range names {
					if n := after[name] - before[name]; n != way.calls[name] {
						t.Errorf("%d bytes off: %d calls of %s, want %d", way.off, n, name, way.calls[name])
					}
				}
			}
		})
	}
}
