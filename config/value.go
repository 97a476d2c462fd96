package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
)

// kind is a type of value: how it is read and written.
type kind interface {
	// want names the kind in an error: "expected a whole number".
	want() string
	// parse reads the text of a plain value, of --set or of a tag.
	parse(text string) (reflect.Value, error)
	// print writes the value as YAML, on one line, so that it is read back as the same value.
	print(v reflect.Value) string
	// schema is the kind's part of JSON Schema.
	schema() object
}

type (
	textKind     struct{}
	boolKind     struct{}
	intKind      struct{ of reflect.Type }
	floatKind    struct{}
	durationKind struct{}
	listKind     struct{}
)

// kindOf returns the kind of a type, nil where it has none.
func kindOf(t reflect.Type) kind {
	switch t {
	case reflect.TypeFor[string]():
		return textKind{}
	case reflect.TypeFor[bool]():
		return boolKind{}
	case reflect.TypeFor[int](), reflect.TypeFor[int64]():
		return intKind{t}
	case reflect.TypeFor[float64]():
		return floatKind{}
	case reflect.TypeFor[time.Duration]():
		return durationKind{}
	case reflect.TypeFor[[]string]():
		return listKind{}
	}
	return nil
}

func (textKind) want() string     { return "text" }
func (boolKind) want() string     { return "true or false" }
func (intKind) want() string      { return "a whole number" }
func (floatKind) want() string    { return "a number" }
func (durationKind) want() string { return "a duration such as 30s, 10m or 1h30m" }
func (listKind) want() string     { return "a list of texts" }

// errUnlike says that a text is not of the kind at all; the caller knows how to quote what it found.
var errUnlike = errors.New("not of this kind")

// wholeNumber and number are the core schema's forms (YAML 1.2.2, §10.3.2) without octal and
// hexadecimal, which no setting wants, with "_" between digits and without leading zeros, which other
// readers take for octal.
var (
	wholeNumber = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*(_[0-9]+)*)$`)
	leadingZero = regexp.MustCompile(`^[-+]?0[0-9]+$`)
	number      = regexp.MustCompile(`^[-+]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$`)
)

func (textKind) parse(text string) (reflect.Value, error) {
	if !utf8.ValidString(text) {
		return reflect.Value{}, errors.New("the text is not UTF-8, which a YAML file could not hold")
	}
	return reflect.ValueOf(text), nil
}

func (boolKind) parse(text string) (reflect.Value, error) {
	switch text {
	case "true", "True", "TRUE":
		return reflect.ValueOf(true), nil
	case "false", "False", "FALSE":
		return reflect.ValueOf(false), nil
	}
	return reflect.Value{}, errUnlike
}

func (k intKind) parse(text string) (reflect.Value, error) {
	if leadingZero.MatchString(text) {
		return reflect.Value{}, fmt.Errorf("%s begins with a zero, which some take for octal; leave it out", text)
	}
	if !wholeNumber.MatchString(text) {
		return reflect.Value{}, errUnlike
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	if err != nil {
		return reflect.Value{}, fmt.Errorf("%s is out of the range of whole numbers", text)
	}
	return reflect.ValueOf(n).Convert(k.of), nil
}

func (floatKind) parse(text string) (reflect.Value, error) {
	if !number.MatchString(text) {
		return reflect.Value{}, errUnlike
	}
	x, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
	if err != nil {
		return reflect.Value{}, fmt.Errorf("%s is out of the range of numbers", text)
	}
	return reflect.ValueOf(x), nil
}

func (durationKind) parse(text string) (reflect.Value, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return reflect.Value{}, errUnlike
	}
	return reflect.ValueOf(d), nil
}

// parse reads "a,b,c", or "[a, b, c]" as YAML has it.
func (listKind) parse(text string) (reflect.Value, error) {
	if !utf8.ValidString(text) {
		return reflect.Value{}, errors.New("the text is not UTF-8, which a YAML file could not hold")
	}
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		pairs, mistake := parse("", []byte("list: "+text))
		if mistake != nil || len(pairs) != 1 {
			return reflect.Value{}, errUnlike
		}
		if list, ok := pairs[0].Value.(*ast.SequenceNode); ok {
			return readList(list)
		}
		return reflect.Value{}, errUnlike
	}
	var list []string
	if text != "" {
		for item := range strings.SplitSeq(text, ",") {
			list = append(list, strings.TrimSpace(item))
		}
	}
	return reflect.ValueOf(list), nil
}

func (textKind) print(v reflect.Value) string { return quoteText(v.String()) }
func (boolKind) print(v reflect.Value) string { return strconv.FormatBool(v.Bool()) }
func (intKind) print(v reflect.Value) string  { return strconv.FormatInt(v.Int(), 10) }

// print writes a point into every number: a reader of YAML 1.1 takes 1e-05 for text.
func (floatKind) print(v reflect.Value) string {
	x := v.Float()
	if math.Abs(x) >= 1e-4 && math.Abs(x) < 1e6 || x == 0 {
		text := strconv.FormatFloat(x, 'f', -1, 64)
		if !strings.Contains(text, ".") {
			text += ".0"
		}
		return text
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', -1, 64), "e")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	return mantissa + "e" + exponent
}

// print drops the zeros that time.Duration's own text ends with: 10m, not 10m0s.
func (durationKind) print(v reflect.Value) string {
	text := time.Duration(v.Int()).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func (listKind) print(v reflect.Value) string {
	var items []string
	for _, item := range v.Interface().([]string) {
		items = append(items, quoteText(item))
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// plainText is what every reader of YAML, 1.1 or 1.2, takes for text without quotes, and plainWords
// are the exceptions.
var (
	plainText  = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./+-]*$`)
	plainWords = regexp.MustCompile(`(?i)^(true|false|yes|no|on|off|null|y|n)$`)
)

