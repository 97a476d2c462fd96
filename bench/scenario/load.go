package scenario

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Load reads a scenario file. All its mistakes are in the error, each a line of
// its own with file, line, key and remedy.
func Load(path string) (*Scenario, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, text)
}

// Parse is Load of a text; path names it, and gives the scenario its name.
func Parse(path string, text []byte) (*Scenario, error) {
	f := &file{path: path, lines: map[string]int{}}
	s := &Scenario{Name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))}
	f.read(text, reflect.ValueOf(s).Elem())
	if len(f.mistakes) == 0 { // what was not read looks as if it were missing
		s.check(f.wrong)
	}
	if len(f.mistakes) > 0 {
		return nil, errors.Join(f.mistakes...)
	}
	return s, nil
}

// file is a text that is being read.
type file struct {
	path     string
	lines    map[string]int // of each key that is there
	mistakes []error
}

// wrong notes a mistake at a key, or where that is missing at what it is missing
// from.
func (f *file) wrong(key, format string, args ...any) {
	line := 1
	for at := key; at != ""; at = at[:max(strings.LastIndexAny(at, ".["), 0)] {
		if n, ok := f.lines[at]; ok {
			line = n
			break
		}
	}
	f.mistakes = append(f.mistakes, fmt.Errorf("%s:%d: %s: %w", f.path, line, key, fmt.Errorf(format, args...)))
}

func (f *file) read(text []byte, into reflect.Value) {
	fail := func(line int, what string) {
		f.mistakes = append(f.mistakes, fmt.Errorf("%s:%d: %s", f.path, line, what))
	}
	defer func() {
		if recover() != nil { // goccy/go-yaml issues 750 and 776
			fail(1, "is no YAML that can be read")
		}
	}()
	doc, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	var syntax *yaml.SyntaxError
	switch {
	case errors.As(err, &syntax) && syntax.Token != nil:
		fail(syntax.Token.Position.Line, "not YAML: "+syntax.Message)
	case err != nil:
		fail(1, "not YAML: "+err.Error())
	case len(doc.Docs) != 1 || doc.Docs[0].Body == nil:
		fail(1, "holds no scenario; a file holds one, from title to sides")
	default:
		f.value("", doc.Docs[0].Body, into)
	}
}

// value reads a node into what it is for.
func (f *file) value(key string, n ast.Node, into reflect.Value) {
	switch into.Kind() {
	case reflect.Struct:
		f.section(key, n, into)
	case reflect.Slice:
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			f.wrong(key, "is %s; write a list", describe(n))
			return
		}
		into.Set(reflect.MakeSlice(into.Type(), len(list.Values), len(list.Values)))
		for i, item := range list.Values {
			at := fmt.Sprintf("%s[%d]", key, i)
			f.lines[at] = lineOf(item)
			f.value(at, item, into.Index(i))
		}
	default:
		f.scalar(key, n, into)
	}
}

// section reads a mapping into a struct, whose fields have their keys as tags.
func (f *file) section(key string, n ast.Node, into reflect.Value) {
	mapping, ok := n.(ast.MapNode)
	if !ok {
		f.wrong(key, "is %s; write keys with values", describe(n))
		return
	}
	fields := map[string]int{}
	for i := range into.NumField() {
		if name := into.Type().Field(i).Tag.Get("yaml"); name != "-" {
			fields[name] = i
		}
	}
	for each := mapping.MapRange(); each.Next(); {
		name := each.Key().GetToken().Value
		at := strings.TrimPrefix(key+"."+name, ".")
		if _, twice := f.lines[at]; twice {
			f.wrong(at, "is there twice, also in line %d; keep one", lineOf(each.Key()))
			continue
		}
		f.lines[at] = lineOf(each.Key())
		i, ok := fields[name]
		if !ok {
			names := make([]string, 0, len(fields))
			for known := range fields {
				names = append(names, known)
			}
			slices.Sort(names)
			f.wrong(at, "is no key here; there are %s", strings.Join(names, ", "))
			continue
		}
		f.value(at, each.Value(), into.Field(i))
	}
}

func (f *file) scalar(key string, n ast.Node, into reflect.Value) {
	text, isNumber := "", false
	switch n := n.(type) {
	case *ast.StringNode:
		text = n.Value
		// The parser takes 1e-3 as text, which in YAML 1.2 is a number.
		if quote := n.GetToken().Type; quote != token.SingleQuoteType && quote != token.DoubleQuoteType {
			_, err := strconv.ParseFloat(text, 64)
			isNumber = err == nil
		}
	case *ast.LiteralNode:
		text = n.Value.Value
	case *ast.IntegerNode, *ast.FloatNode:
		text, isNumber = strings.ReplaceAll(n.GetToken().Value, "_", ""), true
	default:
		f.wrong(key, "is %s; write one value", describe(n))
		return
	}
	switch into.Kind() {
	case reflect.String:
		if isNumber {
			f.wrong(key, "is the number %s; put it in quotes", text)
			return
		}
		into.SetString(strings.TrimSpace(text))
	case reflect.Int, reflect.Int64:
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil || !isNumber {
			f.wrong(key, "is %q; write a whole number", text)
			return
		}
		into.SetInt(v)
	case reflect.Float64:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !isNumber {
			f.wrong(key, "is %q; write a number", text)
			return
		}
		into.SetFloat(v)
	default:
		panic("scenario: no reader of " + into.Type().String())
	}
}

func lineOf(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 1
}

// describe says what stands in a file, where something else should.
func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a section of keys"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "empty"
	}
	return fmt.Sprintf("%q", n.GetToken().Value)
}

// Only leaves the sides of these names, and of ratios and shares those that they
// give.
func (s *Scenario) Only(names []string) {
	gone := func(name string) bool {
		side, _, _ := strings.Cut(name, "/")
		return !slices.Contains(names, side)
	}
	s.Sides = slices.DeleteFunc(s.Sides, func(o Side) bool { return gone(o.Name) })
	s.Ratios = slices.DeleteFunc(s.Ratios, func(r Ratio) bool { return gone(r.Of) || gone(r.Against) })
	s.Shares = slices.DeleteFunc(s.Shares, func(sh Share) bool { return gone(sh.Of) })
}
