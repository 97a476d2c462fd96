package kernels

import (
	"bytes"
	goflag "flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
)

var update = goflag.Bool("update", false, "write work.txt")

// counted is the pass of verified whose work is counted.
const counted = 0

// What is right may still be slow: a kernel that goes element by element where it may move 16 bytes, looks at a
// tile too many, or stores in every lane what one has to. So what the kernels execute on the operations of these
// tests is a file, and a change of a source or of the compiler shows there what it costs or saves.
func TestKernelsDoTheWorkThatTheirTableSays(t *testing.T) {
	work := map[string]*ptx.Stats{}
	for _, c := range verified(t, counted, verifying) {
		if c.traps {
			continue // what other blocks have done by then is not said
		}
		launches, err := Lower(c.op)
		if err != nil {
			t.Fatal(err)
		}
		memory, _ := regionsOf(c.op)
		for _, l := range launches {
			k, err := interpreted(l.Kernel)
			if err != nil {
				t.Fatal(err)
			}
			if work[l.Kernel] == nil {
				work[l.Kernel] = &ptx.Stats{}
			}
			how := ptx.Launch{Grid: l.Grid, Block: l.Block, Shared: int(l.Shared), Args: l.Args, Limit: 1 << 22, Stats: work[l.Kernel]}
			if err := k.Run(how, memory); err != nil {
				t.Fatal(err)
			}
		}
	}
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "instructions\tby lanes\tproducts\tbytes read\twritten\t  kernel")
	for _, k := range All() {
		s := work[k.Name]
		if s == nil {
			t.Errorf("no test runs %s", k.Name)
			continue
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t  %s\n", s.Instructions, s.LaneInstructions, s.Mma, s.Read, s.Written, k.Name)
	}
	w.Flush()
	if *update {
		if err := os.WriteFile("work.txt", table.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	got, want := strings.Split(table.String(), "\n"), strings.Split(readFile(t, "work.txt"), "\n")
	for _, l := range want {
		if !slices.Contains(got, l) {
			t.Errorf("- %s", l)
		}
	}
	for _, l := range got {
		if !slices.Contains(want, l) {
			t.Errorf("+ %s", l)
		}
	}
	if t.Failed() {
		t.Log("if that is meant: go test ./cuda/kernels -run Work -update, and say in the commit why it costs more or less")
	}
}
