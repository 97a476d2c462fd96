//go:build cgo && amd64

package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

// fma32 is a·b+c in fp32 with one rounding, without the instruction: the product is exact in float64,
// the sum is rounded to odd, so that the last rounding decides as if it saw all bits.
func fma32(a, b, c float32) float32 {
	p, z := float64(a)*float64(b), float64(c)
	s := p + z
	back := s - p
	lost := (p - (s - back)) + (z - back)
	if bits := math.Float64bits(s); lost != 0 && bits&1 == 0 {
		if (lost > 0) == (s > 0) {
			s = math.Float64frombits(bits + 1)
		} else {
			s = math.Float64frombits(bits - 1)
		}
	}
	return float32(s)
}

// A product under test: operands as floats that the type can hold, and where they lie.
type product struct {
	device.MatMul
	a, b, bias, c []float32 // c: before the product
	native        bool      // pairs along k, as the bf16 dot product takes them
}

// at is element (i, j) as gemm.h defines it.
func (p *product) at(i, j int) float32 {
	a := func(k int) float32 {
		if p.TransA {
			return p.a[k*p.M+i]
		}
		return p.a[i*p.K+k]
	}
	b := func(k int) float32 {
		if p.TransB {
			return p.b[j*p.K+k]
		}
		return p.b[k*p.N+j]
	}
	var sum float32
	switch {
	case p.Accumulate:
		sum = p.c[i*p.N+j]
	case p.bias != nil:
		sum = p.bias[j]
	}
	step := 1
	if p.native {
		step = 2
	}
	for k := 0; k < p.K; k += step {
		if p.native && k+1 < p.K {
			sum = fma32(a(k+1), b(k+1), sum)
		}
		sum = fma32(a(k), b(k), sum)
	}
	if p.C.Type == device.BF16 {
		return device.FromBF16(device.ToBF16(sum))
	}
	return sum
}

// tensor copies values into memory of its own that ends where a page begins that nobody may touch.
func tensor(values []float32, typ device.DType) device.Tensor {
	if values == nil {
		return device.Tensor{}
	}
	page, size := syscall.Getpagesize(), len(values)*int(typ.Size())
	mem, err := syscall.Mmap(-1, 0, (size+page-1)/page*page+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err == nil {
		err = syscall.Mprotect(mem[len(mem)-page:], syscall.PROT_NONE)
	}
	if err != nil {
		panic(err)
	}
	mapped = append(mapped, mem)
	first := unsafe.Pointer(&mem[len(mem)-page-size])
	t := device.Tensor{Type: typ, Len: int64(len(values)), Addr: device.Addr(uintptr(first))}
	if typ == device.F32 {
		copy(t.F32(), values)
		return t
	}
	for i, v := range values {
		t.BF16()[i] = device.ToBF16(v)
	}
	return t
}

// mapped is what tensor gave out; unmap takes it back.
var mapped [][]byte

func unmap() {
	for _, mem := range mapped {
		if err := syscall.Munmap(mem); err != nil {
			panic(err)
		}
	}
	mapped = nil
}

func floats(t device.Tensor) []float32 {
	if t.Type == device.F32 {
		return slices.Clone(t.F32())
	}
	out := make([]float32, t.Len)
	for i, v := range t.BF16() {
		out[i] = device.FromBF16(v)
	}
	return out
}

// newProduct draws the operands of a product. C starts as NaN where it must not be read.
func newProduct(r *rand.Rand, m, n, k int, transA, transB bool, ab, c device.DType, start string) *product {
	draw := func(n int, typ device.DType) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.NormFloat64())
			if typ == device.BF16 {
				v[i] = device.FromBF16(device.ToBF16(v[i]))
			}
		}
		return v
	}
	p := &product{MatMul: device.MatMul{M: m, N: n, K: k, TransA: transA, TransB: transB}}
	p.a, p.b, p.c = draw(m*k, ab), draw(k*n, ab), draw(m*n, c)
	switch start {
	case "bias":
		p.bias = draw(n, ab)
	case "accumulate":
		p.Accumulate = true
	}
	if !p.Accumulate {
		for i := range p.c {
			p.c[i] = float32(math.NaN())
		}
	}
	p.A, p.B, p.Bias, p.C = tensor(p.a, ab), tensor(p.b, ab), tensor(p.bias, ab), device.Tensor{Type: c}
	return p
}

