package ptx

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// tokenKind classes tokens.
type tokenKind uint8

const (
	tokenEnd     tokenKind = iota
	tokenWord              // names, opcodes with their dots, registers: %r1, $L__BB0_2, ld.param.u64
	tokenDot               // directives, with the dot: .reg
	tokenInteger           // value in bits
	tokenFloat             // value in bits, of wide (64) or not (32) bits
	tokenString            // between double quotes
	tokenMark              // one character
)

// token is one word of the text.
type token struct {
	kind  tokenKind
	text  string
	line  int
	start int // offset in the text
	end   int
	bits  uint64
	wide  bool // of tokenFloat: the bits of a float64
}

// lexer cuts the text of a module into tokens.
type lexer struct {
	text string
	pos  int
	line int
}

func isWord(c byte) bool {
	return c == '_' || c == '$' || c == '%' || c == '.' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == ':'
}

// skip passes white space and comments.
func (l *lexer) skip() error {
	for l.pos < len(l.text) {
		rest := l.text[l.pos:]
		switch {
		case rest[0] == '\n':
			l.line++
			l.pos++
		case rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r':
			l.pos++
		case strings.HasPrefix(rest, "//"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			l.pos += n
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest, "*/")
			if n < 0 {
				return fmt.Errorf("line %d: a comment does not end", l.line)
			}
			l.line += strings.Count(rest[:n], "\n")
			l.pos += n + 2
		default:
			return nil
		}
	}
	return nil
}

// next returns the next token.
func (l *lexer) next() (token, error) {
	if err := l.skip(); err != nil {
		return token{}, err
	}
	t := token{line: l.line, start: l.pos}
	if l.pos == len(l.text) {
		t.end = l.pos
		return t, nil
	}
	c := l.text[l.pos]
	end := l.pos + 1
	switch {
	case c == '"':
		n := strings.IndexAny(l.text[end:], "\"\n")
		if n < 0 || l.text[end+n] == '\n' {
			return t, fmt.Errorf("line %d: a string does not end", l.line)
		}
		t.kind, t.text, t.end = tokenString, l.text[end:end+n], end+n+1
		l.pos = t.end
		return t, nil
	case c >= '0' && c <= '9':
		return l.number(t)
	case c == ':' || !isWord(c):
		t.kind = tokenMark
	default:
		t.kind = tokenWord
		if c == '.' {
			t.kind = tokenDot
		}
		for end < len(l.text) && isWord(l.text[end]) {
			if l.text[end] == ':' { // a pair belongs to a word, as in L1::no_allocate; one ends a label
				if end+1 == len(l.text) || l.text[end+1] != ':' {
					break
				}
				end++
			}
			end++
		}
		end = min(end, len(l.text))
	}
	t.text, t.end = l.text[l.pos:end], end
	l.pos = end
	return t, nil
}

// number reads a literal: decimal, 0x, octal, 0f and 0d (bits of a float), or decimal with a point.
func (l *lexer) number(t token) (token, error) {
	end := l.pos + 1
	for end < len(l.text) {
		c := l.text[end]
		exponent := (c == '+' || c == '-') && (l.text[end-1] == 'e' || l.text[end-1] == 'E') &&
			!strings.HasPrefix(l.text[l.pos:], "0x") && !strings.HasPrefix(l.text[l.pos:], "0d") && !strings.HasPrefix(l.text[l.pos:], "0f")
		if !exponent && (!isWord(c) || c == ':') {
			break
		}
		end++
	}
	t.text, t.end, l.pos = l.text[l.pos:end], end, end
	var err error
	s := strings.ToLower(t.text)
	switch {
	case strings.HasPrefix(s, "0f") && len(s) == 10:
		t.kind = tokenFloat
		t.bits, err = strconv.ParseUint(s[2:], 16, 32)
	case strings.HasPrefix(s, "0d") && len(s) == 18:
		t.kind, t.wide = tokenFloat, true
		t.bits, err = strconv.ParseUint(s[2:], 16, 64)
	case !strings.HasPrefix(s, "0x") && strings.ContainsAny(s, ".e"):
		var f float64
		f, err = strconv.ParseFloat(s, 64)
		t.kind, t.wide, t.bits = tokenFloat, true, math.Float64bits(f)
	default:
		t.kind = tokenInteger
		t.bits, err = strconv.ParseUint(strings.TrimSuffix(s, "u"), 0, 64)
	}
	if err != nil {
		return t, fmt.Errorf("line %d: %q is no number", t.line, t.text)
	}
	return t, nil
}