// quoteText writes text as YAML, in double quotes where it could be read as something else.
func quoteText(text string) string {
	if plainText.MatchString(text) && !plainWords.MatchString(text) {
		return text
	}
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\t':
			out.WriteString(`\t`)
		case r == '\r':
			out.WriteString(`\r`)
		case strconv.IsPrint(r) || r == utf8.RuneError:
			out.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&out, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			fmt.Fprintf(&out, `\U%08x`, r)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// limits are what the tags enum, min and max say about a value.
type limits struct {
	enum     []string
	min, max *bound // nil where there is none
}

// bound is a limit as the tag writes it and as a value.
type bound struct {
	text  string
	value reflect.Value
}

func readLimits(k kind, tag reflect.StructTag) (limits, error) {
	var l limits
	if text, ok := tag.Lookup("enum"); ok {
		if k != (textKind{}) && k != (listKind{}) {
			return l, errors.New("enum is for texts and lists of texts")
		}
		l.enum = strings.Split(text, ",")
	}
	for name, at := range map[string]**bound{"min": &l.min, "max": &l.max} {
		text, ok := tag.Lookup(name)
		if !ok {
			continue
		}
		switch k.(type) {
		case intKind, floatKind, durationKind:
		default:
			return l, errors.New(name + " is for numbers and durations")
		}
		v, err := k.parse(text)
		if err != nil {
			return l, fmt.Errorf("%s %q: %w", name, text, err)
		}
		*at = &bound{text, v}
	}
	return l, nil
}

func (l limits) check(k kind, v reflect.Value) error {
	if l.enum != nil {
		items, isList := v.Interface().([]string)
		if !isList {
			items = []string{v.String()}
		}
		for _, item := range items {
			if !slices.Contains(l.enum, item) {
				near := ""
				if len(item) > 3 { // gpu is no slip of cpu
					near = suggest(item, l.enum)
				}
				return fmt.Errorf("%s is none of %s%s", quoteText(item), strings.Join(l.enum, ", "), near)
			}
		}
	}
	if l.min != nil && less(v, l.min.value) {
		return fmt.Errorf("%s is below the least allowed, %s", k.print(v), l.min.text)
	}
	if l.max != nil && less(l.max.value, v) {
		return fmt.Errorf("%s is above the most allowed, %s", k.print(v), l.max.text)
	}
	return nil
}

func less(a, b reflect.Value) bool {
	if a.Kind() == reflect.Float64 {
		return a.Float() < b.Float()
	}
	return a.Int() < b.Int()
}
