package record

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Progress appends the run's reports to progress.csv, a line each. A line is
// handed to the system whole, so that who follows the file sees whole lines.
type Progress struct {
	file    *os.File
	columns []string
	size    int64 // of the whole lines
}

// CreateProgress creates progress.csv with these columns, which stay as they
// are. An existing file is refused.
func (d *Dir) CreateProgress(columns ...string) (*Progress, error) {
	file, err := os.OpenFile(d.ProgressFile(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", d.ProgressFile(), explain(err))
	}
	p, err := newProgress(file, columns)
	if err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(d.ProgressFile()))
	}
	return p, nil
}

func newProgress(file *os.File, columns []string) (*Progress, error) {
	p := &Progress{file: file, columns: slices.Clone(columns)}
	for i, c := range columns {
		if c == "" || slices.Contains(columns[:i], c) {
			return nil, fmt.Errorf("writing %s: column %d, %q, is empty or there twice", file.Name(), i+1, c)
		}
	}
	return p, p.line(columns)
}

// Append writes a line. A column without a metric stays empty; a metric without
// a column is an error and nothing is written.
func (p *Progress) Append(m Metrics) error {
	for _, name := range m.names() {
		if !slices.Contains(p.columns, name) {
			return fmt.Errorf("writing %s: metric %q is no column (%s)", p.file.Name(), name, strings.Join(p.columns, ", "))
		}
	}
	cells := make([]string, len(p.columns))
	for i, c := range p.columns {
		if v, ok := m[c]; ok {
			cells[i] = formatNumber(v)
		}
	}
	return p.line(cells)
}

// line writes one line. Of a line that fails in its middle, nothing stays.
func (p *Progress) line(cells []string) error {
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	err := w.Write(cells)
	w.Flush()
	if err == nil {
		_, err = p.file.WriteAt(text.Bytes(), p.size)
	}
	if err != nil {
		p.file.Truncate(p.size) // as far as it goes: the error is the write's
		return fmt.Errorf("writing %s: %w", p.file.Name(), explain(err))
	}
	p.size += int64(text.Len())
	return nil
}

// Close makes the file durable and closes it.
func (p *Progress) Close() error {
	if err := errors.Join(p.file.Sync(), p.file.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", p.file.Name(), explain(err))
	}
	return nil
}

// formatNumber writes the shortest text that reads back as v; whole numbers
// without an exponent, as counts are read by people.
func formatNumber(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