// run computes the product anew.
func (p *product) run(t testing.TB, k *kernels) []float32 {
	p.C = tensor(p.c, p.C.Type)
	p.native = p.A.Type == device.BF16 && k.isa() >= AVX512BF16
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	k.matMul(&p.MatMul)
	return floats(p.C)
}

// pools are all levels of this machine, with 1, 2, 3 and 8 threads.
func pools(t testing.TB) map[string]*kernels {
	all := map[string]*kernels{}
	for isa := Generic; isa <= Detect(); isa++ {
		for _, threads := range []int{1, 2, 3, 8} {
			k, err := newPool(threads, isa)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(k.close)
			all[fmt.Sprintf("%v with %d threads", isa, threads)] = k
		}
	}
	return all
}

// seed is GOFSDP_SEED or a new one; a failure prints how to replay it.
func seed(t testing.TB) *rand.Rand {
	s := rand.Uint64()
	if v := os.Getenv("GOFSDP_SEED"); v != "" {
		s, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay: GOFSDP_SEED=%d go test ./cpu -run '^%s$'", s, t.Name())
		}
	})
	return rand.New(rand.NewPCG(s, 1))
}

var types = []struct{ ab, c device.DType }{
	{device.F32, device.F32}, {device.BF16, device.BF16}, {device.BF16, device.F32},
}

var layouts = []struct {
	name           string
	transA, transB bool
}{{"forward", false, true}, {"dX", false, false}, {"dW", true, false}}

func TestEveryElementIsOneChainOfFusedMultiplyAddsInTheOrderOfK(t *testing.T) {
	r, pools := seed(t), pools(t)
	for trial := range 60 {
		m, n, k := 1+r.IntN(40), 1+r.IntN(140), 1+r.IntN(90)
		if trial%4 == 0 {
			m = 1 // decoding
		}
		if trial%10 == 9 {
			k = 2*1024 + r.IntN(100) // several blocks of k
		}
		typ, layout := types[r.IntN(len(types))], layouts[r.IntN(len(layouts))]
		start := []string{"zero", "bias", "accumulate"}[r.IntN(3)]
		p := newProduct(r, m, n, k, layout.transA, layout.transB, typ.ab, typ.c, start)
		want := map[bool][]float32{}
		for name, pool := range pools {
			got := p.run(t, pool)
			if want[p.native] == nil {
				for e := range got {
					want[p.native] = append(want[p.native], p.at(e/n, e%n))
				}
			}
			for e, w := range want[p.native] {
				if math.Float32bits(got[e]) != math.Float32bits(w) {
					t.Fatalf("%s %v·%v->%v [%d,%d,%d] starting from %s at %s: C[%d,%d] = %x, the chain gives %x",
						layout.name, typ.ab, typ.ab, typ.c, m, n, k, start, name, e/n, e%n, got[e], w)
				}
			}
		}
		unmap()
	}
}

