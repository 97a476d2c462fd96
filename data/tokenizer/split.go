package tokenizer

import "strings"

// A Pattern names the regular expression that cuts text into words. Merges
// never cross a cut.
type Pattern string

const (
	// Qwen2 is the pattern of Qwen 2, 2.5 and 3: numbers digit by digit.
	Qwen2 Pattern = "qwen2"
	// GPT2 is the pattern of GPT-2 and of SmolLM2.
	GPT2 Pattern = "gpt2"
	// Llama3 is Qwen2's with numbers in groups of up to three digits.
	Llama3 Pattern = "llama3"
)

// The expressions as tokenizer.json files spell them. GPT-2's is built into
// the pre-tokenizer ByteLevel and not spelled.
const (
	qwen2Regex  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	llama3Regex = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// next returns the end of the word that begins at s[i]. Every character is
// looked at about once: none of the expressions needs to go back further than
// one blank.
func (p Pattern) next(s string, i int) int {
	switch p {
	case GPT2:
		return nextGPT2(s, i)
	case Llama3:
		return nextQwen2(s, i, 3)
	default:
		return nextQwen2(s, i, 1)
	}
}

// nextQwen2 follows qwen2Regex with numbers of at most maxDigits digits.
func nextQwen2(s string, i, maxDigits int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], true); n > 0 {
			return i + 1 + n
		}
	}
	c, size := classAt(s, i)
	after := i + size
	switch c {
	case letter:
		return run(s, after, letter)
	case number:
		for range maxDigits - 1 {
			if after == len(s) {
				break
			}
			c, size := classAt(s, after)
			if c != number {
				break
			}
			after += size
		}
		return after
	}
	// One character that is neither letter, number nor line end may lead a
	// run of letters; a space may lead a run of others.
	if c != newline && after < len(s) {
		switch c2, size2 := classAt(s, after); {
		case c2 == letter:
			return run(s, after+size2, letter)
		case c2 == other && s[i] == ' ':
			return run(s, run(s, after+size2, other), newline)
		}
	}
	if c == other {
		return run(s, run(s, after, other), newline)
	}
	return blanks(s, i, true)
}

// nextGPT2 follows
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func nextGPT2(s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], false); n > 0 {
			return i + 1 + n
		}
	}
	c, size := classAt(s, i)
	after := i + size
	if s[i] == ' ' && after < len(s) {
		if c2, size2 := classAt(s, after); c2 < blank {
			return run(s, after+size2, c2)
		}
	}
	if c < blank {
		return run(s, after, c)
	}
	return blanks(s, i, false)
}

// run returns the end of the characters of class c from s[i] on.
func run(s string, i int, c class) int {
	for i < len(s) {
		c2, size := classAt(s, i)
		if c2 != c {
			break
		}
		i += size
	}
	return i
}

// blanks returns the end of the word within the blanks and line ends that
// begin at s[i]. With stopAtNewline it ends after the last line end, if there
// is one. Otherwise the last blank is left to the word that follows, if one
// follows and the blank is not the only one.
func blanks(s string, i int, stopAtNewline bool) int {
	end, last, lastNewline := i, i, -1
	for end < len(s) {
		c, size := classAt(s, end)
		if c != blank && c != newline {
			break
		}
		last = end
		end += size
		if c == newline {
			lastNewline = end
		}
	}
	switch {
	case stopAtNewline && lastNewline >= 0:
		return lastNewline
	case end == len(s) || last == i:
		return end
	}
	return last
}

// contraction returns the length of the English ending, one of s t re ve m ll
// d, that s begins with, or 0. With fold it is found in both cases, and the
// long s (U+017F) is an s.
func contraction(s string, fold bool) int {
	if s == "" {
		return 0
	}
	lower := func(b byte) byte {
		if fold && 'A' <= b && b <= 'Z' {
			return b + 'a' - 'A'
		}
		return b
	}
	switch a := lower(s[0]); a {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v', 'l':
		if len(s) > 1 {
			if b := lower(s[1]); a == 'l' && b == 'l' || a != 'l' && b == 'e' {
				return 2
			}
		}
	}
	if fold && strings.HasPrefix(s, "ſ") {
		return len("ſ")
	}
	return 0
}

// cutDigits returns the end of the piece that begins at s[i] when every
// numeric character is a piece of its own.
func cutDigits(s string, i int) int {
	is, size := digitAt(s, i)
	i += size
	if is {
		return i
	}
	for i < len(s) {
		is, size := digitAt(s, i)
		if is {
			break
		}
		i += size
	}
	return i
}

// eachWord calls f with the words of text, which holds no added token and is
// normalized.
func (r *rules) eachWord(text string, f func(word string)) {
	for text != "" {
		end := len(text)
		if r.digits {
			end = cutDigits(text, 0)
		}
		piece := text[:end]
		text = text[end:]
		for i := 0; i < len(piece); {
			j := r.pattern.next(piece, i)
			f(piece[i:j])
			i = j
		}
	}
}
