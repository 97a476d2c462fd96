package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/safetensors"
)

// halfValue is a binary16 by its definition: (-1)^s · 2^(e-15) · 1.f, or with
// the least exponent (-1)^s · 2^-14 · 0.f.
func halfValue(h uint16) float64 {
	s, e, f := h>>15, int(h>>10&31), float64(h&1023)/1024
	var v float64
	switch e {
	case 31:
		if f != 0 {
			return math.NaN()
		}
		v = math.Inf(1)
	case 0:
		v = math.Ldexp(f, -14)
	default:
		v = math.Ldexp(1+f, e-15)
	}
	if s == 1 {
		v = math.Copysign(v, -1)
	}
	return v
}

func TestEveryHalfIsConvertedExactly(t *testing.T) {
	for h := range 1 << 16 {
		got, want := fromHalf(uint16(h)), halfValue(uint16(h))
		if math.IsNaN(want) {
			if got == got || math.Float32bits(got)>>31 != uint32(h>>15) || math.Float32bits(got)&0x7fffff != uint32(h&0x3ff)<<13 {
				t.Errorf("%#04x is %x, want a NaN with its sign and payload", h, math.Float32bits(got))
			}
			continue
		}
		if float64(got) != want || math.Signbit(float64(got)) != math.Signbit(want) {
			t.Errorf("%#04x is %v, want %v", h, got, want)
		}
	}
}

// one converts a single number, with nothing clever.
func one(src []byte, typ safetensors.DType) uint32 {
	switch typ {
	case safetensors.F32:
		return binary.LittleEndian.Uint32(src)
	case safetensors.BF16:
		return uint32(binary.LittleEndian.Uint16(src)) << 16
	}
	return math.Float32bits(fromHalf(binary.LittleEndian.Uint16(src)))
}

func TestDecodingGivesTheBitsOfOneNumberAtATime(t *testing.T) {
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, 0))
	for _, typ := range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16} {
		size := int(typ.Size())
		for n := range 40 {
			for skew := range 3 { // tensors of others' files may be unaligned
				src := make([]byte, skew+n*size)
				for i := range src {
					src[i] = byte(rnd.Uint32())
				}
				src = src[skew:]
				dst := make([]float32, n+1)
				dst[n] = 42
				decode(dst[:n], src, typ)
				for i := range n {
					if got, want := math.Float32bits(dst[i]), one(src[i*size:], typ); got != want {
						t.Fatalf("seed %d: %s: number %d of %d is %#x, want %#x", seed, typ, i, n, got, want)
					}
				}
				if dst[n] != 42 {
					t.Fatalf("%s: decoding %d numbers writes one more", typ, n)
				}
			}
		}
	}
}

func TestBrainFloatsAreRoundedToTheNearest(t *testing.T) {
	value := func(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }
	for b := range 1 << 16 {
		v := math.Float32frombits(uint32(b) << 16)
		got := toBrain(v)
		if v != v {
			if x := value(got); x == x {
				t.Errorf("the NaN %#04x becomes %v", b, x)
			}
			continue
		}
		if got != uint16(b) {
			t.Errorf("%v, a bfloat16 already, becomes %v", v, value(got))
		}
		// Between this one and the next away from zero: the middle and its neighbours.
		if b&0x7fff >= 0x7f7f {
			continue
		}
		even := uint16(b)
		if b&1 == 1 {
			even++
		}
		for low, want := range map[uint32]uint16{1: uint16(b), 0x7fff: uint16(b), 0x8000: even, 0x8001: uint16(b) + 1, 0xffff: uint16(b) + 1} {
			v := math.Float32frombits(uint32(b)<<16 | low)
			if got := toBrain(v); got != want {
				t.Fatalf("%v becomes %v, want %v", v, value(got), value(want))
			}
			near, other := math.Abs(value(want)-float64(v)), math.Abs(value(uint16(b)+1-(want-uint16(b)))-float64(v))
			if near > other {
				t.Fatalf("the test is wrong about %v", v)
			}
		}
	}
	for _, c := range []struct {
		in   float32
		want uint16
	}{
		{math.MaxFloat32, 0x7f80}, {-math.MaxFloat32, 0xff80}, // as PyTorch: past the largest lies infinity
		{math.Float32frombits(0x7f800001), 0x7fc0}, {math.Float32frombits(0xffffffff), 0xffff},
	} {
		if got := toBrain(c.in); got != c.want {
			t.Errorf("%v becomes %#04x, want %#04x", c.in, got, c.want)
		}
	}
}

func TestPiecesMakeUpTheWhole(t *testing.T) {
	for _, n := range []int{0, 1, pieceLen - 1, pieceLen, pieceLen + 1, 5*pieceLen + 7} {
		var mu sync.Mutex
		seen := make([]int, n)
		inPieces(n, func(worker, begin, end int) {
			mu.Lock()
			defer mu.Unlock()
			if worker < 0 || worker >= workers() || begin >= end {
				t.Errorf("of %d: worker %d got %d to %d", n, worker, begin, end)
			}
			for i := begin; i < end; i++ {
				seen[i]++
			}
		})
		for i, times := range seen {
			if times != 1 {
				t.Fatalf("of %d: element %d came %d times", n, i, times)
			}
		}
	}
}

func BenchmarkConvert(b *testing.B) {
	const n = 1 << 24
	values, data := make([]float32, n), make([]byte, 4*n)
	for i := range values {
		values[i] = float32(i)
	}
	for _, typ := range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16} {
		b.Run(fmt.Sprint("from ", typ), func(b *testing.B) {
			b.SetBytes(n * (4 + typ.Size()))
			for b.Loop() {
				inPieces(n, func(_, begin, end int) {
					decode(values[begin:end], data[begin*int(typ.Size()):end*int(typ.Size())], typ)
				})
			}
		})
	}
	for _, typ := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
		b.Run(fmt.Sprint("to ", typ), func(b *testing.B) {
			b.SetBytes(n * (4 + typ.Size()))
			for b.Loop() {
				inPieces(n, func(_, begin, end int) {
					encode(data[begin*int(typ.Size()):end*int(typ.Size())], values[begin:end], typ)
				})
			}
		})
	}
	b.Run("copy", func(b *testing.B) { // the limit: what memory gives
		other := make([]float32, n)
		b.SetBytes(2 * 4 * n)
		for b.Loop() {
			inPieces(n, func(_, begin, end int) { copy(other[begin:end], values[begin:end]) })
		}
	})
}
