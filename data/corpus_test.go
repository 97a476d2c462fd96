package data

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// names lists what s chooses, relative to dir.
func names(t *testing.T, dir string, s Settings) []string {
	t.Helper()
	files, err := listFiles(t.Context(), s)
	must(t, err)
	var list []string
	for _, f := range files {
		rel, err := filepath.Rel(dir, f.name)
		must(t, err)
		list = append(list, rel)
	}
	return list
}

func TestTheFilesOfAPath(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"b.txt": "b", "a.txt": "a", "image.png": "\xff", "sub/deep/c.go": "c", "sub/d.md": "d",
		".hidden.txt": "h", ".git/e.txt": "e", "sub/.f.txt": "f", "q[1].txt": "q",
	})
	must(t, os.Symlink(dir, filepath.Join(dir, "sub", "loop")))
	must(t, os.Symlink("a.txt", filepath.Join(dir, "link.txt")))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe.txt"), 0o600))
	cases := map[string]struct {
		path []string
		want []string
	}{
		"a directory is read by the patterns, sorted, with its subdirectories": {
			[]string{""}, []string{"a.txt", "b.txt", "link.txt", "q[1].txt", "sub/deep/c.go"},
		},
		"a loop of links is entered once":                    {[]string{"sub"}, []string{"sub/deep/c.go", "sub/loop/a.txt", "sub/loop/b.txt", "sub/loop/link.txt", "sub/loop/q[1].txt"}},
		"a file that is named itself needs no pattern":       {[]string{"sub/d.md"}, []string{"sub/d.md"}},
		"a glob takes files as named and walks directories":  {[]string{"s*", "?.txt"}, []string{"a.txt", "b.txt", "sub/deep/c.go", "sub/loop/a.txt", "sub/loop/b.txt", "sub/loop/link.txt", "sub/loop/q[1].txt"}},
		"a file that is reached twice is taken once":         {[]string{"a.txt", "a.*", "a.txt"}, []string{"a.txt"}},
		"a name with a bracket that exists is not a pattern": {[]string{"q[1].txt"}, []string{"q[1].txt"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := settings(dir)
			s.Path = nil
			for _, p := range c.path {
				s.Path = append(s.Path, filepath.Join(dir, p))
			}
			if got := names(t, dir, s); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestPathsThatLeadNowhereAreAllNamed(t *testing.T) {
	dir := writeFiles(t, map[string]string{"a.png": "a", "empty/.keep": ""})
	s := settings(dir)
	s.Path = []string{filepath.Join(dir, "missing"), filepath.Join(dir, "*.none"), filepath.Join(dir, "empty"), "/dev/null"}
	_, err := listFiles(t.Context(), s)
	wantError(t, err,
		"missing: no such file", "name an existing directory",
		`*.none" matches nothing`,
		`empty": no file matches the patterns *.txt *.go`,
		"/dev/null is not a regular file")
}

func TestThePatternsOfADirectoryAreNamedShortly(t *testing.T) {
	dir := writeFiles(t, map[string]string{"a.png": "a"})
	for name, c := range map[string]struct {
		format  string
		include []string
		want    string
	}{
		"the default":  {FormatText, nil, fmt.Sprintf("no file matches the %d usual endings of text and source code (*.txt, *.md, *.go, ...); name", len(textPatterns))},
		"one's own":    {FormatText, []string{"*.a", "*.b"}, "no file matches the patterns *.a *.b; name"},
		"JSON objects": {FormatJSONL, nil, "no file matches the patterns *.jsonl; name"},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(dir)
			s.Format, s.Include = c.format, c.include
			_, err := listFiles(t.Context(), s)
			wantError(t, err, c.want)
		})
	}
}

func TestAnEmptyCorpusIsRefusedByName(t *testing.T) {
	dir := writeFiles(t, map[string]string{"a.txt": "", "b.txt": ""})
	_, err := listFiles(t.Context(), settings(dir))
	wantError(t, err, "data.path: the corpus is empty", "no text in "+dir+" (files without any: 2)")
}

func TestAnUnreadableDirectoryIsRefusedByName(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads everything")
	}
	dir := writeFiles(t, map[string]string{"a.txt": "a", "closed/b.txt": "b"})
	must(t, os.Chmod(filepath.Join(dir, "closed"), 0))
	t.Cleanup(func() { os.Chmod(filepath.Join(dir, "closed"), 0o755) })
	_, err := listFiles(t.Context(), settings(dir))
	wantError(t, err, "data.path: cannot read", "closed")
}

func TestADirectoryIsReadByTheUsualEndings(t *testing.T) {
	dir := writeFiles(t, map[string]string{"a.txt": "a", "b.md": "b", "c.py": "c", "d.jsonl": "{}", "e.png": "e", "f": "f"})
	s := settings(dir)
	s.Include = nil
	if got, want := names(t, dir, s), []string{"a.txt", "b.md", "c.py"}; !slices.Equal(got, want) {
		t.Errorf("text: got %q, want %q", got, want)
	}
	s.Format = FormatJSONL
	if got, want := names(t, dir, s), []string{"d.jsonl"}; !slices.Equal(got, want) {
		t.Errorf("jsonl: got %q, want %q", got, want)
	}
}

