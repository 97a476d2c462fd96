package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// maxBytes bounds a file, and so what a hostile one can cost.
	maxBytes = 256 << 10
	// maxNesting bounds brackets within brackets, and dashes on one line: the parser's memory grows
	// with the square of it (200,000 open brackets took all of 24 GiB).
	maxNesting = 16
)

// LoadFile loads the file at path; its mistakes are named by path as given.
func (b *Binding) LoadFile(path string) {
	if text, ok := b.readFile(path); ok {
		b.Load(path, text)
	}
}

// ReplaceFile replaces sections by what the file at path says; see Replace.
func (b *Binding) ReplaceFile(path string, sections ...string) {
	if text, ok := b.readFile(path); ok {
		b.Replace(path, text, sections...)
	}
}

func (b *Binding) readFile(path string) ([]byte, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		var at *os.PathError // its text repeats the path
		if errors.As(err, &at) {
			err = fmt.Errorf("cannot be read: %w", at.Err)
		}
		b.mistakes = append(b.mistakes, &Mistake{Source: Source{Name: path}, Err: err})
		b.unread = true
	}
	return text, err == nil
}

// Load takes the values of a YAML text; mistakes in it are named by name. What it does not say stays
// as it is, so a later Load adds to an earlier one.
func (b *Binding) Load(name string, text []byte) {
	b.inputs = append(b.inputs, name)
	if b.file == "" {
		b.file = name
	}
	b.loadSection(name, b.root, b.parse(name, text))
}

// Replace puts the named sections, of the top level, back to their defaults and then takes their values
// from a YAML text alone. A section that is not named is a mistake in it.
func (b *Binding) Replace(name string, text []byte, sections ...string) {
	b.inputs = append(b.inputs, name)
	only := &field{}
	for _, section := range sections {
		f := b.byKey[section]
		if f == nil || !f.isSection() {
			panic("config: Replace of what is no section: " + section)
		}
		b.reset(f)
		only.fields = append(only.fields, f)
	}
	var rest []*ast.MappingValueNode
	for _, pair := range b.parse(name, text) {
		key, _ := plainKey(pair.Key)
		if f := b.byKey[key]; f != nil && !slices.Contains(sections, key) {
			b.note(key, place(name, pair.Key), "does not belong in %s, which may have %s alone",
				filepath.Base(name), strings.Join(sections, " and "))
			continue
		}
		rest = append(rest, pair)
	}
	b.loadSection(name, only, rest)
}

// parse is the function parse, with its mistake noted.
func (b *Binding) parse(name string, text []byte) []*ast.MappingValueNode {
	pairs, m := parse(name, text)
	if m != nil {
		b.mistakes = append(b.mistakes, m)
		b.unread = true
	}
	return pairs
}

// parse returns the pairs of the mapping that text is, or why there are none. The parser may panic
// (goccy/go-yaml issues 750 and 776): then the file is as wrong as after any other syntax error.
func parse(name string, text []byte) (pairs []*ast.MappingValueNode, m *Mistake) {
	whole := Source{Name: name}
	wrong := func(at Source, format string, args ...any) *Mistake {
		return &Mistake{Source: at, Err: fmt.Errorf(format, args...)}
	}
	defer func() {
		if r := recover(); r != nil {
			pairs, m = nil, wrong(whole, "is no YAML that can be read")
		}
	}()
	if len(text) > maxBytes {
		return nil, wrong(whole, "has %d bytes, and a configuration has at most %d", len(text), maxBytes)
	}
	if !utf8.Valid(text) {
		return nil, wrong(whole, "is not UTF-8 text")
	}
	tokens := lexer.Tokenize(strings.TrimPrefix(string(text), "\ufeff"))
	if at := tooDeep(tokens); at != nil {
		return nil, wrong(tokenPlace(name, at), "is nested more than %d deep", maxNesting)
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) && syntax.Token != nil {
			return nil, wrong(tokenPlace(name, syntax.Token), "not YAML: %s", syntax.Message)
		}
		return nil, wrong(whole, "not YAML: %w", err)
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch n := doc.Body.(type) {
		case nil, *ast.CommentGroupNode:
		case *ast.DirectiveNode:
			return nil, wrong(place(name, n), "has a directive (%%), which a configuration may not; remove the line")
		default:
			if body != nil {
				return nil, wrong(place(name, n), "is a second document; a configuration has one")
			}
			body = n
		}
	}
	switch n := body.(type) {
	case nil, *ast.NullNode: // an empty file says nothing
		return nil, nil
	case *ast.MappingNode:
		return n.Values, nil
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, nil
	default:
		return nil, wrong(place(name, n), "expected sections of keys, found %s", describe(n))
	}
}

