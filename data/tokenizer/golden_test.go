package tokenizer

import (
	"encoding/json"
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The golden files were written by tools/golden/tokenizer/make.py with Hugging
// Face's library; see there for how to make them anew.

var update = flag.Bool("update", false, "write testdata/trained.tokenizer.json")

func readGolden[T any](t testing.TB, name string) (value T) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return value
}

func load(t testing.TB, name string) *Tokenizer {
	t.Helper()
	tok, err := Load(filepath.Join("testdata", name+".tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// testdata are the tokenizers that golden ids exist for.
var goldenTokenizers = []string{"qwen2", "gpt2", "smollm2", "llama3", "trained"}

func TestIdsAreThoseOfHuggingFace(t *testing.T) {
	texts := readGolden[[]string](t, "strings.json")
	if len(texts) < 500 {
		t.Fatalf("only %d strings", len(texts))
	}
	for _, name := range goldenTokenizers {
		t.Run(name, func(t *testing.T) {
			golden := readGolden[struct {
				VocabSize int `json:"vocab_size"`
				IDs       [][]int32
			}](t, name+".ids.json")
			tok := load(t, name)
			if tok.VocabSize() != golden.VocabSize {
				t.Errorf("vocabulary of %d, Hugging Face's has %d", tok.VocabSize(), golden.VocabSize)
			}
			compareIDs(t, tok, texts, golden.IDs)
		})
	}
}

// compareIDs shows the first few texts whose ids are not those wanted.
func compareIDs(t *testing.T, tok *Tokenizer, texts []string, want [][]int32) {
	t.Helper()
	if len(texts) != len(want) {
		t.Fatalf("%d texts and ids of %d", len(texts), len(want))
	}
	bad := 0
	for i, text := range texts {
		got := tok.Encode(nil, text)
		if slices.Equal(got, want[i]) {
			continue
		}
		if bad++; bad <= 5 {
			t.Errorf("%+.200q\n got %s\nwant %s", text, shown(tok, got), shown(tok, want[i]))
		}
	}
	if bad > 0 {
		t.Errorf("%d of %d texts differ", bad, len(texts))
	}
}

// shown are the tokens of ids, for a failure.
func shown(tok *Tokenizer, ids []int32) string {
	var b strings.Builder
	for _, id := range ids[:min(len(ids), 60)] {
		fmt.Fprintf(&b, " %d:%+q", id, tok.TokenBytes(id))
	}
	return b.String()
}

func TestEveryCharacterHasTheClassThatHuggingFaceGivesIt(t *testing.T) {
	golden := readGolden[struct{ Letters, Numbers, Blanks, Digits [][2]rune }](t, "characters.json")
	in := func(runs [][2]rune) []bool {
		set := make([]bool, 0x110000)
		for _, r := range runs {
			for c := r[0]; c <= r[1]; c++ {
				set[c] = true
			}
		}
		return set
	}
	letters, numbers, blanks, digits := in(golden.Letters), in(golden.Numbers), in(golden.Blanks), in(golden.Digits)
	for c := range rune(0x110000) {
		if 0xD800 <= c && c < 0xE000 {
			continue
		}
		want := other
		switch {
		case letters[c]:
			want = letter
		case numbers[c]:
			want = number
		case c == '\r' || c == '\n':
			want = newline
		case blanks[c]:
			want = blank
		}
		if got, size := classAt(string(c), 0); got != want || size != len(string(c)) {
			t.Errorf("%U: class %d and size %d, want class %d", c, got, size, want)
		}
		if got, _ := digitAt(string(c), 0); got != digits[c] {
			t.Errorf("%U: digit %t, want %t", c, got, digits[c])
		}
	}
}

func TestCompositionIsThatOfHuggingFace(t *testing.T) {
	golden := readGolden[struct{ Pairs [][2]string }](t, "compositions.json")
	if len(golden.Pairs) < 500 {
		t.Fatalf("only %d pairs", len(golden.Pairs))
	}
	for _, p := range golden.Pairs {
		if got := composed(p[0]); got != p[1] {
			t.Errorf("%+q becomes\n%+q, want\n%+q", p[0], got, p[1])
		}
	}
}

func corpus(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile("testdata/corpus.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func texts(all ...string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, s := range all {
			if !yield(s, nil) {
				return
			}
		}
	}
}

func TestTrainingLearnsTheMergesThatHuggingFaceLearns(t *testing.T) {
	golden := readGolden[struct{ Merges [][2]string }](t, "learned.json")
	// The library's trainer reads special tokens in the text as text, so this
	// one is not in it.
	tok, err := Train(texts(corpus(t)), Options{VocabSize: 1001, SpecialTokens: []string{"<|nowhere|>"}})
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[int32]string)
	for _, m := range tok.vocab.model {
		names[m.id] = m.name
	}
	ranked := tok.merges.ranked()
	if len(ranked) != len(golden.Merges) {
		t.Errorf("%d merges, want %d", len(ranked), len(golden.Merges))
	}
	for i, s := range ranked[:min(len(ranked), len(golden.Merges))] {
		if got := [2]string{names[s.pair.left()], names[s.pair.right()]}; got != golden.Merges[i] {
			t.Fatalf("merge %d is %q, want %q", i, got, golden.Merges[i])
		}
	}
}

// The file is committed so that make.py can load it with Hugging Face's
// library: its golden ids prove that what Train and Write make works there.
func TestTheTrainedFileIsWhatTrainAndWriteMake(t *testing.T) {
	tok, err := Train(texts(corpus(t)), Options{VocabSize: 900, SpecialTokens: []string{"<|endoftext|>", "<|im_start|>"}})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := tok.Write(&b); err != nil {
		t.Fatal(err)
	}
	const path = "testdata/trained.tokenizer.json"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s differs; if that is meant: go test ./data/tokenizer -run TestTheTrainedFile -update, then tools/golden/tokenizer/make.py", path)
	}
}
