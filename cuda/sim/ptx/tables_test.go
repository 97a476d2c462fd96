package ptx

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
)

// instruction is one form of an instruction, with what it computes of its
// operands' bits. Shape has a letter an operand, the result first: p for
// predicates, h for 16, r for 32 and d for 64 bits.
type instruction struct {
	text, shape string
	want        func(a, b, c uint64) uint64
}

func s32(x uint64) int64 { return int64(int32(x)) }
func s64(x uint64) int64 { return int64(x) }
func f32(x uint64) float64 {
	return float64(math.Float32frombits(uint32(x)))
}
func f64(x uint64) float64 { return math.Float64frombits(x) }

// of32 returns the bits of a result, of which every NaN is one.
func of32(f float32) uint64 {
	if f != f {
		return nan32
	}
	return uint64(math.Float32bits(f))
}

func of64(f float64) uint64 {
	if f != f {
		return nan64
	}
	return math.Float64bits(f)
}

// exact computes x·y + z without rounding, and rounds once.
func exact(x, y, z float64) float32 {
	if r := x*y + z; r != r || math.IsInf(r, 0) && (math.IsInf(x, 0) || math.IsInf(y, 0) || math.IsInf(z, 0)) {
		return float32(r)
	}
	f := func(v float64) *big.Float { return new(big.Float).SetPrec(3000).SetFloat64(v) }
	sum := new(big.Float).SetPrec(3000).Add(new(big.Float).SetPrec(3000).Mul(f(x), f(y)), f(z))
	if sum.Sign() == 0 {
		return float32(x*y + z) // which has the sign of zero
	}
	r, _ := sum.Float32()
	return r
}

func truth(b bool) uint64 { return uint64(bit(b)) }

