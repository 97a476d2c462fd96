package tokenizer

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// The plain slow versions that the fast ones are compared with.

// referenceRegexes are the patterns in Go's syntax, anchored and without the
// alternatives \s+(?!\S)|\s+ at the end, which Go cannot express.
var referenceRegexes = func() map[Pattern]*regexp.Regexp {
	qwen := strings.TrimSuffix(qwen2Regex, `|\s+(?!\S)|\s+`)
	llama := strings.TrimSuffix(llama3Regex, `|\s+(?!\S)|\s+`)
	gpt2 := `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+`
	compile := func(s string) *regexp.Regexp {
		s = strings.ReplaceAll(s, `[^\s\p{L}`, `[^\s\v\x{85}\p{Z}\p{L}`) // \s of Go is ASCII without \v
		s = strings.ReplaceAll(s, `|\s*`, `|[\s\v\x{85}\p{Z}]*`)
		return regexp.MustCompile(`^(?:` + s + `)`)
	}
	return map[Pattern]*regexp.Regexp{Qwen2: compile(qwen), Llama3: compile(llama), GPT2: compile(gpt2)}
}()

func referenceNext(p Pattern, s string, i int) int {
	if m := referenceRegexes[p].FindString(s[i:]); m != "" {
		return i + len(m)
	}
	rest := strings.TrimLeftFunc(s[i:], unicode.IsSpace)
	blanks := s[i : len(s)-len(rest)]
	if rest == "" || utf8.RuneCountInString(blanks) == 1 {
		return i + len(blanks)
	}
	_, last := utf8.DecodeLastRuneInString(blanks)
	return i + len(blanks) - last
}

// referenceMerge tries every pair again for every merge.
func referenceMerge(table *mergeTable, ids []int32) []int32 {
	for {
		at, least := -1, noMerge
		for i := 1; i < len(ids); i++ {
			if m := table.find(ids[i-1], ids[i]); m < least {
				at, least = i-1, m
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Concat(ids[:at], []int32{least.id()}, ids[at+2:])
	}
}

// anyText draws text that is rich in what the rules are about; with bytes set
// it need not be UTF-8.
func anyText(bytes bool) *rapid.Generator[string] {
	fragments := []string{" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u0085", "\v", "'", "s", "'S", "ſ", "ll", "re", "a", "Z", "é", "e\u0301", "\u0323", "中文", "7", "42", "½", "!", "++", "🙂", "\u200d", "<", "<|endoftext|>", "<|im_", "한", "\u1112\u1161\u11ab", "\x00"}
	if bytes {
		fragments = append(fragments, "\xff", "\xc3", "\xe4\xb8", "\x80", "\xed\xa0\x80", "\xf0\x9f")
	}
	young := func(r rune) bool { return unicode.In(r, newLetters, newNumbers, newDigits) }
	return rapid.Custom(func(t *rapid.T) string {
		part := rapid.OneOf(rapid.SampledFrom(fragments), rapid.String())
		s := strings.Join(rapid.SliceOfN(part, 0, 12).Draw(t, "parts"), "")
		return strings.Map(func(r rune) rune { // Go's expressions do not know them
			if young(r) {
				return -1
			}
			return r
		}, s)
	})
}

func TestTheScannerCutsWhereTheRegularExpressionDoes(t *testing.T) {
	for _, p := range []Pattern{Qwen2, GPT2, Llama3} {
		t.Run(string(p), rapid.MakeCheck(func(t *rapid.T) {
			s := anyText(true).Draw(t, "text")
			for i := 0; i < len(s); {
				got, want := p.next(s, i), referenceNext(p, s, i)
				if got != want {
					t.Fatalf("%+q: at byte %d the word is %+q, want %+q", s, i, s[i:got], s[i:want])
				}
				i = got
			}
		}))
	}
}

func TestBothWaysToMergeAWordDoWhatTheReferenceDoes(t *testing.T) {
	tok := load(t, "qwen2")
	words := []string{"training", " the", "<T>", "aaaa", " = range", "\t\t\t", "ing", "e", "errorf", "今天", "\xe4", "ΩΩ"}
	rapid.Check(t, func(t *rapid.T) {
		word := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 1, 60).Draw(t, "word"), "")
		var ids []int32
		for i := range len(word) {
			ids = append(ids, tok.vocab.byteIDs[word[i]])
		}
		want := referenceMerge(&tok.merges, slices.Clone(ids))
		m := merger{ids: slices.Clone(ids)}
		if got := m.scan(&tok.merges); !slices.Equal(got, want) {
			t.Fatalf("%q scanned: %v, want %v", word, got, want)
		}
		m.ids = slices.Clone(ids)
		if got := m.long(&tok.merges); !slices.Equal(got, want) {
			t.Fatalf("%q by heap: %v, want %v", word, got, want)
		}
	})
}

func TestTheCacheOfWordsChangesNothing(t *testing.T) {
	tok := load(t, "qwen2")
	rapid.Check(t, func(t *rapid.T) {
		s := anyText(true).Draw(t, "text")
		used := tok.Encode(nil, s)
		if fresh := newEncoder(tok).encode(nil, s); !slices.Equal(used, fresh) {
			t.Fatalf("%+q: %v, with a fresh cache %v", s, used, fresh)
		}
	})
}
