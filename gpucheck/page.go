package gpucheck

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/gofsdp/gofsdp/train"
)

// Page writes the result as one page for people, in Markdown.
func (r *Result) Page(out *bytes.Buffer) {
	line := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	line("# GPU check of %s", r.Time.Format("2006-01-02 15:04 UTC"))
	line("")
	if r.Simulated {
		line("**On the simulator, not on a GPU: what is right here is right in the simulator, and no time means anything.**")
		line("")
	}
	for _, d := range r.Machine.Devices {
		line("- GPU %d: %s, sm_%d%d, %s", d.Ordinal, d.Name, d.Major, d.Minor, train.Bytes(d.Memory))
	}
	commit, known := r.Build.Commit.Get()
	if !known {
		commit = "unknown"
	} else if modified, ok := r.Build.Modified.Get(); ok && modified {
		commit += ", modified"
	}
	line("- driver of CUDA %s, cuBLAS %s, NCCL %s", or(r.Machine.Driver.Version), or(r.Machine.BLAS.Version), or(r.Machine.NCCL.Version))
	line("- gofsdp %s", commit)
	counts := map[State]int{}
	for _, p := range r.Parts {
		counts[p.State]++
	}
	line("")
	line("%d parts ok, %d failed, %d not run, in %.0f seconds. What was not run is not known to work.", counts[OK], counts[Failed], counts[NotRun], r.Seconds)
	line("")
	line("| part | | seconds | what it says |")
	line("|---|---|---|---|")
	for _, p := range r.Parts {
		said := p.Claim
		if p.State != OK {
			said = firstLine(p.Reason)
		}
		line("| %s | %s | %.1f | %s |", p.Name, p.State, p.Seconds, plainCell(said))
	}
	if len(r.Goals) > 0 {
		line("")
		line("## Goals")
		line("")
		line("| goal | figure | |")
		line("|---|---|---|")
		for _, g := range r.Goals {
			line("| %s | %s | %s |", plainCell(g.Goal), g.Figure, g.Verdict)
		}
	}
	for _, p := range r.Parts {
		if p.State != Failed && len(p.Tables) == 0 {
			continue
		}
		line("")
		line("## %s: %s", p.Name, p.State)
		line("")
		line("%s.", strings.ToUpper(p.Claim[:1])+p.Claim[1:])
		if p.State != OK {
			line("")
			line("```")
			line("%s", p.Reason)
			line("```")
		}
		for _, t := range p.Tables {
			t.page(out)
		}
	}
}

// page writes a table.
func (t *Table) page(out *bytes.Buffer) {
	var head, rule []string
	for _, c := range t.Columns {
		head = append(head, c.Name)
		if c.Unit == Text {
			rule = append(rule, "---")
		} else {
			rule = append(rule, "--:")
		}
	}
	fmt.Fprintf(out, "\n**%s**\n\n| %s |\n|%s|\n", t.Title, strings.Join(head, " | "), strings.Join(rule, "|"))
	for _, row := range t.Rows {
		var cells []string
		for i, x := range row {
			cells = append(cells, plainCell(cell(x, t.Columns[i].Unit)))
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
	}
	if t.Note != "" {
		fmt.Fprintf(out, "\n%s\n", t.Note)
	}
}

// cell writes what stands in a cell.
func cell(x any, unit Unit) string {
	f, ok := x.(float64)
	if !ok {
		if x == nil {
			return ""
		}
		return fmt.Sprint(x)
	}
	switch unit {
	case Count:
		return fmt.Sprintf("%.10g", f)
	case Second:
		return scaled(f, "s")
	case Byte:
		return train.Bytes(int64(f))
	case FLOPS:
		return scaled(f, "FLOP/s")
	case Rate:
		return scaled(f, "B/s")
	case Tokens:
		return fmt.Sprintf("%.0f", f)
	case Share:
		return fmt.Sprintf("%.1f %%", 100*f)
	case Times:
		return fmt.Sprintf("%.2f ×", f)
	case Error:
		return fmt.Sprintf("%.1e", f)
	}
	return fmt.Sprint(f)
}

// scaled writes a number with a prefix of powers of a thousand.
func scaled(x float64, unit string) string {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return fmt.Sprintf("%v %s", x, unit)
	}
	prefixes := map[int]string{-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}
	power := min(max(int(math.Floor(math.Log10(math.Abs(x))/3)), -3), 5)
	return fmt.Sprintf("%.3g %s%s", x/math.Pow(1000, float64(power)), prefixes[power], unit)
}

func or(version string) string {
	if version == "" {
		return "unknown"
	}
	return version
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// plainCell keeps a text from ending its cell.
func plainCell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", "\\|"), "\n", " ")
}
