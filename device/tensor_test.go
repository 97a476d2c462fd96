package device_test

import (
	"math"
	"math/big"
	"testing"

	. "github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func TestEveryBF16SurvivesTheWayThroughFloat32(t *testing.T) {
	for b := range 1 << 16 {
		x := FromBF16(uint16(b))
		if math.Float32bits(x) != uint32(b)<<16 {
			t.Fatalf("%#04x is %v", b, x)
		}
		if back := ToBF16(x); x == x && back != uint16(b) || x != x && !isNaN(back) {
			t.Fatalf("%#04x comes back as %#04x", b, back)
		}
	}
}

func isNaN(b uint16) bool { x := FromBF16(b); return x != x }

func TestANaNOfAnyPayloadStaysOne(t *testing.T) {
	for _, bits := range []uint32{0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc00000} {
		if x := ToBF16(math.Float32frombits(bits)); !isNaN(x) {
			t.Errorf("%#08x becomes %#04x", bits, x)
		}
	}
}

// castBF16 rounds by the operation, from float64.
func castBF16(m optest.Memory, xs []float64) []uint16 {
	op := &Cast{Src: m.Floats(F64, len(xs), func(i int) float64 { return xs[i] }), Dst: m.Blank(BF16, len(xs)), N: len(xs)}
	op.Reference()
	return op.Dst.BF16()
}

// Between every two neighbours: the middle goes to the even one, all else to
// the nearer one, however near the middle it is.
func TestRoundingToBF16IsToNearestEvenEverywhere(t *testing.T) {
	var xs []float64
	var want []uint16
	for b := range uint16(0x7f80) {
		low, high := float64(FromBF16(b)), float64(FromBF16(b+1))
		if b == 0x7f7f {
			high = 0x1p128 // what would come next
		}
		middle := (low + high) / 2 // exact, also in float32
		even := b + b&1
		xs = append(xs, middle, -middle, math.Nextafter(middle, 0), math.Nextafter(middle, high))
		want = append(want, even, even|0x8000, b, b+1)
		for _, c := range []struct {
			x    float32
			want uint16
		}{
			{float32(middle), even},
			{-float32(middle), even | 0x8000},
			{math.Nextafter32(float32(middle), 0), b},
			{math.Nextafter32(float32(middle), float32(math.Inf(1))), b + 1},
		} {
			if got := ToBF16(c.x); got != c.want {
				t.Fatalf("%v becomes %#04x, want %#04x", c.x, got, c.want)
			}
		}
	}
	for i, got := range castBF16(optest.NewMemory(t, nil), xs) {
		if got != want[i] {
			t.Fatalf("%v becomes %#04x, want %#04x", xs[i], got, want[i])
		}
	}
}

func TestRoundingToBF16AgreesWithBigArithmetic(t *testing.T) {
	rng := optest.Rand(t)
	var xs []float64
	for range 50_000 {
		x := math.Ldexp(1+rng.Float64(), rng.IntN(250)-125)
		if rng.IntN(2) == 0 {
			x = -x
		}
		xs = append(xs, x)
	}
	big8 := func(x float64) float64 {
		f, _ := new(big.Float).SetPrec(8).SetMode(big.ToNearestEven).SetFloat64(x).Float64()
		return f
	}
	for i, got := range castBF16(optest.NewMemory(t, rng), xs) {
		if float64(FromBF16(got)) != big8(xs[i]) {
			t.Fatalf("%v becomes %v, want %v", xs[i], FromBF16(got), big8(xs[i]))
		}
		f := float32(xs[i])
		if x := FromBF16(ToBF16(f)); float64(x) != big8(float64(f)) {
			t.Fatalf("%v becomes %v, want %v", f, x, big8(float64(f)))
		}
	}
}

func TestASliceMovesOffsetAndAddress(t *testing.T) {
	x := Tensor{Off: 8, Type: BF16, Len: 10, Addr: 1000}
	if got := x.Slice(3, 4); got != (Tensor{Off: 14, Type: BF16, Len: 4, Addr: 1006}) {
		t.Error(got)
	}
	x.Addr = 0
	if got := x.Slice(3, 4); got.Addr != 0 {
		t.Error("a tensor without address got one")
	}
	for _, c := range [][2]int64{{-1, 2}, {0, 11}, {10, 1}, {0, -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("[%d:+%d] of 10 elements", c[0], c[1])
				}
			}()
			x.Slice(c[0], c[1])
		}()
	}
}
