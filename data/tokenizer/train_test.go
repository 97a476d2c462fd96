package tokenizer

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestTrainingGivesTheSizeAskedForAndUsesAllOfIt(t *testing.T) {
	for _, p := range []Pattern{Qwen2, GPT2, Llama3} {
		tok, err := Train(texts(corpus(t)), Options{VocabSize: 777, Pattern: p})
		if err != nil {
			t.Fatal(err)
		}
		if tok.VocabSize() != 777 {
			t.Errorf("%s: %d entries", p, tok.VocabSize())
		}
		seen := make(map[string]bool)
		for id := range int32(777) {
			b := string(tok.TokenBytes(id))
			if b == "" || seen[b] {
				t.Errorf("%s: token %d is %q, empty or twice there", p, id, b)
			}
			seen[b] = true
		}
		if end, ok := tok.EndOfText(); !ok || end != 776 {
			t.Errorf("%s: end of text is %d, %t", p, end, ok)
		}
	}
}

func TestTrainingDoesNotDependOnTheOrderOfTexts(t *testing.T) {
	lines := strings.SplitAfter(corpus(t), "\n")
	train := func(lines []string) string {
		tok, err := Train(texts(lines...), Options{VocabSize: 600})
		if err != nil {
			t.Fatal(err)
		}
		data, err := tok.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	want := train(lines)
	slices.Reverse(lines)
	if train(lines) != want {
		t.Error("another vocabulary from the same texts in another order")
	}
}

// The plain way to learn: count all pairs of all words for each merge.
func TestTheLearnerLearnsWhatTheReferenceLearns(t *testing.T) {
	text := corpus(t)[:6000] + strings.Repeat("aaaaaaa abab bab aabb ", 9)
	o := Options{VocabSize: 420, Pattern: GPT2}
	tok, err := Train(texts(text), o)
	if err != nil {
		t.Fatal(err)
	}
	words, err := countWords(tok, texts(text))
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[int32]string)
	for i, b := range bytesInAlphabetOrder() {
		names[int32(i)] = string([]byte{b})
	}
	var want []mergeSlot
	for len(names) < 419 {
		counts := make(map[pair]int64)
		for _, w := range words {
			for k := 1; k < len(w.ids); k++ {
				counts[pairOf(w.ids[k-1], w.ids[k])] += w.count
			}
		}
		var best pair
		for p, n := range counts {
			if n > counts[best] || n == counts[best] && p < best {
				best = p
			}
		}
		id := int32(len(names))
		for known, name := range names {
			if name == names[best.left()]+names[best.right()] {
				id = known
			}
		}
		names[id] = names[best.left()] + names[best.right()]
		want = append(want, mergeSlot{best, mergeOf(len(want), id)})
		for i, w := range words {
			words[i].ids = joinedOnce(w.ids, best, id)
		}
	}
	if got := tok.merges.ranked(); !slices.Equal(got, want) {
		t.Errorf("merges %v\nwant %v", got, want)
	}
}

func joinedOnce(ids []int32, p pair, id int32) (out []int32) {
	for k := 0; k < len(ids); k++ {
		if k+1 < len(ids) && pairOf(ids[k], ids[k+1]) == p {
			out = append(out, id)
			k++
		} else {
			out = append(out, ids[k])
		}
	}
	return out
}

func TestTextInSpecialTokensTeachesNothing(t *testing.T) {
	text := strings.Repeat("<|endoftext|>qz", 50)
	tok, err := Train(texts(text), Options{VocabSize: 258})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(tok.TokenBytes(256)); got != "qz" {
		t.Errorf("learned %q", got)
	}
}

func TestTooLittleTextIsAnErrorThatSaysHowMuchItIsGoodFor(t *testing.T) {
	_, err := Train(texts("abab abab"), Options{VocabSize: 1000})
	if err == nil || !strings.Contains(err.Error(), "ask for at most 259") {
		t.Fatalf("got %v", err)
	}
	tok, err := Train(texts("abab abab"), Options{VocabSize: 259})
	if err != nil || tok.VocabSize() != 259 {
		t.Errorf("259 were promised: %v", err)
	}
}

func TestAnErrorOfTheTextsEndsTheTraining(t *testing.T) {
	broken := errors.New("broken")
	_, err := Train(func(yield func(string, error) bool) {
		if yield("some text", nil) && yield("", broken) {
			t.Error("asked for more after an error")
		}
	}, Options{VocabSize: 300})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestMistakesInTheOptionsAreAllNamed(t *testing.T) {
	_, err := Train(texts(), Options{VocabSize: 5, Pattern: "words", SpecialTokens: []string{"", "<a>", "<a>", "x", "\xff"}})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"vocabulary size 5: must be from 261", `pattern "words": supported are qwen2, gpt2 and llama3`, `special token "": `, `special token "<a>": appears twice`, `special token "x": is the name of a byte`, `special token "\xff": `} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
	_, err = Train(texts(strings.Repeat("so no go ", 30)), Options{VocabSize: 270, SpecialTokens: []string{"Ġno"}})
	if err == nil || !strings.Contains(err.Error(), `special token "Ġno" is also a token that the text teaches`) {
		t.Errorf("got %v", err)
	}
}

func TestAVeryLongWordDoesNotStopTheTraining(t *testing.T) {
	word := strings.Repeat("中文字符测试", 5000) + strings.Repeat("etaoinshrdlu", 20000)
	tok, err := Train(texts(word), Options{VocabSize: 270})
	if err != nil || tok.VocabSize() != 270 {
		t.Errorf("got %v", err)
	}
}
