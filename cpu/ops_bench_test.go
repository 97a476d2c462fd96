//go:build cgo && amd64

package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// The shapes are those of a decoder of 98 M parameters on two sequences of 512 tokens.
const (
	benchSeqs, benchLen           = 2, 512
	benchHeads, benchKV, benchDim = 12, 2, 768
	benchRows, benchVocab         = benchSeqs * benchLen, 32000
	benchHidden, benchHeadSize    = 2048, 64
)

// BenchmarkOperations reports of each operation, at the best level, the median of GFLOP/s and GB/s by its
// Cost, and the share of the limit that binds it: attention of the peak of products of its type, all
// others of the memory's triad, which operations that fit the caches exceed. Limits are measured just
// before and after.
//
//	go test ./cpu -run '^$' -bench Operations/Attention/f32/1t
func BenchmarkOperations(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	m := optest.NewMemory(b, rng)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, op := range benchOperations(m, rng, typ) {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/%v/%dt", device.Name(op), typ, threads), func(b *testing.B) {
					k := pool(b, threads, Detect())
					limit := func() float64 {
						switch op.(type) {
						case *device.Attention, *device.AttentionBackward:
							return k.peakFLOPS(typ, 50*time.Millisecond)
						}
						return k.peakBandwidth(triadTraffic, 64<<20, 50*time.Millisecond)
					}
					if err := k.Run(op); err != nil {
						b.Fatal(err)
					}
					most := limit()
					var times []time.Duration
					for b.Loop() {
						start := time.Now()
						if err := k.Run(op); err != nil {
							b.Fatal(err)
						}
						times = append(times, time.Since(start))
					}
					most = max(most, limit())
					slices.Sort(times)
					seconds := times[len(times)/2].Seconds()
					flops, bytes := float64(op.Cost().FLOPs)/seconds, float64(op.Cost().Bytes)/seconds
					b.ReportMetric(flops/1e9, "GFLOP/s")
					b.ReportMetric(bytes/1e9, "GB/s")
					share := bytes / most
					switch op.(type) {
					case *device.Attention, *device.AttentionBackward:
						share = flops / most
					}
					b.ReportMetric(100*share, "%limit")
				})
			}
		}
	}
}

func benchOperations(m optest.Memory, rng *rand.Rand, typ device.DType) []device.Op {
	normal := func(n int) device.Tensor { return m.Normal(typ, n, 0, 1) }
	single := func(n int) device.Tensor { return m.Normal(device.F32, n, 0, 1) }
	const heads, kv, size = benchHeads, benchKV, benchHeadSize
	const rows, q, k, wide = benchRows, benchRows * heads * size, benchRows * kv * size, benchRows * benchDim
	start := m.Ints(rows, func(int) int { return 0 })
	pos := m.Ints(rows, func(i int) int { return i % benchLen })
	ids := m.Ints(rows, func(int) int { return rng.IntN(benchVocab) })
	angles := single(benchLen * size / 2)
	attention := &device.Attention{
		Q: normal(q), K: normal(k), V: normal(k), Start: start, Out: normal(q), LSE: single(rows * heads),
		Seqs: benchSeqs, SeqLen: benchLen, Heads: heads, KVHeads: kv, HeadSize: size, Scale: 0.125,
	}
	const slots, cacheLen = 8, 2048
	decode := &device.AttentionDecode{
		Q: normal(slots * heads * size), K: normal(slots * kv * size), V: normal(slots * kv * size),
		Cached: m.Ints(slots, func(int) int { return cacheLen - 1 }), KCache: normal(slots * cacheLen * kv * size),
		VCache: normal(slots * cacheLen * kv * size), Out: normal(slots * heads * size),
		Seqs: slots, SeqLen: 1, CacheLen: cacheLen, Heads: heads, KVHeads: kv, HeadSize: size, Scale: 0.125,
	}
	const hidden, n = benchRows * benchHidden, 8 << 20
	zero := func(n int) device.Tensor { return m.Floats(typ, n, func(int) float64 { return 0 }) }
	return []device.Op{
		attention,
		&device.AttentionBackward{
			Q: attention.Q, K: attention.K, V: attention.V, Start: start, Out: attention.Out, LSE: attention.LSE,
			DOut: normal(q), D: single(rows * heads), Parts: m.Parts(attention), DQ: normal(q), DK: normal(k), DV: normal(k),
			Seqs: benchSeqs, SeqLen: benchLen, Heads: heads, KVHeads: kv, HeadSize: size, Scale: 0.125,
		},
		decode,
		&device.AddRMSNorm{
			X: normal(wide), Residual: normal(wide), Weight: normal(benchDim), Sum: normal(wide), Out: normal(wide),
			RStd: single(rows), Rows: rows, Dim: benchDim, Eps: 1e-6,
		},
		&device.AddRMSNormBackward{
			DOut: normal(wide), DSum: normal(wide), Sum: normal(wide), Weight: normal(benchDim), RStd: single(rows),
			DX: normal(wide), DWeight: single(benchDim), Rows: rows, Dim: benchDim,
		},
		&device.QKNormRoPE{
			Q: normal(q), K: normal(k), Pos: pos, Cos: angles, Sin: angles, QOut: normal(q), KOut: normal(k),
			Rows: rows, Heads: heads, KVHeads: kv, HeadSize: size, Positions: benchLen,
		},
		&device.QKNormRoPEBackward{
			DQOut: normal(q), DKOut: normal(k), Pos: pos, Cos: angles, Sin: angles, DQ: normal(q), DK: normal(k),
			Rows: rows, Heads: heads, KVHeads: kv, HeadSize: size, Positions: benchLen,
		},
		&device.SwiGLU{Gate: normal(hidden), Up: normal(hidden), Out: normal(hidden), N: hidden},
		&device.SwiGLUBackward{Gate: normal(hidden), Up: normal(hidden), DOut: normal(hidden), DGate: normal(hidden), DUp: normal(hidden), N: hidden},
		&device.HeadLoss{
			Logits: normal(256 * benchVocab), Targets: m.Ints(256, func(int) int { return rng.IntN(benchVocab) }),
			Scale: single(1), Loss: single(256), Rows: 256, Vocab: benchVocab, Backward: true,
		},
		&device.Embed{Table: normal(benchVocab * benchDim), IDs: ids, Out: normal(wide), Rows: rows, Dim: benchDim, Vocab: benchVocab},
		&device.EmbedBackward{DOut: normal(wide), IDs: ids, DTable: single(benchVocab * benchDim), Rows: rows, Dim: benchDim, Vocab: benchVocab},
		&device.BiasBackward{DOut: normal(wide), DBias: single(benchDim), M: rows, N: benchDim},
		&device.ReduceSum{Srcs: []device.Tensor{normal(n), normal(n)}, Dst: normal(n), N: n},
		&device.SumSquares{X: normal(n), Parts: m.Blank(device.F64, device.NormBlocks(n)), Out: m.Blank(device.F64, 1), N: n},
		&device.CheckFinite{X: normal(n), Flag: m.Ints(1, func(int) int { return 0 }), N: n},
		&device.AdamW{
			Param: single(n), M: single(n), V: m.Floats(device.F32, n, func(int) float64 { return 0 }), Grad: zero(n),
			Hyper: m.Floats(device.F32, device.HyperLen, func(int) float64 { return 1e-3 }), N: n, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8,
		},
		&device.Cast{Src: single(n), Dst: normal(n), N: n},
		&device.Copy{Src: normal(n), Dst: normal(n), N: n},
		&device.Fill{Dst: normal(n), N: n, Value: 1},
	}
}
