package ptx

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// gemmText is testdata/gemm.cu, compiled by NVRTC 12.2.140 with -arch=compute_80
// --std=c++17 -default-device -lineinfo; its unused tables of targets are left out.
//
//go:embed testdata/gemm.ptx
var gemmText string

// halves draws n numbers in bf16.
func halves(rng *rand.Rand, n int) ([]byte, []float32) {
	b, f := make([]byte, 2*n), make([]float32, n)
	for i := range f {
		v := toBF16(float32(rng.NormFloat64()))
		binary.LittleEndian.PutUint16(b[2*i:], uint16(v))
		f[i] = fromBF16(v)
	}
	return b, f
}

// gemm multiplies with the kernel of testdata.
func gemm(text string, a, b []byte, m, n, k int, l Launch) ([]byte, error) {
	module, err := Parse("gemm.ptx", text)
	if err != nil {
		return nil, err
	}
	out := &Region{Base: 3 << 24, Bytes: make([]byte, 4*m*n), Written: NewWritten(4 * m * n), Name: "c"}
	l.Grid, l.Block, l.Shared = [3]uint32{uint32(n / 64), uint32(m / 64), 1}, [3]uint32{128, 1, 1}, 3*2*(64*40+32*72)
	for _, v := range []uint64{1 << 24, 2 << 24, 3 << 24, uint64(m) | uint64(n)<<32} {
		l.Args = binary.LittleEndian.AppendUint64(l.Args, v)
	}
	l.Args = binary.LittleEndian.AppendUint64(l.Args, uint64(k))
	err = module.Kernels["gemm"].Run(l, Regions{{Base: 1 << 24, Bytes: a, Name: "a"}, {Base: 2 << 24, Bytes: b, Name: "b"}, out})
	return out.Bytes, err
}

func TestAPipelinedProductIsRightInEveryOrder(t *testing.T) {
	rng := random(t)
	for _, shape := range [][3]int{{64, 64, 32}, {128, 64, 96}, {64, 192, 160}} {
		m, n, k := shape[0], shape[1], shape[2]
		a, af := halves(rng, m*k)
		b, bf := halves(rng, k*n)
		var first []byte
		for _, l := range []Launch{{}, {Order: Reverse}, {Order: Random, Seed: rng.Uint64()}, {Eager: true}, {Eager: true, Order: Reverse, Workers: 3}} {
			c, err := gemm(gemmText, a, b, m, n, k, l)
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = c
			}
			if !bytes.Equal(c, first) {
				t.Errorf("%v: %v order, eager %v: other bytes", shape, l.Order, l.Eager)
			}
		}
		for i := range m {
			for j := range n {
				var want, size float64
				for l := range k {
					p := float64(af[i*k+l]) * float64(bf[l*n+j])
					want += p
					size += math.Abs(p)
				}
				got := float64(math.Float32frombits(word(first, i*n+j)))
				if math.Abs(got-want) > size*float64(k)*0x1p-24 {
					t.Fatalf("%v: c[%d,%d] is %v, want %v", shape, i, j, got, want)
				}
			}
		}
	}
}

func TestMistakesInAPipelineAreFound(t *testing.T) {
	rng := random(t)
	a, _ := halves(rng, 64*160)
	b, _ := halves(rng, 160*64)
	right, err := gemm(gemmText, a, b, 64, 64, 160, Launch{})
	if err != nil {
		t.Fatal(err)
	}
	replace := func(from, to string) func(string) string {
		return func(text string) string { return strings.ReplaceAll(text, from, to) }
	}
	for name, change := range map[string]func(string) string{
		"a wait that leaves a stage too many": replace("cp.async.wait_group 1;", "cp.async.wait_group 2;"),
		"no barrier":                          replace("bar.sync \t0;", ""),
		"no commit":                           replace("cp.async.commit_group;", ""),
		"no transposition":                    replace(".x2.trans", ".x2"),
		"swapped operands":                    swapOperands,
	} {
		text := change(gemmText)
		if text == gemmText {
			t.Fatalf("%s: nothing to change in the text", name)
		}
		found := false
		for _, l := range []Launch{{}, {Order: Reverse}, {Order: Random, Seed: 1}, {Eager: true, Order: Reverse}} {
			c, err := gemm(text, a, b, 64, 64, 160, l)
			found = found || err != nil || !bytes.Equal(c, right)
		}
		if !found {
			t.Errorf("%s: nothing shows", name)
		}
	}
}

// swapOperands exchanges the first two registers of A in every product.
func swapOperands(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "mma.sync") {
			parts := strings.Split(line, "{")
			r := strings.SplitN(parts[2], ",", 3)
			r[0], r[1] = r[1], r[0]
			parts[2] = strings.Join(r, ",")
			line = strings.Join(parts, "{")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

func TestASumOverShufflesIsThatOfItsTree(t *testing.T) {
	rng := random(t)
	m, err := Parse("gemm.ptx", gemmText)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 31, 256, 1000} {
		x := make([]byte, 4*n)
		lanes := make([]float32, 256)
		for i := range n {
			v := float32(rng.NormFloat64())
			binary.LittleEndian.PutUint32(x[4*i:], math.Float32bits(v))
			lanes[i%256] += v
		}
		tree := func(v []float32, from int) float32 {
			for s := from; s > 0; s /= 2 {
				w := make([]float32, len(v))
				for i := range v {
					w[i] = v[i] + v[i^s]
				}
				v = w
			}
			return v[0]
		}
		var parts []float32
		for w := range 8 {
			parts = append(parts, tree(lanes[32*w:32*w+32], 16))
		}
		out := &Region{Base: outBase, Bytes: make([]byte, 4), Written: NewWritten(4), Name: "out"}
		args := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, inBase), outBase)
		args = binary.LittleEndian.AppendUint32(args, uint32(n))
		err := m.Kernels["sum"].Run(Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{256, 1, 1}, Args: args},
			Regions{{Base: inBase, Bytes: x, Name: "x"}, out})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := math.Float32frombits(word(out.Bytes, 0)), tree(parts, 4); got != want {
			t.Errorf("sum of %d: %v, want %v", n, got, want)
		}
	}
}

