package ptx

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

// edges are bits that are special to integers or floats.
var edges = []uint64{
	0, 1, 2, 31, 32, 33, 63, 64, 255, 0x7fff, 0x8000, 0xffff, 0x10000, 0x7fffffff, 0x80000000, 0x80000001, 0xffffffff, 1 << 32, 1 << 63, 1<<63 - 1, math.MaxUint64,
	0x00800000, 0x007fffff, 0x80000000, 0x3f800000, 0xbf800000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0x4b000000, 0x4b000001, 0x33800000, 0x33800001,
	0x3ff0000000000000, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 0x0010000000000000, 0x000fffffffffffff, 0x7fefffffffffffff,
}

// values draws operands of a width: edges, and bits of which floats come out near to each other.
func values(rng *rand.Rand, width int) uint64 {
	var v uint64
	switch rng.IntN(4) {
	case 0:
		v = edges[rng.IntN(len(edges))]
	case 1:
		v = rng.Uint64() >> rng.IntN(64)
	case 2:
		v = uint64(math.Float32bits(float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(8)))))) // in range as floats
		if width == 64 {
			v = math.Float64bits(rng.NormFloat64() * math.Exp2(float64(rng.IntN(8))))
		}
	default:
		v = rng.Uint64()
	}
	if width == 64 {
		return v
	}
	return v & (1<<width - 1)
}

var widths = map[byte]int{'p': 1, 'h': 16, 'r': 32, 'd': 64}

// program returns the body of a kernel that runs an instruction once on each thread's operands.
func program(text, shape string) string {
	registers := map[byte]string{'p': "%%p%d", 'h': "%%h%d", 'r': "%%r%d", 'd': "%%rd%d"}
	name := func(i int) string { return fmt.Sprintf(registers[shape[i]], 10+i) }
	var b strings.Builder
	b.WriteString("mov.u32 %r2, %ctaid.x;\nmad.lo.u32 %r2, %r2, 64, %r1;\nmul.wide.u32 %rd3, %r2, 32;\nadd.s64 %rd3, %rd1, %rd3;\nmul.wide.u32 %rd4, %r2, 8;\nadd.s64 %rd4, %rd2, %rd4;\n")
	for i := 1; i < len(shape); i++ {
		if shape[i] == 'p' {
			fmt.Fprintf(&b, "ld.global.u32 %%r3, [%%rd3+%d];\nsetp.ne.u32 %s, %%r3, 0;\n", 8*i, name(i))
		} else {
			fmt.Fprintf(&b, "ld.global.b%d %s, [%%rd3+%d];\n", widths[shape[i]], name(i), 8*i)
		}
	}
	operands := make([]string, len(shape))
	for i := range operands {
		operands[i] = name(i)
	}
	fmt.Fprintf(&b, "%s %s;\n", text, strings.Join(operands, ", "))
	b.WriteString("mov.u64 %rd5, 0;\nst.global.u64 [%rd4], %rd5;\n")
	if shape[0] == 'p' {
		fmt.Fprintf(&b, "selp.b32 %%r3, 1, 0, %s;\nst.global.b32 [%%rd4], %%r3;\n", name(0))
	} else {
		fmt.Fprintf(&b, "st.global.b%d [%%rd4], %s;\n", widths[shape[0]], name(0))
	}
	return b.String()
}

// check runs an instruction on random operands, in whole warps and in one that lacks lanes.
func check(t *testing.T, rng *rand.Rand, i instruction, equal func(got, want uint64) bool) {
	t.Helper()
	const threads = 64 * 6
	k := kernel(t, "", program(i.text, i.shape))
	in := make([]byte, 32*threads)
	var operands [threads][4]uint64
	for j := range operands {
		for l := 1; l < len(i.shape); l++ {
			v := values(rng, widths[i.shape[l]])
			operands[j][l] = v
			binary.LittleEndian.PutUint64(in[32*j+8*l:], v)
		}
	}
	out, err := launch(k, Launch{Grid: [3]uint32{threads / 64, 1, 1}, Block: [3]uint32{50, 1, 1}}, in, 8*threads)
	if err != nil {
		t.Fatalf("%s: %v", i.text, err)
	}
	for j, o := range operands {
		if j%64 >= 50 {
			continue
		}
		got := binary.LittleEndian.Uint64(out[8*j:])
		want := i.want(o[1], o[2], o[3]) & (math.MaxUint64 >> (64 - widths[i.shape[0]]))
		if !equal(got, want) {
			t.Errorf("%s of %#x: %#x, want %#x", i.text, o[1:len(i.shape)], got, want)
			return
		}
	}
}

func same(got, want uint64) bool { return got == want }

func TestIntegerInstructionsComputeWhatTheManualSays(t *testing.T) {
	rng := random(t)
	for _, i := range integers {
		check(t, rng, i, same)
	}
}

func TestFloatInstructionsRoundOnce(t *testing.T) {
	rng := random(t)
	for _, i := range floats {
		for range 4 {
			check(t, rng, i, same)
		}
	}
}

