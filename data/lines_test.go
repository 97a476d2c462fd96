package data

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// lineSettings read JSON Lines in dir.
func lineSettings(dir string) Settings {
	s := settings(dir)
	s.Format, s.TextKey, s.Include, s.Holdout = FormatJSONL, "text", nil, 0.5
	return s
}

// linesOf scans the files of s and returns the documents' texts by name, in order.
func linesOf(t *testing.T, s Settings) (found []string, err error) {
	t.Helper()
	files, err := listFiles(t.Context(), s)
	must(t, err)
	docs, err := scanLines(t.Context(), files, s)
	var buf []byte
	for i := range docs {
		buf, err = docs[i].read(buf)
		must(t, err)
		name := docs[i].name[strings.LastIndexByte(docs[i].name, '/')+1:]
		found = append(found, fmt.Sprintf("%s %q %d", name, buf, docs[i].size))
	}
	return found, err
}

func TestEachLineOfAJSONLinesFileIsADocument(t *testing.T) {
	long, err := json.Marshal(map[string]string{"text": strings.Repeat("long ", 500_000)})
	must(t, err)
	dir := writeFiles(t, map[string]string{
		"a.jsonl": "{\"text\": \"one\\nline\"}\n\n  \n{\"id\": 7, \"text\": \"\\u00e9\\u0000\"}\r\n{\"text\": \"\"}",
		"b.jsonl": "{\"text\":\"last\"}\n",
		"c.txt":   "not read",
	})
	got, err := linesOf(t, lineSettings(dir))
	must(t, err)
	want := []string{`a.jsonl:1 "one\nline" 8`, `a.jsonl:4 "é\x00" 3`, `a.jsonl:5 "" 0`, `b.jsonl:1 "last" 4`}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	got, err = linesOf(t, lineSettings(writeFiles(t, map[string]string{"d.jsonl": string(long) + "\n{\"text\":\"after\"}"})))
	must(t, err)
	if len(got) != 2 || len(got[0]) < 2_500_000 || got[1] != `d.jsonl:2 "after" 5` {
		t.Errorf("%d documents, the last %q", len(got), got[len(got)-1])
	}
}

func TestLinesThatCannotBeUsedAreNamed(t *testing.T) {
	bad := strings.Repeat("{\"text\": 1}\n", 9)
	dir := writeFiles(t, map[string]string{
		"a.jsonl": "{\"text\": \"good\"}\n{\"body\": \"x\", \"id\": 1}\nnot json\n{\"text\": \"\xff\"}\nnull\n{\"text\": null}\n" + bad,
	})
	_, err := linesOf(t, lineSettings(dir))
	wantError(t, err,
		`a.jsonl:2: no key "text", which data.text_key names, but ["body" "id"]`,
		"a.jsonl:3: not a JSON object",
		"a.jsonl:4: not UTF-8 at byte 10 of the line (0xff)",
		`a.jsonl:5: no key "text"`,
		`a.jsonl:6: the value of "text" is not a string`,
		"a.jsonl:11: ", "and 4 more lines")
}

func TestMaxBytesTakesWholeLinesWhileTheyFit(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"a.jsonl": "{\"text\": \"12345\"}\n{\"text\": \"67890\"}\n{\"text\": \"1\"}\n", "b.jsonl": "{\"text\": \"2\"}",
	})
	s := lineSettings(dir)
	for maxBytes, want := range map[int64]int{0: 4, 5: 1, 9: 1, 10: 2, 11: 3, 12: 4} {
		s.MaxBytes = maxBytes
		got, err := linesOf(t, s)
		must(t, err)
		if len(got) != want {
			t.Errorf("max_bytes %d: %q, want %d documents", maxBytes, got, want)
		}
	}
	s.MaxBytes = 4
	_, err := linesOf(t, s)
	wantError(t, err, "data.max_bytes: 4", "a.jsonl:1 of 5 bytes")
}

func TestJSONLinesWithoutTextAreRefused(t *testing.T) {
	_, err := linesOf(t, lineSettings(writeFiles(t, map[string]string{"a.jsonl": "\n{\"text\": \"\"}\n"})))
	wantError(t, err, "data.path: the corpus is empty")
}

func TestTheSameTextsAsFilesAndAsLinesAreTheSameData(t *testing.T) {
	texts := someTexts(20)
	asFiles := documentsOf(t, 5, texts...)
	var b strings.Builder
	for _, text := range texts {
		must(t, json.NewEncoder(&b).Encode(map[string]string{"text": text}))
	}
	s := lineSettings(writeFiles(t, map[string]string{"a.jsonl": b.String()}))
	s.CacheDir = t.TempDir()
	files, err := listFiles(t.Context(), s)
	must(t, err)
	asLines, err := scanLines(t.Context(), files, s)
	must(t, err)
	for i := range asLines {
		asLines[i].heldOut = asFiles[i].heldOut
	}
	one := mustPrepare(t, s, asLines, newPairs())
	other := mustPrepare(t, s, asFiles, newPairs())
	if !other.Stats.Cached || one.Fingerprint != other.Fingerprint {
		t.Error("the data differ")
	}
	must(t, os.WriteFile(asLines[0].path, []byte("{\"text\":\"short\"}"), 0o644))
	if _, err := asLines[19].read(nil); err == nil || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("a changed file gives %v", err)
	}
}
