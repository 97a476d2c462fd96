package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rewrite renews the page and the charts that the tests compare with:
// go test ./bench/report -rewrite, then look at them.
var rewrite = flag.Bool("rewrite", false, "write what is drawn now into testdata")

const goldenDir = "testdata/example"

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// drawn writes the page of the example, and returns the texts of its files.
func drawn(t *testing.T, dir string) map[string]string {
	t.Helper()
	set, err := ReadSet(dir)
	if err != nil {
		t.Fatal(err)
	}
	files, err := set.Write()
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, file := range files {
		texts[filepath.Base(file)] = read(t, file)
	}
	return texts
}

func TestTheExampleIsDrawnAsInTestdata(t *testing.T) {
	got := drawn(t, example(t))
	if *rewrite {
		if err := os.RemoveAll(goldenDir); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(goldenDir, 0o777); err != nil {
			t.Fatal(err)
		}
		for name, text := range got {
			if err := os.WriteFile(filepath.Join(goldenDir, name), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := map[string]string{}
	entries, err := os.ReadDir(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		want[e.Name()] = read(t, filepath.Join(goldenDir, e.Name()))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("where that is wanted, renew it by\n\tgo test ./bench/report -rewrite\nand look at it (-golden +drawn):\n%s", diff)
	}
}

func TestTheSameResultsGiveTheSameBytes(t *testing.T) {
	dir := example(t)
	if diff := cmp.Diff(drawn(t, dir), drawn(t, dir)); diff != "" {
		t.Errorf("drawn twice (-first +second):\n%s", diff)
	}
}

func TestEveryChartIsOnThePageAndHasItsGroundAndFonts(t *testing.T) {
	texts := drawn(t, example(t))
	for name, text := range texts {
		if name == PageFile {
			continue
		}
		if !strings.Contains(texts[PageFile], "]("+name+")") {
			t.Errorf("the page does not show %s", name)
		}
		if ground := strings.Index(text, "fill:#FFFFFF"); ground < 0 || ground > strings.Index(text, "<text") {
			t.Errorf("%s has no white ground below its text", name)
		}
		if strings.Count(text, "sans-serif") != strings.Count(text, "<text") {
			t.Errorf("%s has a text without a font that is everywhere", name)
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s has coordinates that are no numbers", name)
		}
	}
}

func TestTablesAreAligned(t *testing.T) {
	width := 0
	for line := range strings.Lines(drawn(t, example(t))[PageFile]) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			width = 0
			continue
		}
		if n := len([]rune(line)); width != 0 && n != width {
			t.Errorf("a line of %d characters in a table of %d: %s", n, width, line)
		} else {
			width = n
		}
	}
}

func TestASetWithNothingButFailuresIsShown(t *testing.T) {
	m := newMaker()
	all := map[string]string{"gofsdp": "failed", "FSDP2 eager": "out of memory", "FSDP2 compiled": "timed out"}
	r := m.step("step", "Step", "tiny", "f32", 1, 1, 0.5, all)
	r.Ratios, r.Shares, r.Disagreement = nil, nil, nil
	texts := drawn(t, write(t, r))
	if len(texts) != 1 {
		t.Errorf("%d files, want the page alone", len(texts))
	}
	for _, reason := range all {
		if !strings.Contains(texts[PageFile], " "+reason+" |") {
			t.Errorf("the page does not say %q:\n%s", reason, texts[PageFile])
		}
	}
}

func TestNumbersHaveThreeDigits(t *testing.T) {
	for _, c := range []struct {
		x    float64
		want string
	}{
		{0, "0"},
		{1.6, "1.60"},
		{9.996, "10.0"},
		{0.09996, "0.100"},
		{99.96, "100"},
		{203.4, "203"},
		{15342.4, "15342"},
		{-0.012345, "-0.0123"},
		{0.000031, "0.0000310"},
	} {
		if got := number(c.x); got != c.want {
			t.Errorf("%g is written %s, want %s", c.x, got, c.want)
		}
	}
}

func TestResultsThatCannotBeReadAreRefusedByName(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"a.json", "{", "a.json: no result of gofsdp bench run: unexpected end"},
		{"a.json", `{"format": 1}`, "a.json: no result of gofsdp bench run: it names no scenario"},
		{"a.json", `{"format": 99, "scenario": {"name": "a"}}`, "a.json: format 99, want 1"},
		{"a.json", `{"format": 1, "scenario": {"name": "../a"}}`, `a.json: "../a" is no name of a scenario`},
		{"a.json", `{"format": 1, "scenario": {"name": "a", "work": {"kind": "tea"}}}`, `a.json: work of the kind "tea"`},
		{"a.txt", "", "has no results"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Sets(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s: %v, want %q", c.file, c.text, err, c.want)
		}
	}
	if _, err := Sets(filepath.Join(t.TempDir(), "missing")); !os.IsNotExist(err) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

func TestAScenarioThatIsThereTwiceIsRefused(t *testing.T) {
	dir := write(t, newMaker().startup())
	if err := os.WriteFile(filepath.Join(dir, "copy.json"), []byte(read(t, filepath.Join(dir, "startup.json"))), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSet(dir); err == nil || !strings.Contains(err.Error(), "startup.json: the scenario startup is there already") {
		t.Errorf("%v", err)
	}
}

func TestSetsAreFoundBelowADirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"machine-b", "machine-a", "empty"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	from := write(t, newMaker().startup())
	for _, name := range []string{"machine-b", "machine-a"} {
		if err := os.WriteFile(filepath.Join(dir, name, "startup.json"), []byte(read(t, filepath.Join(from, "startup.json"))), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	sets, err := Sets(dir)
	var dirs []string
	for _, s := range sets {
		dirs = append(dirs, filepath.Base(s.Dir))
	}
	if want := []string{"machine-a", "machine-b"}; err != nil || !slices.Equal(dirs, want) {
		t.Errorf("%v, %v; want %v", dirs, err, want)
	}
}

func TestTheSummaryStandsBetweenTheMarkers(t *testing.T) {
	set, err := ReadSet(example(t))
	if err != nil {
		t.Fatal(err)
	}
	readme := filepath.Join(filepath.Dir(set.Dir), "README.md")
	before := "# It\n\nSee `<!-- bench:begin -->`.\n\n<!-- bench:begin -->\nold\n  <!-- bench:end -->\n\nThe end.\n"
	if err := os.WriteFile(readme, []byte(before), 0o640); err != nil {
		t.Fatal(err)
	}
	var texts []string
	for range 2 { // the second time nothing changes
		if err := set.Splice(readme); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, read(t, readme))
	}
	head, rest, _ := strings.Cut(texts[0], "\n<!-- bench:begin -->\n")
	middle, tail, _ := strings.Cut(rest, "<!-- bench:end -->")
	if head != "# It\n\nSee `<!-- bench:begin -->`.\n" || tail != "\n\nThe end.\n" {
		t.Errorf("what is around the markers has changed:\n%s", texts[0])
	}
	if !strings.HasSuffix(middle, "\n\n"+set.Judged()) || !strings.Contains(middle, "(example/README.md)") || strings.Contains(middle, "old") {
		t.Errorf("between the markers stands\n%s", middle)
	}
	for line := range strings.Lines(middle) {
		if strings.HasSuffix(line, "| shown   |\n") && !strings.Contains(line, "startup") {
			t.Errorf("without a target stands there %s", line)
		}
	}
	if texts[0] != texts[1] {
		t.Errorf("done twice it gives another text (-once +twice):\n%s", cmp.Diff(texts[0], texts[1]))
	}
	if info, err := os.Stat(readme); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the mode has changed: %v, %v", info.Mode(), err)
	}
}

func TestMarkersThatAreWrongAreRefused(t *testing.T) {
	set, err := ReadSet(write(t, newMaker().startup()))
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- bench:begin -->\n", "<!-- bench:end -->\n"
	for _, c := range []struct{ text, want string }{
		{"nothing\n", "the line <!-- bench:begin --> is there not at all, want once"},
		{begin, "the line <!-- bench:end --> is there not at all, want once"},
		{begin + begin + end, "the line <!-- bench:begin --> is there twice, want once"},
		{begin + end + end + end, "the line <!-- bench:end --> is there 3 times, want once"},
		{end + begin, "<!-- bench:end --> stands before <!-- bench:begin -->; swap them"},
	} {
		file := filepath.Join(t.TempDir(), "README.md")
		if err := os.WriteFile(file, []byte(c.text), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := set.Splice(file); err == nil || !strings.Contains(err.Error(), "README.md: "+c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
		if text, _ := os.ReadFile(file); !bytes.Equal(text, []byte(c.text)) {
			t.Errorf("%q has become %q", c.text, text)
		}
	}
}
