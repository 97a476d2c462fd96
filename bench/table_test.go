package bench

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheTableIsAsInTheTranscript(t *testing.T) {
	golden := filepath.Join("testdata", "table.txt")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := example().WriteTable(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s (-golden +written):\n%s", golden, diff)
	}
}

type full struct{}

var errFull = errors.New("full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestATableThatCannotBeWrittenIsAnError(t *testing.T) {
	if err := example().WriteTable(full{}); !errors.Is(err, errFull) {
		t.Errorf("%v, want %v", err, errFull)
	}
}
