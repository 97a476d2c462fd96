package record

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// create makes a run directory for a test.
func create(t *testing.T) *Dir {
	t.Helper()
	d, err := Create(filepath.Join(t.TempDir(), "runs", "first"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// names returns what is in dir, hidden files too.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// says fails the test unless err is there and says all of these.
func says(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

func TestANewRunHasItsDirectories(t *testing.T) {
	d := create(t)
	if got := names(t, d.Path()); !slices.Equal(got, []string{"logs"}) {
		t.Errorf("the directory holds %q", got)
	}
}

func TestAnExistingRunIsRefusedByNameWithTheRemedy(t *testing.T) {
	d := create(t)
	_, err := Create(d.Path())
	says(t, err, d.Path(), "not empty", "another name")
}

func TestAnEmptyDirectoryIsTakenByOneOnly(t *testing.T) {
	path := t.TempDir()
	var (
		all  sync.WaitGroup
		errs = make([]error, 8)
	)
	for i := range errs {
		all.Go(func() { _, errs[i] = Create(path) })
	}
	all.Wait()
	taken := 0
	for _, err := range errs {
		if err == nil {
			taken++
		} else {
			says(t, err, path, "not empty")
		}
	}
	if taken != 1 {
		t.Errorf("%d of %d have taken it", taken, len(errs))
	}
}

// A path under a regular file cannot be made by anybody, root included.
func TestAPlaceThatCannotBeWrittenIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Create(filepath.Join(file, "run"))
	says(t, err, filepath.Join(file, "run"), "not a directory", "choose a place")
	_, err = Create(file)
	says(t, err, file, "not a directory")
	_, err = NextNumbered(file, "run")
	says(t, err, file, "not a directory", "choose a place")
	err = WriteFileAtomic(filepath.Join(file, "x"), nil, 0o600)
	says(t, err, filepath.Join(file, "x"), "not a directory")
}

// A limit on the size of files stands for a full disk.
func TestAFullDiskIsFoundBeforeTheRunBegins(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	limitFileSize(t, 1<<10)
	path := t.TempDir()
	_, err := Create(path)
	says(t, err, path, "file too large")
	if got := names(t, path); len(got) != 0 {
		t.Errorf("the directory holds %q", got)
	}
}

// ownProcess runs the test again in a process of its own, and tells that process
// so: a limit would hit the files that the go command keeps of this one.
func ownProcess(t *testing.T) bool {
	t.Helper()
	const key = "GOFSDP_TEST_PROCESS"
	if os.Getenv(key) != "" {
		return true
	}
	test := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	test.Env = append(os.Environ(), key+"=1")
	if out, err := test.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// limitFileSize makes writes beyond so many bytes of a file fail, until the
// test ends.
func limitFileSize(t *testing.T, bytes uint64) {
	t.Helper()
	signal.Ignore(unix.SIGXFSZ)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
			t.Error(err)
		}
		signal.Reset(unix.SIGXFSZ)
	})
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
}

func TestNumberedRunsContinueAfterTheHighest(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "runs")
	next := func(want string) {
		t.Helper()
		got, err := NextNumbered(parent, "quickstart")
		if err != nil || got != filepath.Join(parent, want) {
			t.Errorf("got %s (%v), want %s", got, err, want)
		}
	}
	next("quickstart-0001")
	next("quickstart-0002")
	for _, other := range []string{"quickstart-0041", "quickstart-x", "quickstart-12-3", "other-0099", "quickstart"} {
		if err := os.Mkdir(filepath.Join(parent, other), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	next("quickstart-0042")
	if err := os.WriteFile(filepath.Join(parent, "quickstart-9999"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	next("quickstart-10000")
	next("quickstart-10001")
}

func TestEachOfManyAtOnceGetsItsOwnNumber(t *testing.T) {
	parent := t.TempDir()
	var (
		all   sync.WaitGroup
		paths = make([]string, 16)
	)
	for i := range paths {
		all.Go(func() {
			path, err := NextNumbered(parent, "run")
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := Create(path); err != nil {
				t.Error(err)
			}
			paths[i] = path
		})
	}
	all.Wait()
	slices.Sort(paths)
	if got := slices.Compact(paths); len(got) != 16 || filepath.Base(got[15]) != "run-0016" {
		t.Errorf("got %q", got)
	}
}

func TestOnlyADirectoryWithARecordOpens(t *testing.T) {
	d := create(t)
	_, err := Open(d.Path())
	says(t, err, d.Path(), "no record")
	if err := d.WriteRun(NewRun()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(d.Path()); err != nil {
		t.Error(err)
	}
}

func TestTheHashIsOfTheConfigurationAsWritten(t *testing.T) {
	d := create(t)
	hash, err := d.WriteConfig([]byte("abc"))
	if err != nil {
		t.Fatal(err)
	}
	// FIPS 180-2, appendix B.1.
	if want := "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; hash != want {
		t.Errorf("got %s, want %s", hash, want)
	}
	if text, err := os.ReadFile(d.ConfigFile()); err != nil || string(text) != "abc" {
		t.Errorf("config.yaml is %q (%v)", text, err)
	}
}

func TestAnAtomicWriteReplacesAndLeavesNothingBesides(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	for _, text := range []string{"old", "new"} {
		if err := WriteFileAtomic(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || string(text) != "new" {
		t.Errorf("got %q (%v)", text, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&^0o640 != 0 {
		t.Errorf("the mode is %v (%v)", info.Mode(), err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("the directory holds %q", got)
	}
}

func TestAnAtomicWriteThatFailsKeepsTheOldFile(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	if err := WriteFileAtomic(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	limitFileSize(t, 100)
	err := WriteFileAtomic(path, make([]byte, 1000), 0o600)
	says(t, err, path)
	if !errors.Is(err, unix.EFBIG) {
		t.Errorf("the cause is lost: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "old" {
		t.Errorf("the old file is %q (%v)", text, err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("the directory holds %q", got)
	}
}