var integers = []instruction{
	{"add.s32", "rrr", func(a, b, _ uint64) uint64 { return a + b }},
	{"add.u32", "rrr", func(a, b, _ uint64) uint64 { return a + b }},
	{"add.s64", "ddd", func(a, b, _ uint64) uint64 { return a + b }},
	{"add.s16", "hhh", func(a, b, _ uint64) uint64 { return a + b }},
	{"sub.s32", "rrr", func(a, b, _ uint64) uint64 { return a - b }},
	{"sub.u64", "ddd", func(a, b, _ uint64) uint64 { return a - b }},
	{"mul.lo.s32", "rrr", func(a, b, _ uint64) uint64 { return a * b }},
	{"mul.lo.s64", "ddd", func(a, b, _ uint64) uint64 { return a * b }},
	{"mul.lo.s16", "hhh", func(a, b, _ uint64) uint64 { return a * b }},
	{"mul.hi.s32", "rrr", func(a, b, _ uint64) uint64 { return uint64(s32(a) * s32(b) >> 32) }},
	{"mul.hi.u32", "rrr", func(a, b, _ uint64) uint64 { return a * b >> 32 }},
	{"mul.hi.u64", "ddd", func(a, b, _ uint64) uint64 { h, _ := bits.Mul64(a, b); return h }},
	{"mul.hi.s64", "ddd", func(a, b, _ uint64) uint64 {
		p := new(big.Int).Mul(big.NewInt(s64(a)), big.NewInt(s64(b)))
		return uint64(p.Rsh(p, 64).Int64())
	}},
	{"mul.wide.s32", "drr", func(a, b, _ uint64) uint64 { return uint64(s32(a) * s32(b)) }},
	{"mul.wide.u32", "drr", func(a, b, _ uint64) uint64 { return a * b }},
	{"mul.wide.s16", "rhh", func(a, b, _ uint64) uint64 { return uint64(int64(int16(a)) * int64(int16(b))) }},
	{"mul.wide.u16", "rhh", func(a, b, _ uint64) uint64 { return a * b }},
	{"mad.lo.s32", "rrrr", func(a, b, c uint64) uint64 { return a*b + c }},
	{"mad.hi.u32", "rrrr", func(a, b, c uint64) uint64 { return a*b>>32 + c }},
	{"mad.lo.s64", "dddd", func(a, b, c uint64) uint64 { return a*b + c }},
	{"mad.wide.s32", "drrd", func(a, b, c uint64) uint64 { return uint64(s32(a)*s32(b)) + c }},
	{"mad.wide.u32", "drrd", func(a, b, c uint64) uint64 { return a*b + c }},
	{"div.s32", "rrr", func(a, b, _ uint64) uint64 {
		if b == 0 {
			return math.MaxUint32
		}
		return uint64(s32(a) / s32(b))
	}},
	{"div.u32", "rrr", func(a, b, _ uint64) uint64 {
		if b == 0 {
			return math.MaxUint32
		}
		return a / b
	}},
	{"rem.s32", "rrr", func(a, b, _ uint64) uint64 {
		if b == 0 {
			return a
		}
		return uint64(s32(a) % s32(b))
	}},
	{"rem.u64", "ddd", func(a, b, _ uint64) uint64 {
		if b == 0 {
			return a
		}
		return a % b
	}},
	{"div.s64", "ddd", func(a, b, _ uint64) uint64 {
		if b == 0 {
			return math.MaxUint64
		}
		q := new(big.Int).Quo(big.NewInt(s64(a)), big.NewInt(s64(b)))
		return q.And(q, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
	}},
	{"min.s32", "rrr", func(a, b, _ uint64) uint64 { return uint64(min(s32(a), s32(b))) }},
	{"max.s32", "rrr", func(a, b, _ uint64) uint64 { return uint64(max(s32(a), s32(b))) }},
	{"min.u32", "rrr", func(a, b, _ uint64) uint64 { return min(a, b) }},
	{"max.u32", "rrr", func(a, b, _ uint64) uint64 { return max(a, b) }},
	{"min.s64", "ddd", func(a, b, _ uint64) uint64 { return uint64(min(s64(a), s64(b))) }},
	{"max.u64", "ddd", func(a, b, _ uint64) uint64 { return max(a, b) }},
	{"min.s16", "hhh", func(a, b, _ uint64) uint64 { return uint64(min(int16(a), int16(b))) }},
	{"abs.s32", "rr", func(a, _, _ uint64) uint64 { return uint64(max(s32(a), -s32(a))) }},
	{"neg.s32", "rr", func(a, _, _ uint64) uint64 { return -a }},
	{"neg.s64", "dd", func(a, _, _ uint64) uint64 { return -a }},
	{"and.b32", "rrr", func(a, b, _ uint64) uint64 { return a & b }},
	{"or.b64", "ddd", func(a, b, _ uint64) uint64 { return a | b }},
	{"xor.b32", "rrr", func(a, b, _ uint64) uint64 { return a ^ b }},
	{"xor.b16", "hhh", func(a, b, _ uint64) uint64 { return a ^ b }},
	{"not.b32", "rr", func(a, _, _ uint64) uint64 { return ^a }},
	{"not.b16", "hh", func(a, _, _ uint64) uint64 { return ^a }},
	{"shl.b32", "rrr", func(a, b, _ uint64) uint64 { return a << b }},
	{"shl.b64", "ddr", func(a, b, _ uint64) uint64 { return a << b }},
	{"shl.b16", "hhr", func(a, b, _ uint64) uint64 { return a << b }},
	{"shr.u32", "rrr", func(a, b, _ uint64) uint64 { return a >> b }},
	{"shr.s32", "rrr", func(a, b, _ uint64) uint64 { return uint64(s32(a) >> b) }},
	{"shr.u64", "ddr", func(a, b, _ uint64) uint64 { return a >> b }},
	{"shr.s64", "ddr", func(a, b, _ uint64) uint64 { return uint64(s64(a) >> b) }},
	{"shr.s16", "hhr", func(a, b, _ uint64) uint64 { return uint64(int16(a) >> b) }},
	{"shf.l.wrap.b32", "rrrr", func(a, b, c uint64) uint64 { return (b<<32 | a) << (c & 31) >> 32 }},
	{"shf.r.wrap.b32", "rrrr", func(a, b, c uint64) uint64 { return (b<<32 | a) >> (c & 31) }},
	{"shf.l.clamp.b32", "rrrr", func(a, b, c uint64) uint64 { return (b<<32 | a) << min(c, 32) >> 32 }},
	{"shf.r.clamp.b32", "rrrr", func(a, b, c uint64) uint64 { return (b<<32 | a) >> min(c, 32) }},
	{"popc.b32", "rr", func(a, _, _ uint64) uint64 { return uint64(bits.OnesCount64(a)) }},
	{"popc.b64", "rd", func(a, _, _ uint64) uint64 { return uint64(bits.OnesCount64(a)) }},
	{"clz.b32", "rr", func(a, _, _ uint64) uint64 { return uint64(bits.LeadingZeros32(uint32(a))) }},
	{"clz.b64", "rd", func(a, _, _ uint64) uint64 { return uint64(bits.LeadingZeros64(a)) }},
	{"brev.b32", "rr", func(a, _, _ uint64) uint64 { return uint64(bits.Reverse32(uint32(a))) }},
	{"brev.b64", "dd", func(a, _, _ uint64) uint64 { return bits.Reverse64(a) }},
	{"bfind.u32", "rr", func(a, _, _ uint64) uint64 { return uint64(bits.Len64(a) - 1) }},
	{"bfind.shiftamt.u32", "rr", func(a, _, _ uint64) uint64 {
		if a == 0 {
			return math.MaxUint32
		}
		return uint64(bits.LeadingZeros32(uint32(a)))
	}},
	{"bfind.s32", "rr", func(a, _, _ uint64) uint64 {
		if s32(a) < 0 {
			a = uint64(^uint32(a))
		}
		return uint64(bits.Len64(a) - 1)
	}},
	{"prmt.b32", "rrrr", func(a, b, c uint64) uint64 {
		all := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(a)), uint32(b))
		var r uint64
		for i := range 4 {
			s := c >> (4 * i) & 15
			v := uint64(all[s&7])
			if s&8 != 0 {
				v = v >> 7 * 255
			}
			r |= v << (8 * i)
		}
		return r
	}},
	{"bfe.u32", "rrrr", func(a, b, c uint64) uint64 { return extractBits(a, b, c, 32, false) }},
	{"bfe.s32", "rrrr", func(a, b, c uint64) uint64 { return extractBits(a, b, c, 32, true) }},
	{"bfe.u64", "ddrr", func(a, b, c uint64) uint64 { return extractBits(a, b, c, 64, false) }},
	{"bfe.s64", "ddrr", func(a, b, c uint64) uint64 { return extractBits(a, b, c, 64, true) }},
	{"selp.b32", "rrrp", func(a, b, c uint64) uint64 { return []uint64{b, a}[c] }},
	{"selp.b64", "dddp", func(a, b, c uint64) uint64 { return []uint64{b, a}[c] }},
	{"slct.u32.s32", "rrrr", func(a, b, c uint64) uint64 { return []uint64{b, a}[truth(s32(c) >= 0)] }},
	{"slct.f32.f32", "rrrr", func(a, b, c uint64) uint64 { return []uint64{b, a}[truth(f32(c) >= 0)] }},
	{"and.pred", "ppp", func(a, b, _ uint64) uint64 { return a & b }},
	{"or.pred", "ppp", func(a, b, _ uint64) uint64 { return a | b }},
	{"xor.pred", "ppp", func(a, b, _ uint64) uint64 { return a ^ b }},
	{"not.pred", "pp", func(a, _, _ uint64) uint64 { return 1 - a }},
	{"mov.pred", "pp", func(a, _, _ uint64) uint64 { return a }},
	{"mov.b32", "rr", func(a, _, _ uint64) uint64 { return a }},
	{"mov.b64", "dd", func(a, _, _ uint64) uint64 { return a }},
	{"cnot.b32", "rr", func(a, _, _ uint64) uint64 { return truth(a == 0) }},
	{"cnot.b64", "dd", func(a, _, _ uint64) uint64 { return truth(a == 0) }},
	{"mul24.lo.u32", "rrr", func(a, b, _ uint64) uint64 { return a & 0xffffff * (b & 0xffffff) }},
	{"mad24.lo.s32", "rrrr", func(a, b, c uint64) uint64 { return uint64(s32(a<<8)>>8*(s32(b<<8)>>8)) + c }},
	{"set.lt.u32.s32", "rrr", func(a, b, _ uint64) uint64 { return -truth(s32(a) < s32(b)) }},
	{"set.geu.f32.f32", "rrr", func(a, b, _ uint64) uint64 { return truth(!(f32(a) < f32(b))) * 0x3f800000 }},
	{"testp.finite.f32", "pr", func(a, _, _ uint64) uint64 { return truth(f32(a)-f32(a) == 0) }},
	{"testp.infinite.f32", "pr", func(a, _, _ uint64) uint64 { return truth(math.IsInf(f32(a), 0)) }},
	{"testp.number.f32", "pr", func(a, _, _ uint64) uint64 { return truth(f32(a) == f32(a)) }},
	{"testp.notanumber.f32", "pr", func(a, _, _ uint64) uint64 { return truth(f32(a) != f32(a)) }},
	{"testp.normal.f32", "pr", func(a, _, _ uint64) uint64 {
		return truth(math.Abs(f32(a)) >= 0x1p-126 && !math.IsInf(f32(a), 0))
	}},
	{"testp.subnormal.f32", "pr", func(a, _, _ uint64) uint64 { return truth(f32(a) != 0 && math.Abs(f32(a)) < 0x1p-126) }},
	{"sad.u32", "rrrr", func(a, b, c uint64) uint64 { return c + max(a, b) - min(a, b) }},
	{"sad.s32", "rrrr", func(a, b, c uint64) uint64 { return c + uint64(max(s32(a), s32(b))-min(s32(a), s32(b))) }},
}

