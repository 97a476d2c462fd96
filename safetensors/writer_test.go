package safetensors

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// begin starts a file of one tensor "w" of 100 bytes and one empty tensor.
func begin(t *testing.T, path string) *Writer {
	t.Helper()
	w, err := Create(path, []Entry{{"w", U8, []int64{100}}, {"empty", F32, []int64{0, 3}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// files returns the names in dir, hidden ones too.
func files(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestNothingIsAtTheFinalNameBeforeCommit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	w := begin(t, path)
	if err := w.WriteTensor("w", make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before Commit: %v", err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(); err != nil {
		t.Errorf("Abort after Commit: %v", err)
	}
	if got := files(t, dir); len(got) != 1 || got[0] != "x.safetensors" {
		t.Errorf("the directory holds %q", got)
	}
	for what, err := range map[string]error{"a write": w.WriteTensor("w", make([]byte, 100)), "an empty write": w.WriteTensor("empty", nil), "a second Commit": w.Commit()} {
		if err == nil || !strings.Contains(err.Error(), "after Commit or Abort") {
			t.Errorf("%s after Commit: %v", what, err)
		}
	}
}

func TestAbortLeavesNothingAndTheOldFileStays(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	write(t, path, Entry{"old", U8, []int64{3}})
	w := begin(t, path)
	if err := w.WritePart("w", 10, make([]byte, 20)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Abort(), w.Abort()); err != nil {
		t.Fatal(err)
	}
	if got := files(t, dir); len(got) != 1 {
		t.Errorf("the directory holds %q", got)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, ok := f.Tensor("old"); !ok {
		t.Error("the old file is gone")
	}
}

// A crash is a writer that neither commits nor aborts.
func TestWhatACrashLeavesIsNeitherReadNorInTheWay(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, SingleFile)
	crashed := begin(t, path)
	if err := crashed.WritePart("w", 0, make([]byte, 50)); err != nil {
		t.Fatal(err)
	}
	crashed.file.Close()
	if _, err := Open(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the crash Open says %v", err)
	}
	if _, err := OpenDir(dir); err == nil || !strings.Contains(err.Error(), SingleFile) {
		t.Errorf("after the crash OpenDir says %v", err)
	}
	if got := files(t, dir); len(got) != 1 || !strings.HasPrefix(got[0], "."+SingleFile+".partial-") {
		t.Errorf("the crash leaves %q", got)
	}
	write(t, path, Entry{"w", U8, []int64{100}})
	if _, err := OpenDir(dir); err != nil {
		t.Error(err)
	}
}

func TestCommitNamesEveryIncompleteTensorAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(filepath.Join(dir, "x.safetensors"), []Entry{
		{"none", U8, []int64{10}}, {"head", U8, []int64{10}}, {"hole", U8, []int64{10}}, {"whole", U8, []int64{10}}, {"empty", U8, []int64{0}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 10)
	err = errors.Join(w.WritePart("head", 1, data[1:]), w.WritePart("hole", 0, data[:4]), w.WritePart("hole", 5, data[5:]), w.WriteTensor("whole", data))
	if err != nil {
		t.Fatal(err)
	}
	err = w.Commit()
	for _, want := range []string{`"none" (from byte 0 of 10)`, `"head" (from byte 0 of 10)`, `"hole" (from byte 4 of 10)`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if err != nil && (strings.Contains(err.Error(), "whole") || strings.Contains(err.Error(), "empty")) {
		t.Errorf("a complete tensor is named: %v", err)
	}
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("the directory holds %q", got)
	}
}

func TestAMisuseIsRefusedAndSpoilsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	w := begin(t, path)
	defer w.Abort()
	if err := w.WritePart("w", 40, make([]byte, 20)); err != nil {
		t.Fatal(err)
	}
	cases := map[string]error{
		"a tensor that was not announced":       w.WriteTensor("x", nil),
		"too few bytes":                         w.WriteTensor("w", make([]byte, 99)),
		"too many bytes":                        w.WriteTensor("w", make([]byte, 101)),
		"bytes for an empty tensor":             w.WriteTensor("empty", []byte{1}),
		"a part beyond the end":                 w.WritePart("w", 90, make([]byte, 11)),
		"a part before the start":               w.WritePart("w", -1, make([]byte, 2)),
		"a part so far that the sum overflows":  w.WritePart("w", 1<<63-1, make([]byte, 2)),
		"a part that is there":                  w.WritePart("w", 40, make([]byte, 20)),
		"a part that overlaps the end of one":   w.WritePart("w", 59, make([]byte, 2)),
		"a part that overlaps the start of one": w.WritePart("w", 39, make([]byte, 2)),
		"a part around another":                 w.WritePart("w", 30, make([]byte, 40)),
		"a part inside another":                 w.WritePart("w", 45, make([]byte, 1)),
	}
	for name, err := range cases {
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(w.WritePart("w", 60, make([]byte, 40)), w.WritePart("w", 0, make([]byte, 40)), w.WriteTensor("empty", nil), w.Commit()); err != nil {
		t.Error(err)
	}
}

func TestEntriesThatCannotBeWrittenAreRefusedAllAtOnce(t *testing.T) {
	dir := t.TempDir()
	_, err := Create(filepath.Join(dir, "x.safetensors"), []Entry{
		{"twice", U8, nil},
		{"twice", U8, nil},
		{metadataKey, U8, nil},
		{"bad\xff", U8, nil},
		{"typeless", 0, nil},
		{"negative", U8, []int64{-1}},
		{"great", F32, []int64{1 << 62}},
	}, map[string]string{"k": "\xff"})
	for _, want := range []string{`"twice": given twice`, metadataKey, `bad\xff`, `"typeless": no such dtype`, "negative extent -1", `"great"`, `metadata "k"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("the directory holds %q", got)
	}
}

func TestManyGoroutinesWriteDisjointParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	const size, part = 1 << 16, 1 << 9
	want := bytesOf(t, Entry{"w", U8, []int64{size}}, 0)
	w, err := Create(path, []Entry{{"pad", U8, []int64{13}}, {"w", U8, []int64{size}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	var writers sync.WaitGroup
	for rank := range 8 {
		writers.Go(func() {
			for at := rank * part; at < size; at += 8 * part {
				if err := w.WritePart("w", int64(at), want[at:at+part]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Go(func() {
		if err := w.WriteTensor("pad", make([]byte, 13)); err != nil {
			t.Error(err)
		}
	})
	writers.Wait()
	if spans := len(w.written[1]); spans != 1 {
		t.Errorf("%d spans are kept for a whole tensor", spans)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, _ := f.Tensor("w"); !bytes.Equal(got.Data, want) {
		t.Error("the bytes differ")
	}
}

func TestAFileThatDoesNotFitTheDiskIsRefusedBeforeItIsBegun(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	_, err := Create(path, []Entry{{"huge", U8, []int64{1 << 60}}}, nil)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "MiB free") {
		t.Errorf("got %v", err)
	}
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("the directory holds %q", got)
	}
}

// A limit on the size of files stands for a disk that runs full in mid-write: it
// fails the same call, without filling a disk.
func TestAWriteThatFailsGivesOneErrorAndLeavesNothing(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	w, err := Create(path, []Entry{{"a", U8, []int64{1000}}, {"b", U8, []int64{100_000}}, {"c", U8, []int64{1}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	limitFileSize(t, 50_000)
	if err := w.WriteTensor("a", make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	first := w.WriteTensor("b", make([]byte, 100_000))
	if first == nil || !strings.Contains(first.Error(), path) || !strings.Contains(first.Error(), `"b"`) || !errors.Is(first, unix.EFBIG) {
		t.Errorf("got %v", first)
	}
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("the directory holds %q", got)
	}
	if again := w.WriteTensor("c", []byte{1}); !errors.Is(again, first) {
		t.Errorf("a later write says %v", again)
	}
	if last := w.Commit(); last == nil || last.Error() != first.Error() {
		t.Errorf("Commit says %v", last)
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

func limitFileSize(t *testing.T, bytes uint64) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
}

func TestAPlaceThatCannotBeWrittenIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(file, "x.safetensors")
	if _, err := Create(path, nil, nil); err == nil || !strings.Contains(err.Error(), path) || !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("Create says %v", err)
	}
	if err := WriteIndex(file, nil, 0); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("WriteIndex says %v", err)
	}
}

func TestAFileWithoutTensorsIsWrittenAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	write(t, path)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if len(f.Names()) != 0 || f.Metadata()["format"] != "pt" {
		t.Errorf("names %q, metadata %q", f.Names(), f.Metadata())
	}
}

func TestFullDiskNamesTheRemedy(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("this system has no /dev/full")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	_, err = full.Write([]byte{1})
	if got := explain(err); !errors.Is(got, unix.ENOSPC) || !strings.Contains(got.Error(), "free some space") {
		t.Errorf("got %v", got)
	}
}
