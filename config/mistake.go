package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// A Source is where a value came from. The zero Source is the default.
type Source struct {
	Name   string // of the file, or of the flag, such as "--set"; "" for the default
	Line   int    // 1 is the first; 0 where there are no lines
	Column int    // 1 is the first, counted in characters
}

// String writes "default", "--set" or "run.yaml:12".
func (s Source) String() string {
	switch {
	case s.Name == "":
		return "default"
	case s.Line == 0:
		return s.Name
	}
	return s.Name + ":" + strconv.Itoa(s.Line)
}

// A Mistake is one thing that is wrong with a configuration. It is always the user's to put right.
type Mistake struct {
	Key    string // "" where it is about no key
	Source Source
	Err    error
}

// Error writes place, key and what is wrong: "run.yaml:7:3: data.batch: ...".
func (m *Mistake) Error() string {
	var parts []string
	switch {
	case m.Source.Column > 0:
		parts = append(parts, fmt.Sprintf("%s:%d", m.Source, m.Source.Column))
	case m.Source.Name != "":
		parts = append(parts, m.Source.String())
	}
	if m.Key != "" {
		parts = append(parts, m.Key)
	}
	return strings.Join(append(parts, m.Err.Error()), ": ")
}

// Unwrap returns what was found wrong, so that errors.Is finds fs.ErrNotExist.
func (m *Mistake) Unwrap() error { return m.Err }

func (b *Binding) note(key string, at Source, format string, args ...any) {
	b.mistakes = append(b.mistakes, &Mistake{key, at, fmt.Errorf(format, args...)})
}

// Check returns all mistakes of everything that was loaded and set, joined, in the order of loading
// and of the lines, and with them what the settings' own Check methods find. Each is a *Mistake.
// A Check method that complains of a key which already has a mistake is not heard, and none is called
// where an input could not be read at all: the values are not the user's.
func (b *Binding) Check() error {
	all := slices.Clone(b.mistakes)
	wrong := map[string]bool{}
	for _, m := range all {
		wrong[m.Key] = true
	}
	var found []error
	if !b.unread {
		found = checkSection(b.root)
	}
	for _, err := range found {
		m := &Mistake{Err: err}
		if key, text, cut := strings.Cut(err.Error(), ": "); cut && b.byKey[key] != nil {
			if wrong[key] {
				continue
			}
			m = &Mistake{Key: key, Source: b.byKey[key].source, Err: &reworded{text, err}}
		}
		all = append(all, m)
	}
	slices.SortStableFunc(all, func(x, y *Mistake) int {
		if d := b.rank(x.Source) - b.rank(y.Source); d != 0 {
			return d
		}
		if d := x.Source.Line - y.Source.Line; d != 0 {
			return d
		}
		return x.Source.Column - y.Source.Column
	})
	errs := make([]error, len(all))
	for i, m := range all {
		if m.Source == (Source{}) { // what no line says is missing in the file
			m.Source.Name = b.file
		}
		errs[i] = m
	}
	return errors.Join(errs...)
}

// rank orders sources as they were loaded, defaults last: what is not set is in no line.
func (b *Binding) rank(s Source) int {
	if i := slices.Index(b.inputs, s.Name); i >= 0 {
		return i
	}
	return len(b.inputs)
}

// reworded is an error of a Check method without its key, which the Mistake has already.
type reworded struct {
	text string
	err  error
}

func (r *reworded) Error() string { return r.text }
func (r *reworded) Unwrap() error { return r.err }

// checkSection collects what Check methods of f's struct and of the sections below it say.
func checkSection(f *field) []error {
	if !f.isSection() {
		return nil
	}
	var errs []error
	for _, child := range f.fields {
		errs = append(errs, checkSection(child)...)
	}
	if checker, ok := reflect.TypeAssert[interface{ Check() []error }](f.target.Addr()); ok {
		errs = append(errs, checker.Check()...)
	}
	return errs
}

// unknown says what to do about a key that is not there: the nearest key of the same section, or
// the key of that name elsewhere, or what the section has.
func (b *Binding) unknown(section *field, name string) string {
	var siblings []string
	for _, f := range section.fields {
		siblings = append(siblings, f.name)
	}
	if near := nearest(name, siblings); near != "" {
		return "unknown key; did you mean " + strings.TrimPrefix(section.key+"."+near, ".") + "?"
	}
	var elsewhere []string
	for key := range b.byKey {
		if key == name || strings.HasSuffix(key, "."+name) {
			elsewhere = append(elsewhere, key)
		}
	}
	if len(elsewhere) > 0 {
		slices.Sort(elsewhere)
		return "unknown key; did you mean " + strings.Join(elsewhere, " or ") + "?"
	}
	whole := section.key
	if whole == "" {
		whole = "the configuration"
	}
	return "unknown key; " + whole + " has " + strings.Join(siblings, ", ")
}

// unknownSet is unknown for a key of --set, written in full: where only the name of a section on its way
// is misspelt, it gives the whole key.
func (b *Binding) unknownSet(section *field, name, key string) string {
	var sections []string
	for _, f := range section.fields {
		if f.isSection() {
			sections = append(sections, f.name)
		}
	}
	begin := strings.TrimPrefix(section.key+".", ".")
	if near := nearest(name, sections); near != "" {
		right := begin + near + strings.TrimPrefix(key, begin+name)
		if f := b.byKey[right]; f != nil && !f.isSection() {
			return "unknown key; did you mean " + right + "?"
		}
	}
	return b.unknown(section, name)
}

// suggest returns "; did you mean X?", or nothing where no candidate is near.
func suggest(word string, candidates []string) string {
	if near := nearest(word, candidates); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// nearest returns the candidate that fewest edits separate from word, "" where all are too far:
// more than a third of the word.
func nearest(word string, candidates []string) string {
	best, least := "", max(1, len(word)/3)+1
	for _, c := range candidates {
		if d := editDistance(strings.ToLower(word), c, least); d < least {
			best, least = c, d
		}
	}
	return best
}

// editDistance is Damerau's distance with adjacent transpositions (optimal string alignment): the
// number of insertions, deletions, replacements and swaps of neighbours between a and b. It returns
// limit as soon as the lengths alone say that it is at least that.
func editDistance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
