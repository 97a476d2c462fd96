package kernels

import (
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// A block of elementwise operations has 1,024 numbers of fp32 and 2,048 of bf16, moved 16 bytes at once where
// the block is full and one by one where not.
func TestElementwiseOperationsEndAtAnyElement(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	sizes := []int{1, 7, 8, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097}
	for k := range 8 {
		sizes = append(sizes, 256*k+100) // a thread's kth element is the first that is not there
	}
	for _, n := range sizes {
		for _, typ := range []device.DType{device.F32, device.BF16} {
			normal := func() device.Tensor { return memory.Normal(typ, n, 0, 1) }
			other := device.F32
			if typ == other {
				other = device.BF16
			}
			for _, op := range []device.Op{
				&device.SwiGLU{Gate: normal(), Up: normal(), Out: memory.Blank(typ, n), N: n},
				&device.SwiGLUBackward{
					Gate: normal(), Up: normal(), DOut: normal(), DGate: memory.Blank(typ, n), DUp: memory.Blank(typ, n), N: n,
				},
				&device.Cast{Src: normal(), Dst: memory.Blank(other, n), N: n},
				&device.Cast{Src: normal(), Dst: memory.Blank(typ, n), N: n},
				&device.Copy{Src: normal(), Dst: memory.Blank(typ, n), N: n},
				&device.Fill{Dst: memory.Blank(typ, n), N: n, Value: 0.1},
			} {
				if err := verify(memory, rng, op, schedules[0]); err != nil {
					t.Errorf("%s: %v", device.Format(op), err)
				}
			}
		}
		for _, op := range []device.Op{
			&device.Copy{Src: memory.Ints(n, func(i int) int { return i }), Dst: memory.Blank(device.I32, n), N: n},
			&device.Copy{Src: memory.Normal(device.F64, n, 0, 1), Dst: memory.Blank(device.F64, n), N: n},
			&device.Fill{Dst: memory.Blank(device.I32, n), N: n, Value: -3},
		} {
			if err := verify(memory, rng, op, schedules[0]); err != nil {
				t.Errorf("%s: %v", device.Format(op), err)
			}
		}
	}
}

// A lane copies four elements, or packs of them, in a turn, and then what is left.
func TestEmbeddingsOfAnyWidthAreCopied(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, n := range []int{1, 33, 70, 101, 128, 150, 165, 301, 1301} {
			for _, dim := range []int{n | 1, n * int(16/typ.Size())} {
				op := &device.Embed{
					Table: memory.Normal(typ, 5*dim, 0, 1), IDs: memory.Ints(9, func(int) int { return rng.IntN(5) }),
					Out: memory.Blank(typ, 9*dim), Rows: 9, Dim: dim, Vocab: 5,
				}
				if err := verify(memory, rng, op, schedules[0]); err != nil {
					t.Errorf("%s: %v", device.Format(op), err)
				}
			}
		}
	}
}
