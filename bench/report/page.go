package report

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/bench/scenario"
	"github.com/gofsdp/gofsdp/record"
)

// PageFile is the name of a set's page, which a forge shows with the directory.
const PageFile = "README.md"

// Write draws the charts of the set and writes its page beside its results. It
// returns the files, the page first.
func (s *Set) Write() ([]string, error) {
	charts := s.charts()
	page := filepath.Join(s.Dir, PageFile)
	files := []string{page}
	for _, c := range charts {
		svg, err := c.svg()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.file(), err)
		}
		file := filepath.Join(s.Dir, c.file())
		if err := record.WriteFileAtomic(file, svg, 0o644); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, record.WriteFileAtomic(page, []byte(s.page(charts)), 0o644)
}

// how says how the tables are read.
const how = "Figures are medians, with the lowest and the highest in brackets. In every round each side runs once, in turns; a ratio is taken within a\n" +
	"round, so that a machine that is slower for a while slows both. Speed is work a second, and more is better; of memory, less is. The limits are\n" +
	"measured in the same run. In tables of sides a run counts with its median. A verdict is of the median: *firm* and *aim* say which target is\n" +
	"reached.\n"

// page writes the set's page.
func (s *Set) page(charts []chart) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks: %s\n\n%s\n\n%s", s.machine(), s.circumstances(), how)
	fmt.Fprintf(&b, "\n## Summary\n\n%s", s.Summary())
	for _, c := range charts {
		fmt.Fprintf(&b, "\n![%s](%s)\n", c.title, c.file())
	}
	for _, r := range s.Results {
		writeScenario(&b, r)
	}
	fmt.Fprintf(&b, "\nThis page was written by `gofsdp bench report` from the results beside it.\n")
	return b.String()
}

// machine names the machine of the set.
func (s *Set) machine() string {
	var all []string
	for _, r := range s.Results {
		name := r.Device.Name
		if name == "" {
			name = known(r.Host.CPU)
		}
		if text := fmt.Sprintf("%s, %d CPUs", name, r.Host.CPUs); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, "; ")
}

// circumstances says what the results were made by and when, each thing once.
func (s *Set) circumstances() string {
	var systems, isas, commits []string
	add := func(list *[]string, text string) {
		if text != "" && !slices.Contains(*list, text) {
			*list = append(*list, text)
		}
	}
	versions := map[string][]string{}
	first, last := s.Results[0].Time, s.Results[0].Time
	for _, r := range s.Results {
		system := known(r.Host.OS) + ", kernel " + known(r.Host.Kernel)
		if bytes, ok := r.Host.Memory.Get(); ok {
			system += fmt.Sprintf(", %s GiB of memory", number(float64(bytes)/(1<<30)))
		}
		add(&systems, system)
		add(&isas, orElse(r.Device.ISA, "unknown"))
		commit := known(r.Build.Commit)
		commit = commit[:min(len(commit), 12)]
		if modified, _ := r.Build.Modified.Get(); modified {
			commit += " with changes"
		}
		add(&commits, commit)
		if r.Time.Before(first) {
			first = r.Time
		}
		if r.Time.After(last) {
			last = r.Time
		}
		for _, round := range r.Rounds {
			for _, run := range round.Runs {
				if run.Sample == nil {
					continue
				}
				for name, version := range run.Sample.Versions {
					if !slices.Contains(versions[name], version) {
						versions[name] = append(versions[name], version)
					}
				}
			}
		}
	}
	text := fmt.Sprintf("%s. Kernels: %s. Commit %s, %s.", strings.Join(systems, "; "), strings.Join(isas, ", "), strings.Join(commits, ", "), days(first, last))
	var made []string
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		slices.Sort(versions[name])
		made = append(made, name+" "+strings.Join(versions[name], " and "))
	}
	if len(made) > 0 {
		text += " Versions: " + strings.Join(made, ", ") + "."
	}
	return text
}

// days writes the time from first to last.
func days(first, last time.Time) string {
	a, b := first.UTC().Format(time.DateOnly), last.UTC().Format(time.DateOnly)
	if a == b {
		return a
	}
	return a + " to " + b
}

// known writes a value, or that it is not known.
func known(v record.Value[string]) string {
	if text, ok := v.Get(); ok {
		return text
	}
	return "unknown"
}

func writeScenario(b *strings.Builder, r *scenario.Result) {
	s := &r.Scenario
	fmt.Fprintf(b, "\n## %s\n\n`%s`", orElse(s.Title, s.Name), s.Name)
	if work := describe(r); work != "" {
		fmt.Fprintf(b, ": %s", work)
	}
	fmt.Fprintf(b, "; %s.", count(len(r.Rounds), "round"))
	f32, bf16, copied := machineLimits(r)
	if f32.Median > 0 {
		fmt.Fprintf(b, " Limits: %s GFLOP/s in f32, %s in bf16, copying %s GB/s.", scaled(f32, 1e-9), scaled(bf16, 1e-9), scaled(copied, 1e-9))
	}
	b.WriteString("\n")
	for _, part := range []struct{ head, text string }{{"Compared", s.Compared}, {"Counted", s.Counted}, {"Fair because", s.Fair}} {
		if text := strings.TrimSpace(part.text); text != "" {
			fmt.Fprintf(b, "\n**%s:** %s\n", part.head, text)
		}
	}
	fmt.Fprintf(b, "\n%s", measuredTable(r))
	if t := figureTable(r); t != "" {
		fmt.Fprintf(b, "\n%s", t)
	}
	if d := r.Disagreement; d != nil {
		fmt.Fprintf(b, "\nThe losses of %s and %s differ by at most %s (relative), at step %d%s; %s is allowed.\n",
			d.A, d.B, small(d.Relative), d.Step, ofCase(d.Case), small(s.Agree))
	}
	if len(r.Command) > 0 {
		fmt.Fprintf(b, "\nMeasured by `%s`.\n", strings.Join(r.Command, " "))
	}
}

// ofCase says in which case something was, where cases have names.
func ofCase(name string) string {
	if name == "" {
		return ""
	}
	return " of " + name
}

// small writes a small number with one digit: 2e-05.
func small(x float64) string { return fmt.Sprintf("%.1g", x) }

// gpuKind is the kind of a device that is a GPU.
const gpuKind = "cuda"

// describe says what the work is, in the order in which users ask.
func describe(r *scenario.Result) string {
	w, each := &r.Scenario.Work, "a GPU"
	if r.Device.Kind != gpuKind {
		each = count(max(w.Threads, 1), "thread")
	}
	var parts []string
	add := func(is bool, format string, args ...any) {
		if is {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(w.Model != "", "%s", w.Model)
	add(w.Precision != "", "%s", w.Precision)
	add(w.Ranks > 0, "%s of %s", count(w.Ranks, "rank"), each)
	add(w.Sequences > 0 && w.Length > 0, "%d × %d tokens a micro-batch", w.Sequences, w.Length)
	add(w.Timed > 0, "%d timed after %d that warm up", w.Timed, w.Warm)
	return strings.Join(parts, ", ")
}

// count writes how many there are: "1 rank", "2 ranks".
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
