package config

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// columns is the width that comments are wrapped at, and lists are broken at.
const columns = 90

// Marshal writes all values as YAML, in the order of the structs. Loading it gives the same values.
func (b *Binding) Marshal() []byte {
	return b.write(nil, func(f *field) reflect.Value { return f.target }, nil)
}

// MarshalSources is Marshal with the source of each value that is not the default behind it.
func (b *Binding) MarshalSources() []byte {
	return b.write(nil, func(f *field) reflect.Value { return f.target }, func(f *field) string {
		if f.source == (Source{}) {
			return ""
		}
		return oneLine(f.source.String())
	})
}

// Template writes the defaults, each below a comment of its help, its choices and its limits: the
// file that a user starts from. What was loaded does not change it.
func (b *Binding) Template() []byte {
	return b.write(describeField, func(f *field) reflect.Value { return f.initial }, nil)
}

// describeField is the help of f and what its limits say, as sentences.
func describeField(f *field) string {
	parts := []string{f.help}
	if f.limits.enum != nil {
		words := make([]string, len(f.limits.enum))
		for i, word := range f.limits.enum {
			words[i] = quoteText(word)
		}
		parts = append(parts, "One of "+strings.Join(words, ", ")+".")
	}
	lo, hi := f.limits.min, f.limits.max
	switch {
	case lo != nil && hi != nil:
		parts = append(parts, "From "+lo.text+" to "+hi.text+".")
	case lo != nil:
		parts = append(parts, "At least "+lo.text+".")
	case hi != nil:
		parts = append(parts, "At most "+hi.text+".")
	}
	return strings.TrimSpace(strings.Join(parts, " "))
}

// write writes the tree: above each key what above says of it, behind its value what behind says.
func (b *Binding) write(above func(*field) string, value func(*field) reflect.Value, behind func(*field) string) []byte {
	var out bytes.Buffer
	var section func(f *field, depth int)
	section = func(s *field, depth int) {
		indent := strings.Repeat("  ", depth)
		for i, f := range s.fields {
			if i > 0 && (f.isSection() || above != nil) {
				out.WriteByte('\n')
			}
			if above != nil {
				writeComment(&out, indent, above(f))
			}
			if f.isSection() {
				fmt.Fprintf(&out, "%s%s:\n", indent, f.name)
				section(f, depth+1)
				continue
			}
			v := value(f)
			line := indent + f.name + ": " + f.kind.print(v)
			comment := ""
			if behind != nil {
				if text := behind(f); text != "" {
					comment = "  # " + text
				}
			}
			items, isList := v.Interface().([]string)
			if !isList || utf8.RuneCountInString(line) <= columns || len(items) == 0 {
				out.WriteString(line + comment + "\n")
				continue
			}
			fmt.Fprintf(&out, "%s%s:%s\n", indent, f.name, comment)
			for _, item := range items {
				fmt.Fprintf(&out, "%s  - %s\n", indent, quoteText(item))
			}
		}
	}
	section(b.root, 0)
	return out.Bytes()
}

// writeComment wraps text at columns, as a comment.
func writeComment(out *bytes.Buffer, indent, text string) {
	width := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case width == 0:
			out.WriteString(indent + "# " + word)
			width = len(indent) + 2 + n
		case width+1+n > columns:
			out.WriteString("\n" + indent + "# " + word)
			width = len(indent) + 2 + n
		default:
			out.WriteString(" " + word)
			width += 1 + n
		}
	}
	if width > 0 {
		out.WriteByte('\n')
	}
}

// oneLine keeps the name of a file from ending the comment it stands in.
func oneLine(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(text) {
		return strconv.QuoteToASCII(text)
	}
	return text
}