func TestSmallProductsAndTheirFragments(t *testing.T) {
	rng := random(t)
	for i, k := range []int{8, 16, 16} {
		a, af := halves(rng, 16*k) // row by row
		b, bf := halves(rng, 8*k)  // column by column, so that pairs are side by side in both
		var body strings.Builder
		body.WriteString("shr.u32 %r2, %r1, 2;\nand.b32 %r3, %r1, 3;\nmov.f32 %f5, 0f3F800000;\n")
		// Lane 4g+t loads its fragments by the manual's tables: of a, rows g and g+8, columns 2t and 8+2t; of b, the same of columns.
		load := func(register, row, column, base int) string {
			fmt.Fprintf(&body, "mad.lo.u32 %%r4, %%r2, %d, %d;\nmad.lo.u32 %%r4, %%r3, 4, %%r4;\ncvt.u64.u32 %%rd3, %%r4;\nadd.s64 %%rd3, %%rd3, %%rd1;\nld.global.b32 %%r%d, [%%rd3+%d];\n",
				2*k, 2*(row*k+column), register, base)
			return fmt.Sprintf("%%r%d", register)
		}
		var as, bs []string
		for j := range k / 4 {
			as = append(as, load(10+j, 8*(j&1), 8*(j>>1), 0))
		}
		for j := range k / 8 {
			bs = append(bs, load(20+j, 0, 8*j, len(a)))
		}
		result := []string{"%f1", "%f2", "%f3", "%f4"}
		if i == 2 { // the result may take the place of an operand
			result = as
		}
		fmt.Fprintf(&body, "mma.sync.aligned.m16n8k%d.row.col.f32.bf16.bf16.f32 {%s}, {%s}, {%s}, {%%f5,%%f5,%%f5,%%f5};\n",
			k, strings.Join(result, ","), strings.Join(as, ","), strings.Join(bs, ","))
		fmt.Fprintf(&body, "mad.lo.u32 %%r6, %%r2, 4, %%r3;\nmul.wide.u32 %%rd3, %%r6, 8;\nadd.s64 %%rd3, %%rd3, %%rd2;\nst.global.v2.b32 [%%rd3], {%s};\nst.global.v2.b32 [%%rd3+256], {%s};\n",
			strings.Join(result[:2], ","), strings.Join(result[2:], ","))
		out, err := launch(kernel(t, "", body.String()), Launch{}, append(bytes.Clone(a), b...), 512)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 16 {
			for j := range 8 {
				want := float32(1)
				for l := range k {
					want += af[i*k+l] * bf[j*k+l]
				}
				if got := math.Float32frombits(word(out, 8*i+j)); got != want {
					t.Fatalf("k %d: c[%d,%d] is %v, want %v", k, i, j, got, want)
				}
			}
		}
	}
}

func TestTheFastProductIsTheSlowOneToTheBit(t *testing.T) {
	rng := random(t)
	for range 200 {
		var a, c, got, want [4]slot32
		var x fragments
		for i := range 16 {
			for j := range 8 {
				x.b[i][j] = fromBF16(uint32(values(rng, 16)))
			}
		}
		for j := range 4 {
			x.a[j], x.c[j] = &a[j], &c[j]
			for i := range 32 {
				a[j][i] = uint32(values(rng, 16) | values(rng, 16)<<16)
				c[j][i] = uint32(values(rng, 32))
			}
		}
		for _, k := range []int{8, 16} {
			for j := range 4 {
				x.d[j] = &got[j]
			}
			product(&x, k)
			for j := range 4 {
				x.d[j] = &want[j]
			}
			productGo(&x, k)
			over := a
			x.a = [4]*slot32{&over[0], &over[1], &over[2], &over[3]}
			x.d = x.a
			productGo(&x, k)
			x.a = [4]*slot32{&a[0], &a[1], &a[2], &a[3]}
			if got != want || over != want {
				t.Fatalf("k %d: %x, want %x", k, got, want)
			}
		}
	}
}

func TestAsynchronousCopiesFillWithZeros(t *testing.T) {
	in := make([]byte, 64)
	for i := range in {
		in[i] = byte(i + 1)
	}
	for _, eager := range []bool{false, true} {
		for length := range uint32(17) {
			k := kernel(t, ".shared .align 16 .b8 s[16];", fmt.Sprintf(`
setp.ne.u32 %%p1, %%r1, 0;
@%%p1 ret;
mov.u32 %%r3, s;
cp.async.cg.shared.global.L2::128B [%%r3], [%%rd1+%d], 16, %d;
cp.async.wait_all;
ld.shared.v2.u64 {%%rd3, %%rd4}, [%%r3];
st.global.v2.u64 [%%rd2], {%%rd3, %%rd4};`, 16+1000*16*bit(length == 0), length)) // of no bytes, the source may be anywhere
			out, err := launch(k, Launch{Eager: eager}, in, 16)
			if err != nil {
				t.Fatal(err)
			}
			want := append(append([]byte{}, in[16:16+length]...), make([]byte, 16-length)...)
			if !bytes.Equal(out, want) {
				t.Errorf("%d bytes: %v, want %v", length, out, want)
			}
		}
	}
}
