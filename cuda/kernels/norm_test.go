package kernels

import (
	"fmt"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// Rows of models, rows that take all warps of a block, and such as do not fit into its registers.
func TestNormsOfRowsOfAnyWidthAreRight(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, dim := range []int{5, 37, 69, 101, 24, 152, 280, 408, 536, 792, 201, 401, 600, 601, 896, 1024, 1033, 1537, 1793, 2048, 2500, 4096, 4100, 4600, 6144, 7168, 8192, 8200, 8201, 12288, 14336, 17000} {
			rows := 3
			if dim == 1024 { // all that a warp keeps: enough to see how each part of it is rounded
				rows = 9
			}
			n := rows * dim
			f := &device.AddRMSNorm{
				X: memory.Normal(typ, n, 0, 1), Residual: memory.Normal(typ, n, 0, 1), Weight: memory.Gains(typ, dim),
				Sum: memory.Blank(typ, n), Out: memory.Blank(typ, n), RStd: memory.Blank(device.F32, rows), Rows: rows, Dim: dim, Eps: 0.1,
			}
			alone := *f
			alone.Residual, alone.Sum = device.Tensor{}, device.Tensor{}
			for _, op := range []device.Op{f, &alone} {
				if err := verify(memory, rng, op, schedules...); err != nil {
					t.Errorf("%s: %v", device.Format(op), err)
				}
			}
			f.Reference()
			b := &device.AddRMSNormBackward{
				DOut: memory.Normal(typ, n, 0, 1), DSum: memory.Normal(typ, n, 0, 1), Sum: f.Sum, Weight: f.Weight, RStd: f.RStd,
				DX: memory.Blank(typ, n), DWeight: memory.Blank(device.F32, dim), Rows: rows, Dim: dim,
			}
			last := *b
			last.DSum = device.Tensor{}
			for _, op := range []device.Op{b, &last} {
				if err := verify(memory, rng, op, schedules...); err != nil {
					t.Errorf("%s: %v", device.Format(op), err)
				}
			}
		}
	}
}

func TestWeightsOfNormsAreSummedOverManyRows(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, c := range [][2]int{{1100, 24}, {1100, 5}, {1100, 37}, {2100, 24}, {3400, 5}, {800, 24}, {600, 24}, {500, 24}, {200, 5}, {100, 5}} { // of the last, four for a thread
			rows, dim := c[0], c[1]
			b := &device.AddRMSNormBackward{
				DOut: memory.Normal(typ, rows*dim, 0, 1), Sum: memory.Normal(typ, rows*dim, 0, 1), Weight: memory.Gains(typ, dim),
				RStd: memory.Normal(device.F32, rows, 1, 0.1), DX: memory.Blank(typ, rows*dim), DWeight: memory.Normal(typ, dim, 0, 1),
				Rows: rows, Dim: dim, Accumulate: true,
			}
			if err := verify(memory, rng, b, schedules...); err != nil {
				t.Errorf("%s: %v", device.Format(b), err)
			}
		}
	}
}

func TestARowHasAsFewWarpsAsCanKeepIt(t *testing.T) {
	for _, c := range []struct {
		dim    int
		typ    device.DType
		vector uint32
		want   uint32
	}{
		{1, device.BF16, 0, 1},
		{896, device.BF16, 1, 1},
		{1024, device.BF16, 1, 1},
		{1032, device.BF16, 1, 2},
		{1536, device.BF16, 1, 2},
		{1536, device.F32, 1, 4},
		{8192, device.BF16, 1, 8},
		{100000, device.BF16, 1, 8},
		{129, device.F32, 0, 2},
	} {
		if got := rowWarps(c.dim, c.typ, c.vector, 4); got != c.want {
			t.Errorf("%s: %d warps, want %d", fmt.Sprint(c.dim, " × ", c.typ, " at once: ", c.vector), got, c.want)
		}
	}
}
