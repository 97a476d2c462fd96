//go:build cgo && amd64

package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// BenchmarkMatMul reports GFLOP/s, a median, and the share of the peak measured just before and after,
// for the three products of a linear layer with 1024 rows and for a token's decoding.
//
//	go test ./cpu -run '^$' -bench MatMul/f32/1t
func BenchmarkMatMul(b *testing.B) {
	const rows = 1024
	shapes := []struct{ in, out int }{{768, 768}, {768, 2048}, {2048, 768}, {768, 128}, {768, 32000}}
	r := rand.New(rand.NewPCG(1, 2))
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, threads := range []int{1, 2} {
			for _, s := range shapes {
				for _, layout := range []struct {
					name           string
					m, n, k        int
					transA, transB bool
				}{
					{"forward", rows, s.out, s.in, false, true},
					{"dX", rows, s.in, s.out, false, false},
					{"dW", s.out, s.in, rows, true, false},
					{"decode", 1, s.out, s.in, false, true},
				} {
					name := fmt.Sprintf("%v/%dt/%dx%d/%s", typ, threads, s.in, s.out, layout.name)
					b.Run(name, func(b *testing.B) {
						pool, err := newPool(threads, Detect())
						if err != nil {
							b.Fatal(err)
						}
						defer pool.close()
						p := newProduct(r, layout.m, layout.n, layout.k, layout.transA, layout.transB, typ, typ, "zero")
						p.C = tensor(p.c, typ)
						defer unmap()
						pool.matMul(&p.MatMul)
						peak := pool.peakFLOPS(typ, 50*time.Millisecond)
						var times []time.Duration
						b.ResetTimer()
						for b.Loop() {
							start := time.Now()
							pool.matMul(&p.MatMul)
							times = append(times, time.Since(start))
						}
						slices.Sort(times)
						rate := float64(p.Cost().FLOPs) / times[len(times)/2].Seconds()
						peak = max(peak, pool.peakFLOPS(typ, 50*time.Millisecond))
						b.ReportMetric(rate/1e9, "GFLOP/s")
						b.ReportMetric(100*rate/peak, "%peak")
					})
				}
			}
		}
	}
}
