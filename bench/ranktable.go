package bench

import (
	"bytes"
	"fmt"

	"github.com/gofsdp/gofsdp/train"
)

// collectiveTables writes a table for each number of ranks.
func collectiveTables(b *bytes.Buffer, list []Collective) {
	for i := 0; i < len(list); {
		ranks := list[i].Ranks
		fmt.Fprintf(b, "\ncollectives over shared memory, %s of %s. The limit is the time in which the same ranks, all at once,\n"+
			"copy the bytes that each must read from others (an all-reduce both halves) in memory of their own; the aim is 60 %% of it.\n\n",
			train.Number(ranks, "rank"), train.Number(list[i].Threads, "thread"))
		t := newTable(b)
		t.row("MB", "ms", "GB/s", "copy GB/s", "% of limit", "collective")
		for ; i < len(list) && list[i].Ranks == ranks; i++ {
			c := &list[i]
			if c.Reads == 0 {
				t.row("", scaled(c.Seconds, 1e3), "", "", "", c.Kind)
				continue
			}
			reads := float64(c.Reads) * 1e-9
			t.row(short(float64(c.Bytes)/(1<<20)), scaled(c.Seconds, 1e3), short(reads/c.Seconds.Median), short(reads/c.Copy.Median), scaled(c.Share, 100), c.Kind)
		}
		t.end()
	}
}

func (w *RankedWorkload) table(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n%s in %s, ranks of %s: %d × %d tokens a step of each, recomputation %s. The peak is of all ranks' cores at once; the aims\n"+
		"are 70 %% of it on two ranks, and at most 1.05 times the seconds of no_shard.\n\n",
		w.Model, w.Precision, train.Number(w.Threads, "thread"), w.Sequences, w.Length, w.Recompute)
	t := newTable(b)
	t.row("ranks", "mesh", "s a step", "tokens/s", "× one rank", "× no_shard's s", "% of peak", "GFLOP/s peak", "% on cores", "% of peak then", "GiB a rank", "strategy")
	for i := range w.Steps {
		x := &w.Steps[i]
		t.row(fmt.Sprint(x.Ranks), x.Mesh, scaled(x.Step.Seconds, 1), short(x.Step.Tokens.Median), scaled(x.Speedup, 1), scaled(x.OverNoShard, 1),
			scaled(x.Step.Share, 100), short(x.Step.Peak.Median*1e-9), short(100*x.Step.Cores.Median), short(100*x.Step.OnCores.Median), fmt.Sprintf("%.2f", float64(x.ArenaBytes)/(1<<30)), x.Strategy)
	}
	t.end()
}
