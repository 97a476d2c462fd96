package cpu

import "fmt"

// ISA is an instruction-set level that the kernels are written for. Levels are ordered: whoever has
// one has all below it. Ranks of one run agree on the lowest among them. In fp32 every level gives
// the same bits; the products of bf16 matrices, those of attention too, differ between AVX512BF16 and
// the levels below it.
type ISA int

// The levels, lowest first. Their numbers are those of isa.h.
const (
	Generic    ISA = iota // portable C
	AVX2                  // AVX2 and FMA
	AVX512                // AVX-512 F, BW, DQ and VL
	AVX512BF16            // and the bf16 dot product
)

var isaNames = [...]string{"generic", "avx2", "avx512", "avx512bf16"}

// String is the level's name in configurations and records.
func (i ISA) String() string {
	if i < 0 || int(i) >= len(isaNames) {
		return fmt.Sprintf("ISA(%d)", int(i))
	}
	return isaNames[i]
}

// ParseISA is the inverse of String.
func ParseISA(name string) (ISA, error) {
	for i, known := range isaNames {
		if name == known {
			return ISA(i), nil
		}
	}
	return 0, fmt.Errorf("cpu: unknown instruction set %q; known are %v", name, isaNames)
}