// extractBits is bfe as the manual writes it, bit by bit.
func extractBits(a, b, c uint64, n int, signed bool) uint64 {
	pos, length := int(b&255), int(c&255)
	var sign uint64
	if signed && length > 0 {
		sign = a >> min(pos+length-1, n-1) & 1
	}
	var r uint64
	for i := range n {
		v := sign
		if i < length && pos+i < n {
			v = a >> (pos + i) & 1
		}
		r |= v << i
	}
	return r
}

func fmin(x, y float64) float64 {
	if x != x {
		return y
	}
	if y != y {
		return x
	}
	return min(x, y)
}

func fmax(x, y float64) float64 {
	if x != x {
		return y
	}
	if y != y {
		return x
	}
	return max(x, y)
}

var floats = []instruction{
	{"add.f32", "rrr", func(a, b, _ uint64) uint64 { return of32(exact(f32(a), 1, f32(b))) }},
	{"add.rn.f32", "rrr", func(a, b, _ uint64) uint64 { return of32(exact(f32(a), 1, f32(b))) }},
	{"sub.f32", "rrr", func(a, b, _ uint64) uint64 { return of32(exact(f32(a), 1, -f32(b))) }},
	{"mul.f32", "rrr", func(a, b, _ uint64) uint64 { return of32(float32(f32(a) * f32(b))) }},
	{"fma.rn.f32", "rrrr", func(a, b, c uint64) uint64 { return of32(exact(f32(a), f32(b), f32(c))) }},
	{"div.rn.f32", "rrr", func(a, b, _ uint64) uint64 { return of32(float32(f32(a) / f32(b))) }},
	{"rcp.rn.f32", "rr", func(a, _, _ uint64) uint64 { return of32(float32(1 / f32(a))) }},
	{"sqrt.rn.f32", "rr", func(a, _, _ uint64) uint64 { return of32(float32(math.Sqrt(f32(a)))) }},
	{"min.f32", "rrr", func(a, b, _ uint64) uint64 { return of32(float32(fmin(f32(a), f32(b)))) }},
	{"max.f32", "rrr", func(a, b, _ uint64) uint64 { return of32(float32(fmax(f32(a), f32(b)))) }},
	{"max.NaN.f32", "rrr", func(a, b, _ uint64) uint64 { return of32(float32(max(f32(a), f32(b)))) }},
	{"min.NaN.f32", "rrr", func(a, b, _ uint64) uint64 { return of32(float32(min(f32(a), f32(b)))) }},
	{"abs.f32", "rr", func(a, _, _ uint64) uint64 { return a &^ (1 << 31) }},
	{"neg.f32", "rr", func(a, _, _ uint64) uint64 { return a ^ 1<<31 }},
	{"copysign.f32", "rrr", func(a, b, _ uint64) uint64 { return a&(1<<31) | b&^(1<<31) }},
	{"add.sat.f32", "rrr", func(a, b, _ uint64) uint64 {
		r := f32(a) + f32(b)
		if !(r > 0) {
			return 0
		}
		return of32(float32(min(r, 1)))
	}},
	{"mul.ftz.f32", "rrr", func(a, b, _ uint64) uint64 {
		flush := func(x uint64) uint64 {
			if x&0x7f800000 == 0 {
				x &= 1 << 31
			}
			return x
		}
		return flush(of32(float32(f32(flush(a)) * f32(flush(b)))))
	}},
	{"add.f64", "ddd", func(a, b, _ uint64) uint64 { return of64(f64(a) + f64(b)) }},
	{"mul.f64", "ddd", func(a, b, _ uint64) uint64 { return of64(f64(a) * f64(b)) }},
	{"fma.rn.f64", "dddd", func(a, b, c uint64) uint64 { return of64(math.FMA(f64(a), f64(b), f64(c))) }},
	{"div.rn.f64", "ddd", func(a, b, _ uint64) uint64 { return of64(f64(a) / f64(b)) }},
	{"sqrt.rn.f64", "dd", func(a, _, _ uint64) uint64 { return of64(math.Sqrt(f64(a))) }},
	{"min.f64", "ddd", func(a, b, _ uint64) uint64 { return of64(fmin(f64(a), f64(b))) }},
	{"neg.f64", "dd", func(a, _, _ uint64) uint64 { return a ^ 1<<63 }},
}