// Shapes that go through every loop: blocks of rows, of k, and of the columns of a bf16 result.
func TestLargeProductsHaveTheBitsOfTheChainAtAnyThreadCount(t *testing.T) {
	r, pools := seed(t), pools(t)
	shapes := []struct{ m, n, k int }{{1040, 200, 1030}, {70, 33, 4200}, {1030, 2200, 2090}, {1, 1000, 5000}}
	for _, shape := range shapes {
		for _, typ := range types {
			for _, layout := range layouts {
				p := newProduct(r, shape.m, shape.n, shape.k, layout.transA, layout.transB, typ.ab, typ.c, "accumulate")
				first := map[bool][]float32{}
				for name, pool := range pools {
					if pool.isa() == Generic {
						continue // slow, and tested above
					}
					got := p.run(t, pool)
					if first[p.native] == nil {
						first[p.native] = got
						for range 200 {
							i, j := r.IntN(shape.m), r.IntN(shape.n)
							if want := p.at(i, j); got[i*shape.n+j] != want {
								t.Fatalf("%s %v at %s: C[%d,%d] = %x, the chain gives %x", layout.name, shape, name, i, j, got[i*shape.n+j], want)
							}
						}
					}
					for e, w := range first[p.native] {
						if math.Float32bits(got[e]) != math.Float32bits(w) {
							t.Fatalf("%s %v %v->%v at %s: C[%d,%d] = %x, another pool gave %x",
								layout.name, shape, typ.ab, typ.c, name, e/shape.n, e%shape.n, got[e], w)
						}
					}
				}
				unmap()
			}
		}
	}
}

func TestAProductWritesNothingOutsideOfC(t *testing.T) {
	r := seed(t)
	defer unmap()
	for name, pool := range pools(t) {
		for _, typ := range types {
			m, n, k := 1+r.IntN(20), 1+r.IntN(70), 1+r.IntN(20)
			p := newProduct(r, m, n, k, false, true, typ.ab, typ.c, "zero")
			const guard = 64
			around := tensor(make([]float32, m*n+2*guard), typ.c)
			p.C = around.Slice(guard, int64(m*n))
			pool.matMul(&p.MatMul)
			for i, v := range floats(around) {
				if (i < guard || i >= guard+m*n) && v != 0 {
					t.Fatalf("%s: a product [%d,%d,%d] wrote %v at element %d of C", name, m, n, k, v, i-guard)
				}
			}
		}
	}
}

func TestAProductAllocatesNothing(t *testing.T) {
	pool, err := newPool(2, Detect())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.close()
	defer unmap()
	p := newProduct(seed(t), 64, 64, 64, false, true, device.F32, device.F32, "bias")
	p.run(t, pool)
	if n := testing.AllocsPerRun(100, func() { pool.matMul(&p.MatMul) }); n != 0 {
		t.Errorf("a product makes %v allocations", n)
	}
}

func TestABF16ResultRoundsToNearestEvenAndKeepsInfinitiesAndNaN(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	defer unmap()
	for name, pool := range pools(t) {
		for _, m := range []int{1, 9} {
			// Each column of B sums two numbers; the second decides how the first is rounded.
			columns := [][2]float32{
				{1, 0x1p-8},
				{1 + 0x1p-7, 0x1p-8},
				{1, 0x1.02p-8},
				{-1, -0x1.02p-8},
				{inf, 1},
				{-inf, 1},
				{inf, -inf},
				{nan, 1},
				{0x1.FEp127, 0x1p119},
				{0x1.FEp127, 0x1p118},
				{0, 0},
				{3, 0},
			}
			for len(columns) < 64 { // whole tiles too
				columns = append(columns, columns[len(columns)%12])
			}
			p := &product{MatMul: device.MatMul{M: m, N: len(columns), K: 2}}
			p.c = make([]float32, m*len(columns))
			for _, row := range []int{0, 1} {
				for _, column := range columns {
					p.b = append(p.b, column[row])
				}
			}
			p.a = slices.Repeat([]float32{1, 1}, m)
			p.A, p.B, p.C = tensor(p.a, device.BF16), tensor(p.b, device.BF16), device.Tensor{Type: device.BF16}
			for e, got := range p.run(t, pool) {
				column := columns[e%len(columns)]
				want := device.FromBF16(device.ToBF16(column[0] + column[1]))
				if math.Float32bits(got) != math.Float32bits(want) && !(got != got && want != want) {
					t.Errorf("%s, %d rows: %x + %x = %x, want %x", name, m, column[0], column[1], got, want)
				}
			}
		}
	}
}
