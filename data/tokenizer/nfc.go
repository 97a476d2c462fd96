package tokenizer

import (
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Hugging Face's library composes with the tables of Unicode 9 (measured with
// tokenizers 0.23.3, every code point), Go with those of Unicode 15. Marks
// that are younger than Unicode 9 are neither reordered nor composed there, so
// they are not here. x/text has a second difference: it breaks runs of more
// than 30 marks with a U+034F, which a tokenizer must not. Hence only its
// tables are used, and the algorithm (Unicode standard, section 3.11) is below.

// youngMarks are the characters with a combining class that Unicode 10 to 15
// added.
var youngMarks = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x07FD, 0x07FD, 1},
		{0x0898, 0x089F, 1},
		{0x08CA, 0x08D3, 1},
		{0x09FE, 0x09FE, 1},
		{0x0C3C, 0x0C3C, 1},
		{0x0D3B, 0x0D3C, 1},
		{0x0EBA, 0x0EBA, 1},
		{0x1715, 0x1715, 1},
		{0x1ABF, 0x1ACE, 1},
		{0x1DF6, 0x1DFA, 1},
		{0xA82C, 0xA82C, 1},
	},
	R32: []unicode.Range32{
		{0x10D24, 0x10D27, 1},
		{0x10EAB, 0x10EAC, 1},
		{0x10EFD, 0x10EFF, 1},
		{0x10F46, 0x10F50, 1},
		{0x10F82, 0x10F85, 1},
		{0x11070, 0x11070, 1},
		{0x1133B, 0x1133B, 1},
		{0x1145E, 0x1145E, 1},
		{0x11839, 0x1183A, 1},
		{0x1193D, 0x1193E, 1},
		{0x11943, 0x11943, 1},
		{0x119E0, 0x119E0, 1},
		{0x11A34, 0x11A34, 1},
		{0x11A47, 0x11A47, 1},
		{0x11A99, 0x11A99, 1},
		{0x11D42, 0x11D42, 1},
		{0x11D44, 0x11D45, 1},
		{0x11D97, 0x11D97, 1},
		{0x11F41, 0x11F42, 1},
		{0x16FF0, 0x16FF1, 1},
		{0x1E08F, 0x1E08F, 1},
		{0x1E130, 0x1E136, 1},
		{0x1E2AE, 0x1E2AE, 1},
		{0x1E2EC, 0x1E2EF, 1},
		{0x1E4EC, 0x1E4EF, 1},
	},
}

// youngComposite is the one composite that Unicode 10 to 15 added, the vowel
// sign O of Dives Akuru.
const youngComposite = "\U00011938"

// composed returns text in normalization form C. Text that is composed
// already, nearly all there is, is returned as it is.
func composed(text string) string {
	if norm.NFC.IsNormalString(text) {
		return text
	}
	// Nothing composes across the end of a line, so only the lines that need
	// it are taken apart.
	out := make([]byte, 0, len(text))
	for line := range strings.Lines(text) {
		if norm.NFC.IsNormalString(line) {
			out = append(out, line...)
		} else {
			out = appendComposed(out, line)
		}
	}
	return string(out)
}

func appendComposed(out []byte, text string) []byte {
	var group []mark // the decomposed characters from the last starter on
	flush := func() {
		for _, m := range closed(group) {
			out = utf8.AppendRune(out, m.r)
		}
		group = group[:0]
	}
	for i := 0; i < len(text); {
		if r, size := utf8.DecodeRuneInString(text[i:]); r == utf8.RuneError && size == 1 {
			flush()
			out = append(out, text[i]) // not UTF-8: kept, and nothing composes with it
			i++
			continue
		}
		var decomposed []byte
		decomposed, i = decomposedAt(text, i)
		for len(decomposed) > 0 {
			r, size := utf8.DecodeRune(decomposed)
			m := mark{r: r, ccc: norm.NFD.Properties(decomposed).CCC()}
			if m.ccc != 0 && unicode.Is(youngMarks, r) {
				m.ccc = 0
			}
			decomposed = decomposed[size:]
			if m.ccc == 0 && len(group) > 0 {
				// A starter composes with the starter right before it, as
				// Hangul vowels do, or else begins a new group.
				group = closed(group)
				if len(group) == 1 {
					if r, ok := composite(group[0].r, m.r); ok {
						group[0] = mark{r: r}
						continue
					}
				}
				for _, m := range group {
					out = utf8.AppendRune(out, m.r)
				}
				group = group[:0]
			}
			group = append(group, m)
		}
	}
	flush()
	return out
}

// decomposedAt returns the canonical decomposition of the character at
// text[i], and where the next one begins.
func decomposedAt(text string, i int) ([]byte, int) {
	p := norm.NFD.PropertiesString(text[i:])
	next := i + p.Size()
	if d := p.Decomposition(); d != nil && text[i:next] != youngComposite {
		return d, next
	}
	return []byte(text[i:next]), next
}

// A mark is a character with its canonical combining class.
type mark struct {
	r   rune
	ccc uint8
}

// closed puts the marks of a group into canonical order and joins those that
// compose with the starter in front of them, in place. A mark is blocked when
// one of the same class stays between it and the starter.
func closed(group []mark) []mark {
	slices.SortStableFunc(group, func(a, b mark) int { return int(a.ccc) - int(b.ccc) })
	if len(group) == 0 || group[0].ccc != 0 {
		return group
	}
	kept := group[:1]
	for _, m := range group[1:] {
		if len(kept) == 1 || kept[len(kept)-1].ccc != m.ccc {
			if r, ok := composite(group[0].r, m.r); ok {
				group[0].r = r
				continue
			}
		}
		kept = append(kept, m)
	}
	return kept
}

// Hangul syllables compose by arithmetic (Unicode standard, section 3.12).
const (
	hangulS, hangulL, hangulV, hangulT       = 0xAC00, 0x1100, 0x1161, 0x11A7
	hangulLCount, hangulVCount, hangulTCount = 19, 21, 28
)

// composite returns the one character that a followed by b composes to.
func composite(a, b rune) (rune, bool) {
	if l, v := a-hangulL, b-hangulV; 0 <= l && l < hangulLCount && 0 <= v && v < hangulVCount {
		return hangulS + (l*hangulVCount+v)*hangulTCount, true
	}
	if s, t := a-hangulS, b-hangulT; 0 <= s && s < hangulLCount*hangulVCount*hangulTCount && s%hangulTCount == 0 && 0 < t && t < hangulTCount {
		return a + t, true
	}
	r, ok := composites()[[2]rune{a, b}]
	return r, ok
}

// composites has the primary composites of Unicode 9 but for Hangul, by the
// two characters that they are made of.
var composites = sync.OnceValue(func() map[[2]rune]rune {
	pairs := make(map[[2]rune]rune, 1024)
	for r := rune(0xC0); r < 0x20000; r++ {
		s := string(r)
		if 0xAC00 <= r && r < 0xE000 || s == youngComposite {
			continue
		}
		decomposition := norm.NFD.PropertiesString(s).Decomposition()
		if decomposition == nil || !norm.NFC.IsNormalString(s) {
			continue
		}
		last, size := utf8.DecodeLastRune(decomposition)
		first := []rune(norm.NFC.String(string(decomposition[:len(decomposition)-size])))
		if len(first) == 1 {
			pairs[[2]rune{first[0], last}] = r
		}
	}
	return pairs
})
