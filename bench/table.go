package bench

import (
	"bytes"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

// WriteTable writes the results for people.
func (r *Results) WriteTable(w io.Writer) error {
	var b bytes.Buffer
	gpu := r.Device.Kind == gpuKind
	fmt.Fprintf(&b, "%s, %s, %s, %s\n", r.Device.Name, r.Device.ISA, train.Number(r.Host.CPUs, "CPU"), r.Host.Platform)
	fmt.Fprintf(&b, "Figures are medians (least–greatest).\n")
	if len(r.Machine) > 0 {
		b.WriteByte('\n')
		t := newTable(&b)
		t.row("f32 GFLOP/s", "bf16 GFLOP/s", "copy GB/s", "triad GB/s", "limits with")
		for _, m := range r.Machine {
			t.row(scaled(m.F32, 1e-9), scaled(m.BF16, 1e-9), scaled(m.Copy, 1e-9), scaled(m.Triad, 1e-9), computing(gpu, m.Threads))
		}
		t.end()
	}
	for i := range r.Workloads {
		r.Workloads[i].table(&b, gpu)
	}
	collectiveTables(&b, r.Collectives, gpu)
	if r.Ranks != nil {
		r.Ranks.table(&b, gpu)
	}
	if r.Short {
		fmt.Fprintf(&b, "\nThis is the short form: it shows that everything runs, and its figures are not to be judged by.\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (w *Workload) table(b *bytes.Buffer, gpu bool) {
	fmt.Fprintf(b, "\n%s in %s, %s: %d × %d tokens a step, recomputation %s, %.2f GiB of memory\n",
		w.Model, w.Precision, computing(gpu, w.Threads), w.Sequences, w.Length, w.Recompute, float64(w.ArenaBytes)/(1<<30))
	s := w.Step
	fmt.Fprintf(b, "step: %s s, %s tokens/s, %s %% of the %s GFLOP/s peak\n", scaled(s.Seconds, 1), scaled(s.Tokens, 1), scaled(s.Share, 100), scaled(s.Peak, 1e-9))
	if !gpu {
		fmt.Fprintf(b, "cores: the threads had them %s %% of the time, and then reached %s %% of the peak\n", scaled(s.Cores, 100), scaled(s.OnCores, 100))
	}
	u := w.Startup
	fmt.Fprintf(b, "start-up: %.3f s%s: device %.3f, plan %.3f, memory %.3f, weights %.3f; then the first step %.3f\n\n",
		u.Total(), target(u.Target), u.Device, u.Plan, u.Allocate, u.Weights, u.FirstStep)
	t := newTable(b)
	t.row("ms a step", "% of step", "% of limit", "% of step lost", "count", "operations")
	for _, k := range w.Kinds {
		t.row(scaled(k.Seconds, 1e3), percent(k.Part), scaled(k.Share, 100), percent(k.Lost), fmt.Sprint(k.Count), k.Name)
	}
	t.row(scaled(w.Outside, 1e3), percent(w.Outside.Median/w.Watched.Median), "", "", "", "outside of operations")
	t.end()
	for _, p := range []struct {
		program Program
		title   string
	}{{InStep, "of a training step"}, {InDecode, "of decoding a token"}, {InNone, "of neither"}} {
		w.operations(b, p.program, p.title)
	}
}

func (w *Workload) operations(b *bytes.Buffer, p Program, title string) {
	t := newTable(b)
	for _, o := range w.Operations {
		if o.Program != p {
			continue
		}
		if t.rows == 0 {
			fmt.Fprintln(b)
			t.row("alone ms", "% of limit", "within ms", "% of limit", "% of time", "% lost", "bound by", "count", title)
		}
		cells := []string{scaled(o.Alone.Seconds, 1e3), scaled(o.Alone.Share, 100)}
		if p == InNone {
			cells = append(cells, "", "", "", "", string(o.Bound), "")
		} else {
			cells = append(cells, fmt.Sprintf("%.3g", 1e3*o.Within.Seconds.Median), fmt.Sprintf("%.0f", 100*o.Within.Share.Median),
				percent(o.Part), percent(o.Lost), string(o.Bound), fmt.Sprint(o.Count))
		}
		t.row(append(cells, o.Name+" "+o.Shape)...)
	}
	t.end()
}

// table is right-aligned but for its last column.
type table struct {
	w    *tabwriter.Writer
	rows int
}

func newTable(b *bytes.Buffer) *table {
	return &table{w: tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)}
}

func (t *table) row(cells ...string) {
	t.rows++
	for i, c := range cells {
		if i == len(cells)-1 {
			fmt.Fprintf(t.w, " %s\n", c)
			return
		}
		fmt.Fprintf(t.w, "%s\t", c)
	}
}

// end writes the rows. A bytes.Buffer takes all that is written to it.
func (t *table) end() { _ = t.w.Flush() }

// scaled writes a spread in another unit: 2.31 (2.28–2.4).
func scaled(s Spread, unit float64) string {
	return fmt.Sprintf("%s (%s–%s)", short(s.Median*unit), short(s.Low*unit), short(s.High*unit))
}

// short writes three figures, more where they are before the point.
func short(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

func percent(part float64) string { return fmt.Sprintf("%.1f", 100*part) }

func target(v record.Value[float64]) string {
	if t, ok := v.Get(); ok {
		return fmt.Sprintf(" (target %g s)", t)
	}
	return ""
}