// tooDeep returns the token at which nesting goes beyond what a configuration needs.
func tooDeep(tokens token.Tokens) *token.Token {
	depth, line, dashes := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType:
			if t.Position.Line != line {
				line, dashes = t.Position.Line, 0
			}
			dashes++
		}
		if depth > maxNesting || dashes > maxNesting {
			return t
		}
	}
	return nil
}

// loadSection takes the values of the pairs below section.
func (b *Binding) loadSection(name string, section *field, pairs []*ast.MappingValueNode) {
	seen := map[string]int{}
	for _, pair := range pairs {
		at := place(name, pair.Key)
		key, why := plainKey(pair.Key)
		if why != "" {
			b.note(section.key, at, "%s", why)
			continue
		}
		full := strings.TrimPrefix(section.key+"."+key, ".")
		if line, twice := seen[key]; twice {
			b.note(full, at, "given a second time, after line %d", line)
			continue
		}
		seen[key] = at.Line
		i := slices.IndexFunc(section.fields, func(f *field) bool { return f.name == key })
		if i < 0 {
			b.note(full, at, "%s", b.unknown(section, key))
			continue
		}
		f := section.fields[i]
		if !f.isSection() {
			b.take(f, at, pair.Value)
			continue
		}
		switch body := pair.Value.(type) {
		case *ast.NullNode: // a section whose keys are all left out
		case *ast.MappingNode:
			b.loadSection(name, f, body.Values)
		case *ast.MappingValueNode:
			b.loadSection(name, f, []*ast.MappingValueNode{body})
		default:
			b.note(f.key, at, "expected a section of keys, found %s", describe(body))
		}
	}
}

// take gives f the value of a node, or notes why not.
func (b *Binding) take(f *field, at Source, n ast.Node) {
	var v reflect.Value
	var err error
	if list, ok := n.(*ast.SequenceNode); ok && f.kind == (listKind{}) {
		v, err = readList(list)
	} else if _, isNull := n.(*ast.NullNode); isNull {
		err = fmt.Errorf("has no value; leave the key out for the default, %s", f.kind.print(f.initial))
	} else {
		v, err = readScalar(f.kind, n)
	}
	if err == nil {
		err = f.limits.check(f.kind, v)
	}
	if err != nil {
		b.note(f.key, at, "%w", err)
		return
	}
	f.set(v, at)
}

// plainKey returns the text of a key, or what is wrong with it.
func plainKey(n ast.MapKeyNode) (key, why string) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, ""
	case *ast.MergeKeyNode:
		return "", "merge keys (<<) are not read; write the values out"
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, ""
	}
	return "", "expected a plain key, found " + describe(n)
}

// readList reads a list of texts.
func readList(list *ast.SequenceNode) (reflect.Value, error) {
	var items []string
	for i, item := range list.Values {
		text, err := readScalar(textKind{}, item)
		if err != nil {
			return reflect.Value{}, fmt.Errorf("item %d: %w", i+1, err)
		}
		items = append(items, text.String())
	}
	return reflect.ValueOf(items), nil
}

// readScalar reads a node that is no list as a value of kind k.
func readScalar(k kind, n ast.Node) (reflect.Value, error) {
	found := describe(n)
	text, quoted, ok := scalar(n)
	if !ok {
		return reflect.Value{}, fmt.Errorf("expected %s, found %s", k.want(), found)
	}
	isText := quoted || resolvesToText(text)
	remedy := ""
	switch k.(type) {
	case textKind:
		if !isText {
			return reflect.Value{}, fmt.Errorf("expected %s, found %s; put it in quotes", k.want(), found)
		}
		return k.parse(text)
	case listKind:
		return reflect.Value{}, fmt.Errorf("expected %s, found %s; put it in brackets", k.want(), found)
	case durationKind:
	default:
		if quoted {
			remedy = "; leave out the quotes"
		}
	}
	if remedy == "" {
		v, err := k.parse(text)
		if !errors.Is(err, errUnlike) {
			return v, err
		}
	}
	return reflect.Value{}, fmt.Errorf("expected %s, found %s%s", k.want(), found, remedy)
}

