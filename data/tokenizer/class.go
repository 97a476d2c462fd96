package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// A class is what the splitting patterns can tell apart about a character.
type class uint8

const (
	other   class = iota // none of the below: marks, punctuation, controls, bytes that are not UTF-8
	letter               // \p{L}
	number               // \p{N}
	blank                // \s without \r and \n
	newline              // \r or \n
)

// The letters and numbers that Unicode 15.1 and 16 added. Go's tables are
// those of Unicode 15, the regular expressions of Hugging Face's library know
// version 16 (measured with tokenizers 0.23.3, every code point).
var (
	newLetters = &unicode.RangeTable{
		R16: []unicode.Range16{{0x1C89, 0x1C8A, 1}, {0xA7CB, 0xA7CD, 1}, {0xA7DA, 0xA7DC, 1}},
		R32: []unicode.Range32{
			{0x105C0, 0x105F3, 1},
			{0x10D4A, 0x10D65, 1},
			{0x10D6F, 0x10D85, 1},
			{0x10EC2, 0x10EC4, 1},
			{0x11380, 0x11389, 1},
			{0x1138B, 0x1138B, 1},
			{0x1138E, 0x1138E, 1},
			{0x11390, 0x113B5, 1},
			{0x113B7, 0x113B7, 1},
			{0x113D1, 0x113D1, 1},
			{0x113D3, 0x113D3, 1},
			{0x11BC0, 0x11BE0, 1},
			{0x13460, 0x143FA, 1},
			{0x16100, 0x1611D, 1},
			{0x16D40, 0x16D6C, 1},
			{0x18CFF, 0x18CFF, 1},
			{0x1E5D0, 0x1E5ED, 1},
			{0x1E5F0, 0x1E5F0, 1},
			{0x2EBF0, 0x2EE5D, 1},
		},
	}
	newNumbers = &unicode.RangeTable{
		R32: []unicode.Range32{
			{0x10D40, 0x10D49, 1},
			{0x116D0, 0x116E3, 1},
			{0x11BF0, 0x11BF9, 1},
			{0x16130, 0x16139, 1},
			{0x16D70, 0x16D79, 1},
			{0x1CCF0, 0x1CCF9, 1},
			{0x1E5F1, 0x1E5FA, 1},
		},
	}
	// The pre-tokenizer Digits asks Rust's char::is_numeric, which knows
	// Unicode 17 there.
	newDigits = &unicode.RangeTable{
		R32: []unicode.Range32{{0x11DE0, 0x11DE9, 1}, {0x16FF4, 0x16FF6, 1}},
	}
)

// classOf looks a character up in the Unicode tables.
func classOf(r rune) class {
	switch {
	case r == '\r' || r == '\n':
		return newline
	case unicode.IsSpace(r):
		return blank
	case unicode.IsLetter(r) || unicode.Is(newLetters, r):
		return letter
	case unicode.IsNumber(r) || unicode.Is(newNumbers, r):
		return number
	}
	return other
}

// ascii has the classes of the first 128 characters.
var ascii = func() (table [utf8.RuneSelf]class) {
	for r := range table {
		table[r] = classOf(rune(r))
	}
	return table
}()

// plane0 has the classes of the characters below U+10000, because a binary
// search for each would be most of the time spent on Chinese text.
var plane0 = sync.OnceValue(func() *[1 << 16]class {
	table := new([1 << 16]class)
	for r := range table {
		table[r] = classOf(rune(r))
	}
	return table
})

// classAt returns the class and the length in bytes of the character that
// begins at s[i].
func classAt(s string, i int) (class, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return ascii[b], 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	if r == utf8.RuneError && size == 1 {
		return other, 1
	}
	if r < 1<<16 {
		return plane0()[r], size
	}
	return classOf(r), size
}

// digitAt is classAt for the pre-tokenizer Digits.
func digitAt(s string, i int) (bool, int) {
	c, size := classAt(s, i)
	if c == other && size == 4 {
		r, _ := utf8.DecodeRuneInString(s[i:])
		return unicode.Is(newDigits, r), size
	}
	return c == number, size
}
