package bench

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRowsAreReadInOrderAndAgainFromTheFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(path, []byte("\x01\x00\x00\x00\x02\x01\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00"), 0o666); err != nil {
		t.Fatal(err)
	}
	r, err := readRows(path, 1, 300)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]int32{{1, 258}, {3, 4}, {1, 258}} {
		if got := r.row(i); !slices.Equal(got, want) {
			t.Errorf("row %d is %v, want %v", i, got, want)
		}
	}
}

func TestAFileThatHoldsNoRowsIsRefusedByName(t *testing.T) {
	for sentence, c := range map[string]struct{ text, want string }{
		"nothing":               {"", "has 0 bytes, which are no rows of 2 tokens"},
		"a row and a half":      {strings.Repeat("\x00", 12), "has 12 bytes, which are no rows of 2 tokens"},
		"a foreign token":       {"\x00\x00\x00\x00\x09\x00\x00\x00", "row 0 has token 9 at 1, but the model's vocabulary has 9"},
		"a token that is below": {strings.Repeat("\x00", 8) + "\xff\xff\xff\xff\x00\x00\x00\x00", "row 1 has token -1 at 0"},
	} {
		path := filepath.Join(t.TempDir(), "rows")
		if err := os.WriteFile(path, []byte(c.text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := readRows(path, 1, 9); err == nil || !strings.HasPrefix(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", sentence, err, c.want)
		}
	}
}