// scalar returns the text of a scalar and whether it stands in quotes or in a block.
func scalar(n ast.Node) (text string, quoted, ok bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		t := n.GetToken().Type
		return n.Value, t == token.SingleQuoteType || t == token.DoubleQuoteType, true
	case *ast.LiteralNode:
		return n.Value.Value, true, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, false, true
	}
	return "", false, false
}

// resolvesToText says whether a plain scalar is text by the core schema of YAML 1.2 (§10.3.2).
func resolvesToText(text string) bool {
	switch strings.ToLower(text) {
	case "", "~", "null", "true", "false", ".nan", ".inf", "+.inf", "-.inf":
		return false
	}
	return !number.MatchString(text)
}

// describe names what a node is, for "found ...".
func describe(n ast.Node) string {
	switch n := n.(type) {
	case nil:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a section of keys"
	case *ast.SequenceNode:
		return "a list"
	case *ast.AnchorNode, *ast.AliasNode:
		return "an anchor or alias (& or *), which is not read; write the value out, or put text in quotes"
	case *ast.TagNode:
		return "a tag (!), which is not read; write the value alone, or put text in quotes"
	default:
		text, quoted, ok := scalar(n)
		switch {
		case !ok:
			return "a " + strings.ToLower(n.Type().YAMLName())
		case len(text) > 40:
			return "a long text"
		case quoted || resolvesToText(text):
			return "the text " + fmt.Sprintf("%q", text)
		}
		return text
	}
}

// place is where a node stands; nodes of the parser may lack their token.
func place(name string, n ast.Node) Source {
	if n == nil || n.GetToken() == nil {
		return Source{Name: name}
	}
	return tokenPlace(name, n.GetToken())
}

func tokenPlace(name string, t *token.Token) Source {
	if t.Position == nil {
		return Source{Name: name}
	}
	return Source{name, t.Position.Line, t.Position.Column}
}

// Set is SetBy for --set.
func (b *Binding) Set(assignment string) { b.SetBy("--set", assignment) }

// SetBy takes one assignment that a flag makes, "data.sequence_length=512". Text is taken as it is, without
// quotes; a list is "a,b" or, as in YAML, "[a, b]". The last assignment of a key holds.
func (b *Binding) SetBy(name, assignment string) {
	if !slices.Contains(b.inputs, name) {
		b.inputs = append(b.inputs, name)
	}
	at := Source{Name: name}
	key, text, found := strings.Cut(assignment, "=")
	key = strings.TrimSpace(key)
	if !found {
		b.note("", at, "%q is no assignment; write KEY=VALUE, such as %s=VALUE", assignment, b.exampleKey(key))
		return
	}
	f := b.byKey[key]
	switch {
	case f == nil:
		section := b.root
		for name := range strings.SplitSeq(key, ".") {
			i := slices.IndexFunc(section.fields, func(f *field) bool { return f.name == name })
			if i < 0 || !section.fields[i].isSection() {
				b.note(key, at, "%s", b.unknownSet(section, name, key))
				return
			}
			section = section.fields[i]
		}
	case f.isSection():
		b.note(key, at, "is a section; set one of its keys, such as %s", f.fields[0].key)
		return
	}
	v, err := f.parse(text)
	switch {
	case errors.Is(err, errUnlike):
		b.note(key, at, "expected %s, found %q", f.kind.want(), text)
	case err != nil:
		b.note(key, at, "%w", err)
	default:
		f.set(v, at)
	}
}

// exampleKey is the key that a --set without "=" may have meant, or any.
func (b *Binding) exampleKey(key string) string {
	if f := b.byKey[key]; f != nil && !f.isSection() {
		return key
	}
	return b.Keys()[0]
}
