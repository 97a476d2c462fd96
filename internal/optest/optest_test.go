package optest

import (
	"math"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

func TestTheReferenceEqualsItselfOnEveryCase(t *testing.T) {
	rng := Rand(t)
	for _, typ := range []device.DType{device.F32, device.BF16, device.F64} {
		for _, c := range Cases(t, rng, typ) {
			again := NewMemory(t, rng).Clone(c.Op)
			c.Op.Reference()
			again.Reference()
			if err := Compare(again, c.Op, nil); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
			for _, o := range device.Operands(c.Op) {
				if o.Scratch {
					continue // a reference needs none
				}
				for i := range int(o.T.Len) {
					if x := At(*o.T, i); x != x && device.Name(c.Op) != "CheckFinite" {
						t.Fatalf("%s: %s[%d] is not a number: not written", c.Name, o.Name, i)
					}
				}
			}
		}
	}
}

func TestCompareFindsOneElementThatIsWrong(t *testing.T) {
	rng := Rand(t)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, c := range Cases(t, rng, typ) {
			memory := NewMemory(t, rng)
			bounds, again := memory.Bounds(c.Op), memory.Clone(c.Op)
			c.Op.Reference()
			again.Reference()
			for _, o := range device.Operands(again) {
				if o.Scratch {
					continue
				}
				i := rng.IntN(int(o.T.Len))
				old := append([]byte(nil), Bytes(*o.T)...)
				if o.T.Type == device.I32 {
					o.T.I32()[i]++
				} else {
					x := At(*o.T, i)
					if math.IsNaN(x) || math.IsInf(x, 0) {
						x = 0
					}
					Set(*o.T, i, x+0.1*math.Abs(x)+0.1) // by more than bf16 rounds
				}
				err := Compare(again, c.Op, bounds)
				if err == nil || !strings.Contains(err.Error(), o.Name) {
					t.Errorf("%s: %s[%d] is wrong: %v", c.Name, o.Name, i, err)
				}
				copy(Bytes(*o.T), old)
			}
		}
	}
}

func TestCompareFindsRoundingTowardsZero(t *testing.T) {
	memory := NewMemory(t, Rand(t))
	for _, n := range []int{50, 1000} {
		op := &device.SwiGLU{Gate: memory.Normal(device.F32, n, 0, 1), Up: memory.Normal(device.F32, n, 0, 1), Out: memory.Blank(device.F32, n), N: n}
		want := &device.SwiGLU{Gate: memory.Blank(device.BF16, n), Up: memory.Blank(device.BF16, n), Out: memory.Blank(device.BF16, n), N: n}
		for i := range n { // the same inputs
			Set(want.Gate, i, At(op.Gate, i))
			Set(want.Up, i, At(op.Up, i))
			Set(op.Gate, i, At(want.Gate, i))
			Set(op.Up, i, At(want.Up, i))
		}
		bounds := memory.Bounds(want)
		got := memory.Clone(want)
		op.Reference()
		want.Reference()
		out := device.Operands(got)[2].T
		for nearest, wrong := range map[bool]bool{true: false, false: true} {
			for i, x := range op.Out.F32() {
				out.BF16()[i] = uint16(math.Float32bits(x) >> 16)
				if nearest {
					out.BF16()[i] = device.ToBF16(x)
				}
			}
			if err := Compare(got, want, bounds); (err != nil) != wrong {
				t.Errorf("%d numbers, rounded to nearest %v: %v", n, nearest, err)
			}
		}
	}
}
