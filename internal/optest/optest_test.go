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
