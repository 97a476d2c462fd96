package device

import (
	"math"
	"unsafe"
)

// What the references share: they load whole operands as float64, compute, and
// store once. So an operand that may be another one needs no special care.

// load returns the elements as float64, which is exact.
func load(t Tensor) []float64 {
	xs := make([]float64, t.Len)
	switch t.Type {
	case F32:
		for i, x := range t.F32() {
			xs[i] = float64(x)
		}
	case BF16:
		for i, x := range t.BF16() {
			xs[i] = float64(FromBF16(x))
		}
	default:
		copy(xs, t.F64())
	}
	return xs
}

// store rounds each element once, to nearest even.
func store(t Tensor, xs []float64) {
	switch t.Type {
	case F32:
		for i, x := range xs {
			t.F32()[i] = float32(x)
		}
	case BF16:
		for i, x := range xs {
			t.BF16()[i] = roundBF16(x)
		}
	default:
		copy(t.F64(), xs)
	}
}

// loadAcc returns what an accumulating operand starts from.
func loadAcc(t Tensor, accumulate bool) []float64 {
	if accumulate {
		return load(t)
	}
	return make([]float64, t.Len)
}

// roundBF16 rounds a float64 to bf16 once. Through float32 it would round
// twice, so what float32 cannot hold is kept in its last bit ("rounding to
// odd": Boldo and Melquiond, IEEE Transactions on Computers 57(4), 2008).
func roundBF16(x float64) uint16 {
	f := float32(x)
	if float64(f) == x || x != x {
		return ToBF16(f)
	}
	b := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(x) {
		b--
	}
	return ToBF16(math.Float32frombits(b | 1))
}

// raw returns the elements' bytes in place.
func raw(t Tensor) []byte { return unsafe.Slice((*byte)(t.Pointer()), t.Bytes()) }

// mustIndex panics with an IndexError where x is outside of low..high. A stream
// turns the panic into its error.
func mustIndex(op Op, operand string, i int, x, low, high int32) {
	if x < low || x > high {
		panic(&IndexError{Name(op), operand, i, x, low, high})
	}
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}
