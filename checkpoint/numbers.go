package checkpoint

import (
	"encoding/binary"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/safetensors"
)

// le is the order of bytes in a file.
var le = binary.LittleEndian

// pieceLen is the elements that one core converts at a time: 1 MiB of float32.
const pieceLen = 1 << 18

// inPieces calls do for pieces that make up 0 to n, on all cores, and returns
// when all are done. No two calls of the same worker, a number from 0, overlap.
// An embedding is a third of a small model, so a tensor a core would not do.
func inPieces(n int, do func(worker, begin, end int)) {
	pieces := (n + pieceLen - 1) / pieceLen
	var next atomic.Int64
	work := func(worker int) {
		for i := int(next.Add(1)) - 1; i < pieces; i = int(next.Add(1)) - 1 {
			do(worker, i*pieceLen, min(n, (i+1)*pieceLen))
		}
	}
	var wait sync.WaitGroup
	for worker := 1; worker < min(pieces, workers()); worker++ {
		wait.Go(func() { work(worker) })
	}
	work(0)
	wait.Wait()
}

func workers() int { return runtime.GOMAXPROCS(0) }

// readable tells whether decode knows the type.
func readable(typ safetensors.DType) bool {
	return typ == safetensors.F32 || typ == safetensors.BF16 || typ == safetensors.F16
}

// decode converts len(dst) little-endian numbers of src; all conversions are
// exact. Eight at a time, from whole words, it is about as fast as memory; a
// plain loop is a third of that.
func decode(dst []float32, src []byte, typ safetensors.DType) {
	switch typ {
	case safetensors.F32:
		for ; len(dst) >= 8 && len(src) >= 32; dst, src = dst[8:], src[32:] {
			dst[0], dst[1] = float32s(le.Uint64(src))
			dst[2], dst[3] = float32s(le.Uint64(src[8:]))
			dst[4], dst[5] = float32s(le.Uint64(src[16:]))
			dst[6], dst[7] = float32s(le.Uint64(src[24:]))
		}
		for i := range dst {
			dst[i] = math.Float32frombits(le.Uint32(src[4*i:]))
		}
	case safetensors.BF16: // the upper half of a float32
		const even, odd = 0x0000ffff0000ffff, 0xffff0000ffff0000
		for ; len(dst) >= 8 && len(src) >= 16; dst, src = dst[8:], src[16:] {
			a, b := le.Uint64(src), le.Uint64(src[8:])
			dst[0], dst[2] = float32s(a & even << 16)
			dst[1], dst[3] = float32s(a & odd)
			dst[4], dst[6] = float32s(b & even << 16)
			dst[5], dst[7] = float32s(b & odd)
		}
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(le.Uint16(src[2*i:])) << 16)
		}
	case safetensors.F16:
		table := halves()
		src = src[:2*len(dst)]
		for i := range dst {
			dst[i] = table[le.Uint16(src[2*i:])]
		}
	}
}

// float32s are the two numbers of a word, the lower half first.
func float32s(w uint64) (low, high float32) {
	return math.Float32frombits(uint32(w)), math.Float32frombits(uint32(w >> 32))
}

// halves holds every binary16: looking them up is three times as fast as
// converting.
var halves = sync.OnceValue(func() *[1 << 16]float32 {
	var table [1 << 16]float32
	for h := range table {
		table[h] = fromHalf(uint16(h))
	}
	return &table
})

// fromHalf converts IEEE 754 binary16; it is exact.
func fromHalf(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case 0:
		f := float32(frac) / (1 << 24)
		return math.Float32frombits(math.Float32bits(f) | sign)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// encode writes src to dst, little-endian, as F32 or, rounded, as BF16.
func encode(dst []byte, src []float32, typ safetensors.DType) {
	if typ == safetensors.BF16 {
		dst = dst[:2*len(src)]
		for i, v := range src {
			le.PutUint16(dst[2*i:], toBrain(v))
		}
		return
	}
	dst = dst[:4*len(src)]
	for i, v := range src {
		le.PutUint32(dst[4*i:], math.Float32bits(v))
	}
}

// toBrain rounds to bfloat16, to nearest and ties to even. A NaN stays one,
// where rounding its bits could make it an infinity.
func toBrain(v float32) uint16 {
	w := math.Float32bits(v)
	if v != v {
		return uint16(w>>16) | 0x40
	}
	return uint16((w + 0x7fff + w>>16&1) >> 16)
}
