package scenario

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/model"
)

func TestAllSidesBeginWithTheSameWeightsAndTokens(t *testing.T) {
	s, err := newStarts()
	if err != nil {
		t.Fatal(err)
	}
	w := Work{
		Kind: Steps, Model: "tiny", Length: 16, Sequences: 2, Ranks: 2, Warm: 1, Timed: 2,
		Cases: []StepCase{{Name: "one"}, {Name: "four", MicroBatches: 4}},
	}
	task, err := s.task(w)
	if err != nil {
		t.Fatal(err)
	}
	src, err := model.Resolve(task.Start)
	if err != nil {
		t.Fatal(err)
	}
	config, _ := model.Builtin("tiny")
	weights, err := checkpoint.OpenWeights(task.Start, src.Config)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]float32{}
	for _, p := range config.Params() {
		got[p.Name] = make([]float32, p.Len())
	}
	for param, values := range got {
		weights.Read(param, 0, values)
	}
	if err := weights.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range config.Params() {
		want := make([]float32, p.Len())
		config.InitParam(want, p, seed, 0)
		for i := range want {
			if got[p.Name][i] != want[i] {
				t.Fatalf("%s[%d] is %v in the file, want %v", p.Name, i, got[p.Name][i], want[i])
			}
		}
	}

	text, err := os.ReadFile(task.Tokens)
	if err != nil {
		t.Fatal(err)
	}
	// 3 steps of 4 micro-batches of 2 ranks of 2 sequences of 17 tokens.
	const n = 3 * 4 * 2 * 2 * 17
	if len(text) != 4*n {
		t.Fatalf("the file has %d bytes, want %d", len(text), 4*n)
	}
	for i, want := range tokens(n, config.Vocab) {
		if got := int32(binary.LittleEndian.Uint32(text[4*i:])); got != want {
			t.Fatalf("token %d is %d, want %d", i, got, want)
		}
	}

	w.Precision = "bf16"
	again, err := s.task(w)
	if err != nil || again.Start != task.Start || again.Tokens != task.Tokens {
		t.Errorf("the same model is prepared anew: %q and %q, %q and %q, %v", task.Start, again.Start, task.Tokens, again.Tokens, err)
	}
	dir := filepath.Dir(task.Start)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

func TestTokensAreWithinTheVocabularyAndSkewed(t *testing.T) {
	const n, vocab = 100_000, 500
	low := 0
	for i, x := range tokens(n, vocab) {
		if x < 0 || x >= vocab {
			t.Fatalf("token %d is %d, of a vocabulary of %d", i, x, vocab)
		}
		if x < vocab/8 { // u³ < 1/8 where u < 1/2
			low++
		}
	}
	if low < 49*n/100 || low > 51*n/100 {
		t.Errorf("%d of %d tokens are in the first eighth, want half", low, n)
	}
}

func TestTheFileOfTokensIsBounded(t *testing.T) {
	s, err := newStarts()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	path, err := s.rows(&Work{Length: 1 << 19, Sequences: 64, Ranks: 64, Timed: 64, Cases: []StepCase{{Name: "a"}}}, 100)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if row := int64(4 * (1<<19 + 1)); err != nil || info.Size() == 0 || info.Size() > 4*mostTokens || info.Size()%row != 0 {
		t.Errorf("the file has %d bytes, want whole rows and at most %d: %v", info.Size(), 4*mostTokens, err)
	}
}
