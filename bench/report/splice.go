package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/record"
)

// The markers in a page of somebody else's, each on a line of its own, between
// which the figures of a set stand that have targets.
const (
	beginMarker = "<!-- bench:begin -->"
	endMarker   = "<!-- bench:end -->"
)

// Splice replaces what stands between the markers in the file by the figures of
// the set that are judged, and a link to its page. The file is written whole or not at all, and
// not at all where nothing changes; its markers are there once each.
func (s *Set) Splice(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	from, err := markerLine(text, beginMarker)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	to, err := markerLine(text, endMarker)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if to < from {
		return fmt.Errorf("%s: %s stands before %s; swap them", file, endMarker, beginMarker)
	}
	page, err := filepath.Rel(filepath.Dir(file), filepath.Join(s.Dir, PageFile))
	if err != nil {
		return fmt.Errorf("%s: no link leads from it to %s: %w", file, s.Dir, err)
	}
	var out bytes.Buffer
	out.Write(text[:from+len(beginMarker)])
	fmt.Fprintf(&out, "\nOn %s; [all tables and charts](%s).\n\n%s", s.machine(), filepath.ToSlash(page), s.Judged())
	out.Write(text[to:])
	if bytes.Equal(out.Bytes(), text) {
		return nil
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	return record.WriteFileAtomic(file, out.Bytes(), info.Mode().Perm())
}

// markerLine returns where the one line begins that is the marker.
func markerLine(text []byte, marker string) (int, error) {
	at, found, offset := 0, 0, 0
	for line := range bytes.Lines(text) {
		if string(bytes.TrimSpace(line)) == marker {
			at = offset + bytes.Index(line, []byte(marker))
			found++
		}
		offset += len(line)
	}
	if found != 1 {
		return 0, fmt.Errorf("the line %s is there %s, want once; put it around the place where the summary belongs", marker, times(found))
	}
	return at, nil
}

func times(n int) string {
	switch n {
	case 0:
		return "not at all"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}
