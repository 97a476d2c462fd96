//go:build cgo && linux

package nccl_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/nccl"
)

// child is the environment variable that makes the test binary a process which asks NCCL for a unique id.
const child = "GOFSDP_TEST_NCCL_CHILD"

// installed returns NCCL as it is installed here: where the finder finds it, or in the environment that the bench's
// peers are installed in.
func installed(t *testing.T) *nccl.Library {
	t.Helper()
	peers, err := filepath.Abs("../.venv/peers")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []cuda.Sources{{}, {Env: func(name string) string {
		if name == "VIRTUAL_ENV" {
			return peers
		}
		return os.Getenv(name)
	}}} {
		l, err := nccl.Open(s)
		if err == nil {
			return l
		}
		if !errors.Is(err, cuda.ErrNoLibrary) || os.Getenv(cuda.OverrideNCCL) != "" {
			t.Fatal(err)
		}
	}
	t.Skip("NVIDIA's NCCL is not installed here: make bench-peers installs it, or GOFSDP_LIBNCCL names its file")
	return nil
}

// askForID is what the child does.
func askForID() int {
	l, err := nccl.Open(cuda.Sources{})
	if err == nil {
		_, err = l.UniqueID()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func TestTheRealNCCLHasEveryFunctionOfTheTable(t *testing.T) {
	l := installed(t) // Open refuses one that lacks any
	found := l.Found()
	if found.Name == "" || !strings.Contains(found.Path, "libnccl.so.2") || found.Version != l.Version() || !strings.HasPrefix(l.Version(), "2.") {
		t.Errorf("%+v, version %s", found, l.Version())
	}
	t.Logf("NCCL %s, %s", l.Version(), found.Path)
	a, err := l.UniqueID()
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.UniqueID()
	if err != nil {
		t.Fatal(err)
	}
	if a == b || a == (nccl.UniqueID{}) {
		t.Errorf("unique ids %x and %x", a, b)
	}
}

func TestTheRealNCCLWritesALogForEachRank(t *testing.T) {
	l := installed(t)
	dir := t.TempDir()
	for rank := range 2 {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), child+"=1", cuda.OverrideNCCL+"="+l.Found().Path)
		c.Env = append(c.Env, nccl.Settings{Require: "any"}.Environment(dir, rank)...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		files, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("nccl.rank-%04d.*.log", rank)))
		if err != nil || len(files) != 1 {
			t.Fatalf("rank %d: files %q, %v", rank, files, err)
		}
		text, err := os.ReadFile(files[0])
		if err != nil || !strings.Contains(string(text), "NCCL INFO") {
			t.Errorf("rank %d: %v, %q", rank, err, text)
		}
	}
}

func TestAFileThatIsNoNCCLIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "libnccl.so.2")
	s := cuda.Sources{Env: func(name string) string {
		if name == cuda.OverrideNCCL {
			return file
		}
		return ""
	}}
	if _, err := nccl.Open(s); err == nil || !strings.Contains(err.Error(), "GOFSDP_LIBNCCL") {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := nccl.Open(s); !errors.Is(err, cuda.ErrNoLibrary) || !strings.Contains(err.Error(), file) {
		t.Errorf("no library: %v", err)
	}
	// Any other library will do for one without NCCL's functions.
	matches, _ := filepath.Glob("/lib/*-linux-gnu/libm.so.6")
	if len(matches) == 0 {
		t.Skip("this system has no libm to take for NCCL")
	}
	file = matches[0]
	if _, err := nccl.Open(s); err == nil || !strings.Contains(err.Error(), "lacks 16 functions, ncclGetVersion, ncclGetUniqueId") || !strings.Contains(err.Error(), "2.27 or newer") {
		t.Errorf("no NCCL: %v", err)
	}
}
