package record

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestADirectoryIsVacantUntilSomethingIsInIt(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "a", "b")} {
		if err := Vacant(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, file, filepath.Join(file, "run")} {
		if err := Vacant(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestARunThatDoesNotFitTheDiskIsRefusedBeforeItsDirectoryExists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runs", "one")
	if err := CheckSpace(path, 1); err != nil {
		t.Error(err)
	}
	if err := CheckSpace(path, math.MaxInt64); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("no disk has that much: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(path)); err == nil {
		t.Error("asking made the directory")
	}
}
