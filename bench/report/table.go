package report

import (
	"strings"
	"unicode/utf8"
)

// table is a Markdown table that is aligned for reading as it is, too. Its first
// columns are words, the others numbers, which stand to the right.
type table struct {
	words int // columns
	rows  [][]string
}

func newTable(words int, head ...string) *table { return &table{words: words, rows: [][]string{head}} }

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
			if i < t.words {
				cell += gap
			} else {
				cell = gap + cell
			}
			b.WriteString("| " + cell + " ")
		}
		b.WriteString("|\n")
		if n > 0 {
			continue
		}
		for i, width := range widths {
			if i < t.words {
				b.WriteString("|" + strings.Repeat("-", width+2))
			} else {
				b.WriteString("|" + strings.Repeat("-", width+1) + ":")
			}
		}
		b.WriteString("|\n")
	}
	return b.String()
}
