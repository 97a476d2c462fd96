package report

import (
	"strings"
	"unicode/utf8"
)

// table is a Markdown table that is aligned for reading as it is, too. Columns of
// numbers stand to the right.
type table struct {
	numbers []bool // of columns
	rows    [][]string
}

// newTable begins a table. The heads of columns of numbers are marked by a ">".
func newTable(head ...string) *table {
	t := &table{}
	for i, h := range head {
		name, marked := strings.CutPrefix(h, ">")
		head[i], t.numbers = name, append(t.numbers, marked)
	}
	t.rows = [][]string{head}
	return t
}

func (t *table) row(cells ...string) {
	for i := range cells {
		cells[i] = strings.NewReplacer("|", `\|`, "\n", " ").Replace(cells[i])
	}
	t.rows = append(t.rows, cells)
}

// empty says that there is nothing below the head.
func (t *table) empty() bool { return len(t.rows) == 1 }

func (t *table) String() string {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 3)
		}
	}
	var b strings.Builder
	for n, row := range t.rows {
		for i, cell := range row {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.numbers[i] {
				cell = gap + cell
			} else {
				cell += gap
			}
			b.WriteString("| " + cell + " ")
		}
		b.WriteString("|\n")
		if n > 0 {
			continue
		}
		for i, width := range widths {
			if t.numbers[i] {
				b.WriteString("|" + strings.Repeat("-", width+1) + ":")
			} else {
				b.WriteString("|" + strings.Repeat("-", width+2))
			}
		}
		b.WriteString("|\n")
	}
	return b.String()
}
