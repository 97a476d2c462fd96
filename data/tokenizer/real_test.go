package tokenizer

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// realVocabulary loads the tokenizer.json that the environment names. The
// vocabularies of real models are too large for the repository;
// tools/golden/tokenizer/qwen.sh fetches Qwen's and runs these tests.
func realVocabulary(t testing.TB) *Tokenizer {
	t.Helper()
	path := os.Getenv("GOFSDP_QWEN_TOKENIZER")
	if path == "" {
		t.Skip("GOFSDP_QWEN_TOKENIZER does not name a tokenizer.json; run tools/golden/tokenizer/qwen.sh")
	}
	tok, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestIdsWithARealVocabularyAreThoseOfHuggingFace(t *testing.T) {
	tok := realVocabulary(t)
	data, err := os.ReadFile(os.Getenv("GOFSDP_QWEN_GOLDEN"))
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Texts []string
		IDs   [][]int32
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Texts) < 500 {
		t.Fatalf("only %d texts", len(golden.Texts))
	}
	compareIDs(t, tok, golden.Texts, golden.IDs)

	// What is written is the same tokenizer.
	var b strings.Builder
	if err := tok.Write(&b); err != nil {
		t.Fatal(err)
	}
	again, err := Parse([]byte(b.String()), "written")
	if err != nil {
		t.Fatal(err)
	}
	compareIDs(t, again, golden.Texts, golden.IDs)
}

func BenchmarkEncodeGoTextWithARealVocabulary(b *testing.B) { benchmarkEncode(b, realVocabulary(b)) }

func BenchmarkLoadARealVocabulary(b *testing.B) {
	realVocabulary(b)
	for b.Loop() {
		realVocabulary(b)
	}
}