func TestAnyFunctionOfThreeBits(t *testing.T) {
	rng := random(t)
	for table := range uint64(256) {
		i := instruction{"", "rrrr", func(a, b, c uint64) uint64 {
			var r uint64
			for j := range 32 {
				r |= table >> (a>>j&1<<2 | b>>j&1<<1 | c>>j&1) & 1 << j
			}
			return r
		}}
		body := strings.Replace(program("lop3.b32", i.shape), "%r13;\nmov", fmt.Sprintf("%%r13, %d;\nmov", table), 1)
		k := kernel(t, "", body)
		in := make([]byte, 32*64)
		for j := range 64 * 4 {
			binary.LittleEndian.PutUint64(in[8*j:], uint64(rng.Uint32()))
		}
		out, err := launch(k, Launch{}, in, 8*64)
		if err != nil {
			t.Fatal(err)
		}
		for j := range 32 {
			o := func(l int) uint64 { return binary.LittleEndian.Uint64(in[32*j+8*l:]) }
			if got, want := uint64(word(out, 2*j)), i.want(o(1), o(2), o(3)); got != want {
				t.Fatalf("table %d: %#x, want %#x", table, got, want)
			}
		}
	}
}

func TestComparisonsKnowWhatIsNoNumber(t *testing.T) {
	rng := random(t)
	ordered := map[string]func(x, y float64) bool{
		"eq": func(x, y float64) bool { return x == y }, "ne": func(x, y float64) bool { return x < y || x > y },
		"lt": func(x, y float64) bool { return x < y }, "le": func(x, y float64) bool { return x <= y },
		"gt": func(x, y float64) bool { return x > y }, "ge": func(x, y float64) bool { return x >= y },
	}
	isNaN := func(x, y float64) bool { return x != x || y != y }
	for op, f := range ordered {
		for _, w := range []struct {
			suffix, shape string
			of            func(uint64) float64
		}{{"f32", "prr", f32}, {"f64", "pdd", f64}} {
			check(t, rng, instruction{"setp." + op + "." + w.suffix, w.shape, func(a, b, _ uint64) uint64 { return truth(f(w.of(a), w.of(b))) }}, same)
			check(t, rng, instruction{"setp." + op + "u." + w.suffix, w.shape, func(a, b, _ uint64) uint64 {
				return truth(f(w.of(a), w.of(b)) || isNaN(w.of(a), w.of(b)))
			}}, same)
		}
		compare := func(x, y int64) bool { return f(float64(max(min(x-y, 1), -1)), 0) }
		check(t, rng, instruction{"setp." + op + ".s32", "prr", func(a, b, _ uint64) uint64 { return truth(compare(s32(a), s32(b))) }}, same)
		check(t, rng, instruction{"setp." + op + ".u32", "prr", func(a, b, _ uint64) uint64 { return truth(compare(int64(a), int64(b))) }}, same)
		check(t, rng, instruction{"setp." + op + ".u16", "phh", func(a, b, _ uint64) uint64 { return truth(compare(int64(a), int64(b))) }}, same)
		check(t, rng, instruction{"setp." + op + ".s16", "phh", func(a, b, _ uint64) uint64 {
			return truth(compare(int64(int16(a)), int64(int16(b))))
		}}, same)
		check(t, rng, instruction{"setp." + op + ".s64", "pdd", func(a, b, _ uint64) uint64 {
			return truth(f(float64(big.NewInt(s64(a)).Cmp(big.NewInt(s64(b)))), 0))
		}}, same)
		check(t, rng, instruction{"setp." + op + ".u64", "pdd", func(a, b, _ uint64) uint64 {
			return truth(f(float64(new(big.Int).SetUint64(a).Cmp(new(big.Int).SetUint64(b))), 0))
		}}, same)
	}
	check(t, rng, instruction{"setp.num.f32", "prr", func(a, b, _ uint64) uint64 { return truth(!isNaN(f32(a), f32(b))) }}, same)
	check(t, rng, instruction{"setp.nan.f32", "prr", func(a, b, _ uint64) uint64 { return truth(isNaN(f32(a), f32(b))) }}, same)
	for op, f := range map[string]func(x, y uint64) uint64{
		"and": func(x, y uint64) uint64 { return x & y }, "or": func(x, y uint64) uint64 { return x | y }, "xor": func(x, y uint64) uint64 { return x ^ y },
	} {
		check(t, rng, instruction{"setp.lt." + op + ".s32", "prrp", func(a, b, c uint64) uint64 { return f(truth(s32(a) < s32(b)), c) }}, same)
	}
	for op, f := range map[string]func(x, y bool) bool{
		"and": func(x, y bool) bool { return x && y }, "or": func(x, y bool) bool { return x || y }, "xor": func(x, y bool) bool { return x != y },
	} {
		r := perThread(t, "and.b32 %r2, %r1, 3;\nsetp.gt.u32 %p3, %r2, 1;\nsetp.lt."+op+".u32 %p1|%p2, %r1, 15, !%p3;\nselp.b32 %r8, 1, 0, %p1;\nselp.b32 %r9, 2, 0, %p2;\nor.b32 %r9, %r9, %r8;", Launch{})
		for i, v := range r {
			less, q := i < 15, i%4 <= 1
			if want := bit(f(less, q)) + 2*bit(f(!less, q)); v != want {
				t.Errorf("%s, lane %d: %d, want %d", op, i, v, want)
			}
		}
	}
}

