package bench

import (
	"bytes"
	"fmt"

	"github.com/gofsdp/gofsdp/train"
)

// collectiveTables writes a table for each number of ranks.
func collectiveTables(b *bytes.Buffer, list []Collective, gpu bool) {
	for i := 0; i < len(list); {
		ranks := list[i].Ranks
		if gpu {
			i += gpuCollectives(b, list[i:], ranks)
			continue
		}
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

// gpuCollectives writes the table of the first, those of so many ranks, and returns
// how many they are.
func gpuCollectives(b *bytes.Buffer, list []Collective, ranks int) (n int) {
	fmt.Fprintf(b, "\ncollectives over NCCL, %s of a GPU each; what a rank reads from others, by the time until the slowest is done.\n\n", train.Number(ranks, "rank"))
	t := newTable(b)
	t.row("MB", "ms", "GB/s", "collective")
	for ; n < len(list) && list[n].Ranks == ranks; n++ {
		c := &list[n]
		if c.Reads == 0 {
			t.row("", scaled(c.Seconds, 1e3), "", c.Kind)
			continue
		}
		t.row(short(float64(c.Bytes)/(1<<20)), scaled(c.Seconds, 1e3), short(float64(c.Reads)*1e-9/c.Seconds.Median), c.Kind)
	}
	t.end()
	return n
}

func (w *RankedWorkload) table(b *bytes.Buffer, gpu bool) {
	aims := "' cores at once; the aims\nare 70 % of it on two ranks, and at most 1.05 times the seconds of no_shard.\n\n"
	if gpu {
		aims = "' GPUs at once.\n\n"
	}
	fmt.Fprintf(b, "\n%s in %s, ranks of %s: %d × %d tokens a step of each, recomputation %s. The peak is of all ranks%s",
		w.Model, w.Precision, computing(gpu, w.Threads), w.Sequences, w.Length, w.Recompute, aims)
	t := newTable(b)
	row := func(x, onCores []string, rest ...string) {
		if !gpu {
			x = append(x, onCores...)
		}
		t.row(append(x, rest...)...)
	}
	row([]string{"ranks", "mesh", "s a step", "tokens/s", "× one rank", "× no_shard's s", "% of peak", "GFLOP/s peak"}, []string{"% on cores", "% of peak then"}, "GiB a rank", "strategy")
	for i := range w.Steps {
		x := &w.Steps[i]
		row([]string{
			fmt.Sprint(x.Ranks), x.Mesh, scaled(x.Step.Seconds, 1), short(x.Step.Tokens.Median), scaled(x.Speedup, 1), scaled(x.OverNoShard, 1),
			scaled(x.Step.Share, 100), short(x.Step.Peak.Median * 1e-9),
		}, []string{short(100 * x.Step.Cores.Median), short(100 * x.Step.OnCores.Median)}, fmt.Sprintf("%.2f", float64(x.ArenaBytes)/(1<<30)), x.Strategy)
	}
	t.end()
}
