package tokenizer

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

func TestDecodingGivesTheEncodedBytesBack(t *testing.T) {
	for _, name := range []string{"gpt2", "llama3"} {
		tok := load(t, name)
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			s := anyText(true).Draw(t, "text")
			if got := string(tok.Decode(nil, tok.Encode(nil, s))); got != s {
				t.Fatalf("%+q comes back as %+q", s, got)
			}
		}))
	}
}

func TestDecodingGivesTheComposedTextBackWhereTheFileAsksForNFC(t *testing.T) {
	tok := load(t, "qwen2")
	rapid.Check(t, func(t *rapid.T) {
		s := anyText(false).Draw(t, "text")
		got := string(tok.Decode(nil, tok.Encode(nil, s)))
		// Added tokens part the text before it is composed.
		var want strings.Builder
		tok.raw.cut(s, func(text string) { want.WriteString(composed(text)) }, func(id int32) { want.Write(tok.TokenBytes(id)) })
		if got != want.String() {
			t.Fatalf("%+q comes back as %+q, want %+q", s, got, want.String())
		}
	})
}

// isYoung are the characters that Unicode 9 cannot compose or reorder.
func isYoung(r rune) bool {
	return unicode.Is(youngMarks, r) || string(r) == youngComposite || r == 0x11935 || r == 0x11930
}

func TestCompositionIsThatOfTheTextPackage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := anyText(true).Draw(t, "text")
		want := norm.NFC.String(s)
		if strings.Count(want, "\u034f") > strings.Count(s, "\u034f") || strings.ContainsFunc(s, isYoung) {
			t.Skip("a run of marks that x/text breaks, or a mark younger than Hugging Face's tables")
		}
		if got := composed(s); got != want {
			t.Fatalf("%+q becomes %+q, want %+q", s, got, want)
		}
	})
}

func TestBytesThatAreNotUTF8KeepTheirValue(t *testing.T) {
	for _, name := range []string{"qwen2", "gpt2", "llama3", "trained"} {
		tok := load(t, name)
		for _, s := range []string{"\xff", "a\xffb", " \x80\x80", "\xe4\xb8", "caf\xe9 au lait", "\xed\xa0\x80", "1\xc02", "e\xcc", "\xf0\x9f\x99<|endoftext|>\xff"} {
			ids := tok.Encode(nil, s)
			if got := string(tok.Decode(nil, ids)); got != s {
				t.Errorf("%s: %q comes back as %q", name, s, got)
			}
		}
	}
	// What is around such a byte is composed as ever.
	tok := load(t, "qwen2")
	if got, want := string(tok.Decode(nil, tok.Encode(nil, "e\u0301\xffe\u0301\xff\u0301"))), "\u00e9\xff\u00e9\xff\u0301"; got != want {
		t.Errorf("got %+q, want %+q", got, want)
	}
}

func TestBytesThatTheVocabularyLacksAreNamedAndDropped(t *testing.T) {
	tok := load(t, "smollm2")
	missing := tok.MissingBytes()
	if !slices.Contains(missing, 0x00) || !slices.Contains(missing, 0xFF) || slices.Contains(missing, 'a') {
		t.Fatalf("missing are %x", missing)
	}
	if got := string(tok.Decode(nil, tok.Encode(nil, "a\x00b\xffc"))); got != "abc" {
		t.Errorf("got %q", got)
	}
	if missing := load(t, "qwen2").MissingBytes(); missing != nil {
		t.Errorf("Qwen's vocabulary lacks %x", missing)
	}
}

func TestEncodeAndDecodeAppend(t *testing.T) {
	tok := load(t, "gpt2")
	ids := tok.Encode([]int32{-7}, "the")
	if ids[0] != -7 || len(ids) < 2 {
		t.Errorf("ids are %v", ids)
	}
	if got := string(tok.Decode([]byte("in "), ids)); got != "in the" {
		t.Errorf("got %q: the id -7, which names no token, must add nothing", got)
	}
	if got := tok.Encode(nil, ""); len(got) != 0 {
		t.Errorf("the empty text has ids %v", got)
	}
}

func TestTokensAreKnownByNameBytesAndKind(t *testing.T) {
	tok := load(t, "qwen2")
	id, ok := tok.ID("Ġthe")
	if !ok || string(tok.TokenBytes(id)) != " the" || tok.Special(id) {
		t.Errorf("Ġthe is %d, %t: %q", id, ok, tok.TokenBytes(id))
	}
	end, ok := tok.EndOfText()
	if !ok || string(tok.TokenBytes(end)) != "<|endoftext|>" || !tok.Special(end) {
		t.Errorf("end of text is %d, %t: %q", end, ok, tok.TokenBytes(end))
	}
	call, ok := tok.ID("<tool_call>")
	if !ok || tok.Special(call) {
		t.Errorf("<tool_call> is %d, %t, special %t", call, ok, tok.Special(call))
	}
	if _, ok := tok.ID("no such token"); ok {
		t.Error("a token that is not there has an id")
	}
	for _, id := range []int32{-1, int32(tok.VocabSize())} {
		if b := tok.TokenBytes(id); b != nil || tok.Special(id) {
			t.Errorf("id %d has bytes %q", id, b)
		}
	}
}

func TestOfTwoAddedTokensTheLongerOneIsFound(t *testing.T) {
	tok := parse(t, edit(t, `"added_tokens":[]`, `"added_tokens":[`+added(257, "<<")+`,`+added(258, "<<<")+`,`+added(259, "x<")+`]`))
	got := tok.Encode(nil, "<<<<<x<<")
	want := []int32{258, 257, 259, tok.vocab.byteIDs['<']}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestManyGoroutinesMayEncodeAtOnce(t *testing.T) {
	tok := load(t, "qwen2")
	text := corpus(t)
	want := tok.Encode(nil, text)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 3 {
				if got := tok.Encode(nil, text); !slices.Equal(got, want) {
					t.Error("ids differ")
				}
			}
		})
	}
	wg.Wait()
	if n := len(tok.idle); n < 1 || n > 8 {
		t.Errorf("%d encoders for at most 8 calls at once", n)
	}
}

func TestALongWordTakesLittleTime(t *testing.T) {
	tok := load(t, "qwen2")
	// With a scan for each merge this would take minutes.
	s := strings.Repeat("etaoinshrdlu", 1<<15)
	if got := string(tok.Decode(nil, tok.Encode(nil, s))); got != s {
		t.Error("the word does not come back")
	}
}
