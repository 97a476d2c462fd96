package gpucheck

import (
	"testing"

	"github.com/gofsdp/gofsdp/cuda"
	source "github.com/gofsdp/gofsdp/cuda/kernels"
)

func TestAKernelThatItsCompilerSpillsIsSaidToBeSo(t *testing.T) {
	c := &check{outcome: &Outcome{}}
	k := source.Kernel{Name: "one", Threads: 256, Blocks: 2}
	compiled(c, []cuda.Compiled{{Kernel: k, Registers: 128, Shared: 4}, {Kernel: k, Registers: 128, Spilled: 8}, {Kernel: k, Registers: 129}})
	if n := len(c.outcome.Tables); n != 1 {
		t.Fatalf("%d tables", n)
	}
	rows := c.outcome.Tables[0].Rows
	for i, want := range []string{"", "one: 8 bytes of registers are spilled, 0 are allowed", "one: 129 registers: 2 blocks of 256 threads do not fit"} {
		if got := rows[i][len(rows[i])-1]; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if len(rows) != 3 || len(c.failures) > 0 {
		t.Error(rows, c.failures)
	}
}
