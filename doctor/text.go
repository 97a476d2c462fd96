package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Widths of the lines for people.
const (
	verdictWidth = 9
	lineWidth    = 110
)

// Text writes the report for people: the checks by group, a line each with what belongs to it indented below,
// and then what the machine can do.
func (r Report) Text(w io.Writer) error {
	var out strings.Builder
	names := 0
	for _, c := range r.Checks {
		names = max(names, len(c.Name))
	}
	group := ""
	for _, c := range r.Checks {
		if c.Group != group {
			if group != "" {
				out.WriteByte('\n')
			}
			group = c.Group
			fmt.Fprintln(&out, group)
		}
		verdict := string(c.Verdict)
		if c.Blocks {
			verdict = strings.ToUpper(verdict)
		}
		begin := fmt.Sprintf("  %-*s%-*s  ", verdictWidth, verdict, names, c.Name)
		var lines []string
		for _, text := range nonEmpty(c.Found, c.Remedy) {
			lines = append(lines, wrap(text, lineWidth-len(begin))...)
		}
		for _, line := range lines {
			fmt.Fprintln(&out, strings.TrimRight(begin+line, " "))
			begin = strings.Repeat(" ", len(begin))
		}
	}
	fmt.Fprintf(&out, "\n%s\n", r.Summary())
	_, err := io.WriteString(w, out.String())
	return err
}

// Summary says what can compute here, and how that is to what was asked for.
func (r Report) Summary() string {
	ready := "the CPU (" + r.Processor.ISA + ")"
	if r.GPUs == 1 {
		ready += " and 1 GPU"
	} else if r.GPUs > 1 {
		ready += fmt.Sprintf(" and %d GPUs", r.GPUs)
	}
	if n := r.Needs.Simulated; n == 1 {
		ready += " and 1 simulated GPU"
	} else if n > 1 {
		ready += fmt.Sprintf(" and %d simulated GPUs", n)
	}
	switch {
	case r.Needs.By == "":
		return "ready to compute: " + ready
	case r.Met:
		return fmt.Sprintf("%s: all that it needs is here; ready to compute: %s", r.Needs.By, ready)
	}
	return fmt.Sprintf("%s: what it needs and is not here stands in capitals; ready to compute: %s", r.Needs.By, ready)
}

// wrap breaks text into lines between words, and lists of paths behind a colon.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		gap := " "
		for _, part := range strings.SplitAfter(word, ":") {
			if part == "" {
				continue
			}
			if line != "" && len(line)+len(gap)+len(part) > width {
				lines, line = append(lines, line), ""
			}
			if line != "" {
				line += gap
			}
			line += part
			gap = ""
		}
	}
	return append(lines, line)
}
