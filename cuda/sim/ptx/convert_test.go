package ptx

import (
	"fmt"
	"math"
	"math/big"
	"testing"
)

func TestConversionsBetweenIntegersExtendCutOrClamp(t *testing.T) {
	rng := random(t)
	extend := func(v uint64, n int, signed bool) *big.Int {
		if signed {
			return big.NewInt(int64(v<<(64-n)) >> (64 - n))
		}
		return new(big.Int).SetUint64(v << (64 - n) >> (64 - n))
	}
	shape := map[int]string{16: "h", 32: "r", 64: "d"}
	for _, from := range []int{16, 32, 64} {
		for _, to := range []int{16, 32, 64} {
			for _, signs := range []string{"ss", "su", "us", "uu"} {
				kind, kind2 := signs[0], signs[1]
				text := fmt.Sprintf("%c%d.%c%d", kind, to, kind2, from)
				check(t, rng, instruction{"cvt." + text, shape[to] + shape[from], func(a, _, _ uint64) uint64 {
					v := extend(a, from, kind2 == 's')
					return v.And(v, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
				}}, same)
				check(t, rng, instruction{"cvt.sat." + text, shape[to] + shape[from], func(a, _, _ uint64) uint64 {
					v := extend(a, from, kind2 == 's')
					most := new(big.Int).Lsh(big.NewInt(1), uint(to))
					least := big.NewInt(0)
					if kind == 's' {
						most.Rsh(most, 1)
						least.Neg(most)
					}
					most.Sub(most, big.NewInt(1))
					if v.Cmp(most) > 0 {
						v = most
					}
					if v.Cmp(least) < 0 {
						v = least
					}
					return v.And(v, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
				}}, same)
			}
		}
	}
	// A register may be wider than the type.
	check(t, rng, instruction{"cvt.u32.u8", "rr", func(a, _, _ uint64) uint64 { return a & 255 }}, same)
	check(t, rng, instruction{"cvt.s32.s8", "rr", func(a, _, _ uint64) uint64 { return uint64(int8(a)) }}, same)
	check(t, rng, instruction{"cvt.s64.s8", "dr", func(a, _, _ uint64) uint64 { return uint64(int8(a)) }}, same)
}

func TestConversionsFromFloatsRoundAndClamp(t *testing.T) {
	rng := random(t)
	rounds := map[string]func(float64) float64{"rni": math.RoundToEven, "rzi": math.Trunc, "rmi": math.Floor, "rpi": math.Ceil}
	clamp := func(f, least, most float64) float64 { return max(least, min(most, f)) }
	for name, round := range rounds {
		check(t, rng, instruction{"cvt." + name + ".s32.f32", "rr", func(a, _, _ uint64) uint64 {
			if f := f32(a); f == f {
				return uint64(int64(clamp(round(f), math.MinInt32, math.MaxInt32)))
			}
			return 0
		}}, same)
		check(t, rng, instruction{"cvt." + name + ".u32.f32", "rr", func(a, _, _ uint64) uint64 {
			if f := f32(a); f == f {
				return uint64(clamp(round(f), 0, math.MaxUint32))
			}
			return 0
		}}, same)
		check(t, rng, instruction{"cvt." + name + ".u16.f32", "hr", func(a, _, _ uint64) uint64 {
			if f := f32(a); f == f {
				return uint64(clamp(round(f), 0, math.MaxUint16))
			}
			return 0
		}}, same)
		check(t, rng, instruction{"cvt." + name + ".s64.f64", "dd", func(a, _, _ uint64) uint64 {
			switch f := round(f64(a)); {
			case f != f:
				return 1 << 63
			case f >= 1<<63:
				return math.MaxInt64
			case f < -1<<63:
				return 1 << 63
			default:
				return uint64(int64(f))
			}
		}}, same)
		check(t, rng, instruction{"cvt." + name + ".f32.f32", "rr", func(a, _, _ uint64) uint64 { return of32(float32(round(f32(a)))) }}, same)
	}
	check(t, rng, instruction{"cvt.sat.f32.f32", "rr", func(a, _, _ uint64) uint64 {
		if f := f32(a); f > 0 {
			return of32(float32(min(f, 1)))
		}
		return 0
	}}, same)
	for range 8 { // some of what is no number must be among them
		check(t, rng, instruction{"cvt.rn.f32.f64", "rd", func(a, _, _ uint64) uint64 { return of32(float32(f64(a))) }}, same)
		check(t, rng, instruction{"cvt.f64.f32", "dr", func(a, _, _ uint64) uint64 { return of64(f32(a)) }}, same)
	}
}

// directedBy rounds x to a float32 with math/big.
func directedBy(x *big.Float, mode big.RoundingMode) float32 {
	f, _ := new(big.Float).SetMode(mode).SetPrec(24).Set(x).Float32()
	return f
}

func TestConversionsToFloatsRoundInFourDirections(t *testing.T) {
	rng := random(t)
	for name, mode := range map[string]big.RoundingMode{"rn": big.ToNearestEven, "rz": big.ToZero, "rm": big.ToNegativeInf, "rp": big.ToPositiveInf} {
		integer := func(v *big.Int) uint64 { return of32(directedBy(new(big.Float).SetPrec(100).SetInt(v), mode)) }
		check(t, rng, instruction{"cvt." + name + ".f32.s32", "rr", func(a, _, _ uint64) uint64 { return integer(big.NewInt(s32(a))) }}, same)
		check(t, rng, instruction{"cvt." + name + ".f32.u32", "rr", func(a, _, _ uint64) uint64 { return integer(big.NewInt(int64(a))) }}, same)
		check(t, rng, instruction{"cvt." + name + ".f32.s64", "rd", func(a, _, _ uint64) uint64 { return integer(big.NewInt(s64(a))) }}, same)
		check(t, rng, instruction{"cvt." + name + ".f32.u64", "rd", func(a, _, _ uint64) uint64 { return integer(new(big.Int).SetUint64(a)) }}, same)
		check(t, rng, instruction{"cvt." + name + ".f64.u64", "dd", func(a, _, _ uint64) uint64 {
			f, _ := new(big.Float).SetMode(mode).SetPrec(53).SetInt(new(big.Int).SetUint64(a)).Float64()
			return of64(f)
		}}, same)
		check(t, rng, instruction{"cvt." + name + ".f64.s64", "dd", func(a, _, _ uint64) uint64 {
			f, _ := new(big.Float).SetMode(mode).SetPrec(53).SetInt(big.NewInt(s64(a))).Float64()
			return of64(f)
		}}, same)
		if name == "rn" {
			continue
		}
		normal := func(f float32) bool { a := math.Abs(float64(f)); return a > 0x1p-126 && a < math.MaxFloat32 }
		for range 4 { // subnormal results have fewer bits, which this oracle does not know
			check(t, rng, instruction{"fma." + name + ".f32", "rrrr", func(a, b, c uint64) uint64 {
				x, y, z := f32(a), f32(b), f32(c)
				if r := x*y + z; r != r || math.IsInf(r, 0) {
					return math.MaxUint32
				}
				big3 := func(v float64) *big.Float { return new(big.Float).SetPrec(2000).SetFloat64(v) }
				sum := new(big.Float).SetPrec(2000).Add(new(big.Float).SetPrec(2000).Mul(big3(x), big3(y)), big3(z))
				if f := directedBy(sum, mode); normal(f) {
					return of32(f)
				}
				return math.MaxUint32
			}}, func(got, want uint64) bool { return got == want || want == math.MaxUint32 })
		}
	}
}

// nearestBF16 is the bf16 next to a float, of two equally near the even one, found by trying the neighbours.
func nearestBF16(f float64) uint64 {
	if f != f {
		return 0x7fff
	}
	best := uint64(0)
	distance := math.Inf(1)
	low := uint64(math.Float32bits(float32(f))) >> 16
	for _, v := range []uint64{low, (low + 1) & 0xffff} {
		at := f32(v << 16)
		if v&0x7fff == 0x7f80 {
			at = math.Copysign(0x1p128, f) // infinity is where the next number would be
		}
		if d := math.Abs(at - f); d < distance || d == distance && v&1 == 0 {
			best, distance = v, d
		}
	}
	if math.IsInf(f, 0) {
		return low
	}
	return best
}

func TestBF16RoundsToTheNearestEven(t *testing.T) {
	rng := random(t)
	for range 8 {
		check(t, rng, instruction{"cvt.rn.bf16.f32", "hr", func(a, _, _ uint64) uint64 { return nearestBF16(f32(a)) }}, same)
		check(t, rng, instruction{"cvt.rn.bf16x2.f32", "rrr", func(a, b, _ uint64) uint64 { return nearestBF16(f32(a))<<16 | nearestBF16(f32(b)) }}, same)
		zero := func(a uint64) uint64 { // the nearest, or the one before it
			if x := f32(a); x != x || math.Abs(f32(nearestBF16(x)<<16)) <= math.Abs(x) {
				return nearestBF16(x)
			}
			return nearestBF16(f32(a)) - 1
		}
		check(t, rng, instruction{"cvt.rz.bf16.f32", "hr", func(a, _, _ uint64) uint64 { return zero(a) }}, same)
		check(t, rng, instruction{"cvt.rz.bf16x2.f32", "rrr", func(a, b, _ uint64) uint64 { return zero(a)<<16 | zero(b) }}, same)
		check(t, rng, instruction{"fma.rn.bf16", "hhhh", func(a, b, c uint64) uint64 {
			x, y, z := f32(a<<16), f32(b<<16), f32(c<<16)
			if r := x*y + z; r != r || math.IsInf(r, 0) {
				return nearestBF16(r)
			}
			big3 := func(v float64) *big.Float { return new(big.Float).SetPrec(2000).SetFloat64(v) }
			sum := new(big.Float).SetPrec(2000).Add(new(big.Float).SetPrec(2000).Mul(big3(x), big3(y)), big3(z))
			// Rounded to odd in 40 bits: then the nearest bf16 is that of the sum.
			odd := new(big.Float).SetMode(big.ToZero).SetPrec(40).Set(sum)
			f, _ := odd.Float64()
			if odd.Acc() != big.Exact && odd.Cmp(sum) != 0 {
				f = math.Float64frombits(math.Float64bits(f) | 1)
			}
			if math.Abs(f) >= math.MaxFloat32 || math.Abs(f) < 0x1p-120 {
				return math.MaxUint64
			}
			return nearestBF16(f)
		}}, func(got, want uint64) bool { return got == want || want == 0xffff })
		check(t, rng, instruction{"neg.bf16x2", "rr", func(a, _, _ uint64) uint64 { return a ^ 0x80008000 }}, same)
		check(t, rng, instruction{"abs.bf16x2", "rr", func(a, _, _ uint64) uint64 { return a &^ 0x80008000 }}, same)
	}
}

func TestMovesTakeWholesApart(t *testing.T) {
	r := perThread(t, `
mov.b32 {%h1, %h2}, 305419896;
mov.b32 %r3, {%h2, %h1};
mov.b64 %rd3, {%r3, %r1};
mov.b64 {%r4, %r5}, %rd3;
mov.b64 {%h3, %h4, %h5, %h6}, %rd3;
cvt.u32.u16 %r6, %h5;
add.s32 %r9, %r4, %r5;
add.s32 %r9, %r9, %r6;`, Launch{})
	for i, v := range r {
		if want := 0x56781234 + 2*uint32(i); v != want {
			t.Errorf("lane %d: %#x, want %#x", i, v, want)
		}
	}
}

func TestGenericAddressesLeadToTheirSpace(t *testing.T) {
	k := kernel(t, ".shared .align 8 .b8 s[64];\n.const .align 4 .u32 c = 5;\n.global .align 4 .u32 g[2] = {6, -1};", `
.local .align 8 .b8 depot[16];
mov.u64 %rd3, s;
cvta.shared.u64 %rd4, %rd3;
st.u32 [%rd4+4], 1;
ld.shared.u32 %r2, [s+4];
mov.u64 %rd5, depot;
cvta.local.u64 %rd6, %rd5;
st.u32 [%rd6+8], %r1;
ld.local.u32 %r3, [depot+8];
mov.u64 %rd7, c;
cvta.const.u64 %rd8, %rd7;
ld.u32 %r4, [%rd8];
ld.const.u32 %r5, [c];
ld.global.s32 %r6, [g+4];
mov.u64 %rd9, in;
cvta.param.u64 %rd10, %rd9;
ld.u64 %rd11, [%rd10];
cvta.to.shared.u64 %rd12, %rd4;
sub.s64 %rd12, %rd12, %rd3;
cvt.u32.u64 %r7, %rd12;
isspacep.shared %p1, %rd4;
isspacep.global %p2, %rd2;
isspacep.global %p3, %rd4;
isspacep.local %p4, %rd6;
selp.u32 %r8, 1, 0, %p1;
selp.u32 %r9, 2, 0, %p2;
selp.u32 %r10, 4, 0, %p3;
selp.u32 %r11, 8, 0, %p4;
add.s32 %r8, %r8, %r9;
add.s32 %r8, %r8, %r10;
add.s32 %r8, %r8, %r11;
setp.eq.u64 %p5, %rd11, %rd1;
selp.u32 %r12, 1, 0, %p5;
setp.ne.u32 %p6, %r1, 31;
@%p6 ret;
st.global.v4.u32 [%rd2], {%r2, %r3, %r4, %r5};
st.global.v4.u32 [%rd2+16], {%r6, %r7, %r8, %r12};`)
	out, err := launch(k, Launch{}, nil, 32)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint32{1, 31, 5, 5, math.MaxUint32, 0, 1 + 2 + 8, 1} {
		if got := word(out, i); got != want {
			t.Errorf("result %d is %d, want %d", i, got, want)
		}
	}
}