func TestAGuardedComparisonLeavesOtherLanesAlone(t *testing.T) {
	r := perThread(t, `
setp.eq.u32 %p2, %r1, %r1;
setp.eq.u32 %p3, %r1, %r1;
setp.lt.u32 %p1, %r1, 7;
@%p1 setp.eq.u32 %p2|%p3, %r1, 3;
@!%p1 mov.u32 %r2, 8;
@%p1 mov.u32 %r2, 0;
selp.b32 %r3, 1, 0, %p2;
selp.b32 %r9, 2, 0, %p3;
or.b32 %r9, %r9, %r3;
or.b32 %r9, %r9, %r2;`, Launch{})
	for i, v := range r {
		want := uint32(8 + 2 + 1)
		if i < 7 {
			want = bit(i == 3) + 2*bit(i != 3)
		}
		if v != want {
			t.Errorf("lane %d: %d, want %d", i, v, want)
		}
	}
}

func TestApproximationsAreNearTheTruth(t *testing.T) {
	rng := random(t)
	near := func(got, want uint64) bool {
		g, w := f32(got), f32(want)
		return got == want || math.Abs(g-w) <= 0x1p-23*math.Abs(w)
	}
	for op, f := range map[string]func(float64) float64{
		"ex2.approx.f32": math.Exp2, "lg2.approx.f32": math.Log2, "rsqrt.approx.f32": func(x float64) float64 { return 1 / math.Sqrt(x) },
		"rcp.approx.f32": func(x float64) float64 { return 1 / x }, "sqrt.approx.f32": math.Sqrt, "tanh.approx.f32": math.Tanh,
		"sin.approx.f32": math.Sin, "cos.approx.f32": math.Cos,
	} {
		for range 8 {
			check(t, rng, instruction{op, "rr", func(a, _, _ uint64) uint64 { return of32(float32(f(f32(a)))) }}, near)
		}
	}
	flush := func(x uint64) uint64 {
		if x&0x7f800000 == 0 {
			x &= 1 << 31
		}
		return x
	}
	for op, f := range map[string]func(float64) float64{
		"ex2.approx.ftz.f32": math.Exp2, "rcp.approx.ftz.f32": func(x float64) float64 { return 1 / x }, "sqrt.approx.ftz.f32": math.Sqrt,
	} {
		for range 8 {
			check(t, rng, instruction{op, "rr", func(a, _, _ uint64) uint64 { return flush(of32(float32(f(f32(flush(a)))))) }}, near)
		}
	}
	for range 4 {
		check(t, rng, instruction{"div.full.f32", "rrr", func(a, b, _ uint64) uint64 { return of32(float32(f32(a) / f32(b))) }}, near)
	}
}

func TestTwoToThePowerIsRightOverItsWholeRange(t *testing.T) {
	for x := float32(-152); x < 130; x += 0.00391 {
		got, want := float64(math.Float32frombits(exp2(math.Float32bits(x)))), math.Exp2(float64(x))
		if math.Abs(got-want) > 0x1.01p-24*want+0x1.01p-150 && !(math.IsInf(got, 1) && x >= 128) {
			t.Fatalf("2^%v is %v, want %v", x, got, want)
		}
	}
}

func TestTwoRoundingsAreOneInAnFMA(t *testing.T) {
	rng := random(t)
	loop := float32Loop("fma", "rn", false)
	bits := func(m, e int) uint32 { return math.Float32bits(float32(math.Ldexp(float64(m), e))) }
	for range 2000 {
		var d, a, b, c slot32
		for i := range a {
			// The product is half of c's last place but for some 2⁻⁴⁰ of that, which a float64 of the sum loses:
			// a tie, where there is none.
			x, e := 1+rng.IntN(16), rng.IntN(60)-30
			switch i % 3 {
			case 0:
				a[i], b[i], c[i] = bits(1<<23+x, e), bits(1<<23-x, -46), bits(1<<23+rng.IntN(1<<23), e+1)
			case 1: // results without a leading one
				a[i], b[i], c[i] = bits(1<<23+x, -98), bits(1<<23-x, -98), bits(1<<8+rng.IntN(1<<12), -149)
			default:
				a[i], b[i], c[i] = bits(1<<23+rng.IntN(1<<23), e), bits(1<<23+rng.IntN(4), -23), bits(1<<23+rng.IntN(4), e-rng.IntN(60)+20)
			}
			c[i] ^= rng.Uint32() & (1 << 31)
		}
		loop(&d, &a, &b, &c)
		for i := range d {
			if want := math.Float32bits(exact(f32(uint64(a[i])), f32(uint64(b[i])), f32(uint64(c[i])))); d[i] != want {
				t.Fatalf("fma of %#x, %#x, %#x: %#x, want %#x", a[i], b[i], c[i], d[i], want)
			}
		}
	}
}