func TestMaxBytesTakesWholeFilesInOrderWhileTheyFit(t *testing.T) {
	dir := writeFiles(t, map[string]string{"a.txt": "12345", "b.txt": "12345", "c.txt": "1"})
	s := settings(dir)
	for maxBytes, want := range map[int64][]string{
		0: {"a.txt", "b.txt", "c.txt"}, 5: {"a.txt"}, 9: {"a.txt"}, 10: {"a.txt", "b.txt"}, 11: {"a.txt", "b.txt", "c.txt"},
	} {
		s.MaxBytes = maxBytes
		if got := names(t, dir, s); !slices.Equal(got, want) {
			t.Errorf("max_bytes %d: got %q, want %q", maxBytes, got, want)
		}
	}
	s.MaxBytes = 4
	_, err := listFiles(t.Context(), s)
	wantError(t, err, "data.max_bytes: 4", "a.txt of 5 bytes", "raise it")
}

func TestFilesThatAreNotUTF8AreNamedWithTheByte(t *testing.T) {
	files := map[string]string{"good.txt": "NUL \x00 is text, so is \uFFFD", "z.txt": "ok"}
	for i := range 12 {
		files[fmt.Sprintf("bad%02d.txt", i)] = strings.Repeat("é", i) + "\xe9t\xe9"
	}
	found, err := listFiles(t.Context(), settings(writeFiles(t, files)))
	must(t, err)
	_, err = scan(t.Context(), found)
	wantError(t, err, "bad00.txt is not UTF-8 at byte 0 (0xe9)", "bad09.txt is not UTF-8 at byte 18 (0xe9)", "and 2 more files")
	for _, name := range []string{"bad10", "good", "z.txt"} {
		if strings.Contains(err.Error(), name) {
			t.Errorf("the error names %s:\n%v", name, err)
		}
	}
}

func TestTheSourceOfGoIsTheSameEveryTime(t *testing.T) {
	s := settings("")
	s.Path, s.MaxBytes = []string{GoSource}, 3_000_000
	first, err := listFiles(t.Context(), s)
	must(t, err)
	second, err := listFiles(t.Context(), s)
	must(t, err)
	if !slices.Equal(first, second) {
		t.Error("two listings differ")
	}
	var total int64
	for _, f := range first {
		total += f.size
		if !strings.HasSuffix(f.name, ".go") || strings.Contains(f.name, "testdata/") || strings.HasPrefix(f.name, "cmd/") {
			t.Errorf("%s is not of the standard library", f.name)
		}
	}
	if first[0].name != "archive/tar/common.go" || total < 2_900_000 || total > 3_000_000 {
		t.Errorf("%d bytes from %s on", total, first[0].name)
	}
}

func TestTheSourceOfGoWithoutGoIsRefusedWithARemedy(t *testing.T) {
	t.Setenv("PATH", "")
	_, err := listSource(t.Context(), GoSource, nil)
	wantError(t, err, "data.path: gosource", "install Go")
}

func TestAFileThatChangesAfterItsScanIsAnError(t *testing.T) {
	docs := documentsOf(t, 1, "first", "second")
	must(t, os.WriteFile(docs[0].path, []byte("other"), 0o644))
	_, err := prepareWith(t.Context(), Settings{SequenceLength: 2, CacheDir: t.TempDir()}, docs, newPairs(), new(lines))
	wantError(t, err, "data.path", docs[0].path, "changed while it was read")
}

func TestAllMistakesOfTheSettingsAreToldAtOnce(t *testing.T) {
	s := Settings{
		Path: []string{"", "a/**/b", "[x"}, Include: []string{"src/*.go", "[", ""},
		MaxBytes: -1, Holdout: 1, SequenceLength: 1, Tokenizer: TokenizerTrain, VocabSize: 256,
	}
	errs := s.Check()
	var got []string
	for _, err := range errs {
		got = append(got, err.Error())
	}
	want := []string{
		"data.path: entry 1 is empty",
		`data.path: "a/**/b": ** is not supported; name the directory, which is read with all its subdirectories by data.include`,
		`data.path: "[x" is not a valid pattern`,
		`data.format: "" is neither text nor jsonl`,
		`data.include: "src/*.go": patterns match the file's name alone; leave out the directory`,
		`data.include: "[" is not a valid pattern`,
		`data.include: "" is not a valid pattern`,
		"data.max_bytes: -1 is negative; 0 means all",
		"data.holdout: 1 is not more than 0 and less than 1",
		"data.sequence_length: 1 is less than 2 tokens",
		"data.vocab_size: 256 is less than 257: the 256 bytes and end-of-text",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if errs := settings("dir").Check(); len(errs) > 0 {
		t.Errorf("good settings are refused: %v", errs)
	}
	lines := settings(GoSource)
	lines.Format = FormatJSONL
	wantError(t, errors.Join(lines.Check()...), "data.text_key: is empty", "data.path: gosource is text, not jsonl")
}
