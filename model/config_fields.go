package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
)

// fields is a JSON object whose fields are taken one by one: what is left at the end was not known.
// Mistakes gather in errs. A null is as good as absent.
type fields struct {
	name  string // of the file
	where string // the path of the object within it, with a dot at the end
	raw   map[string]json.RawMessage
	errs  []error

	// doubted are the paths of fields of which a mistake is known, or that follow from such a one.
	doubted map[string]bool
}

// readFields reads text, which must be one JSON object. A field that is there twice is a mistake.
func readFields(text []byte, name, where string) (*fields, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	fail := func(err error) (*fields, error) {
		at := int(d.InputOffset())
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at = int(syntax.Offset)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			at, err = len(text), errors.New("the file ends too early")
		}
		line := 1 + bytes.Count(text[:min(at, len(text))], []byte("\n"))
		return nil, fmt.Errorf("%s:%d: not valid JSON: %w", name, line, err)
	}
	f := &fields{name: name, where: where, raw: map[string]json.RawMessage{}, doubted: map[string]bool{}}
	switch open, err := d.Token(); {
	case err != nil:
		return fail(err)
	case open != json.Delim('{'):
		return fail(errors.New("it is no object"))
	}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return fail(err)
		}
		key, ok := token.(string)
		if !ok {
			return fail(fmt.Errorf("%v is no field's name", token))
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fail(err)
		}
		if first, twice := f.raw[key]; twice {
			f.wrong(key, "is there twice: %s and %s", short(first), short(value))
		}
		f.raw[key] = value
	}
	if _, err := d.Token(); err != nil {
		return fail(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fail(errors.New("there is more after the object"))
	}
	return f, nil
}

// wrong notes a mistake in a field.
func (f *fields) wrong(key, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("%s: %s%s: %s", f.name, f.where, key, fmt.Sprintf(format, args...)))
	f.doubted[f.where+key] = true
}

// derived says that a field's value may come from another's, and with it its mistakes.
func (f *fields) derived(key, from string) {
	if f.doubted[f.where+from] {
		f.doubted[f.where+key] = true
	}
}

// adopt takes over the mistakes of an inner object.
func (f *fields) adopt(inner *fields) {
	f.errs = append(f.errs, inner.errs...)
	maps.Copy(f.doubted, inner.doubted)
}

// has tells whether the field is there and not null.
func (f *fields) has(key string) bool {
	value, ok := f.raw[key]
	return ok && string(value) != "null"
}

// take decodes a field into to. It returns false where the field is absent, null or of another type.
func (f *fields) take(key, kind string, to any) bool {
	there := f.has(key)
	value := f.raw[key]
	delete(f.raw, key)
	if !there {
		return false
	}
	if err := json.Unmarshal(value, to); err != nil {
		f.wrong(key, "%s is not %s", short(value), kind)
		return false
	}
	return true
}

func (f *fields) integer(key string, absent int) int {
	var n int
	if f.take(key, "a whole number", &n) {
		return n
	}
	return absent
}

func (f *fields) number(key string, absent float64) float64 {
	var x float64
	if f.take(key, "a number", &x) {
		return x
	}
	return absent
}

func (f *fields) boolean(key string, absent bool) bool {
	var b bool
	if f.take(key, "true or false", &b) {
		return b
	}
	return absent
}

func (f *fields) text(key, absent string) string {
	var s string
	if f.take(key, "a string", &s) {
		return s
	}
	return absent
}

func (f *fields) texts(key string) []string {
	var list []string
	if f.take(key, "a list of strings", &list) && list != nil {
		return list
	}
	return nil
}

// required is an integer that must be there; transformers' own defaults are one model's sizes.
func (f *fields) required(key string) int {
	if !f.has(key) {
		f.wrong(key, "is missing")
	}
	return f.integer(key, 0)
}

func (f *fields) requiredNumber(key string) float64 {
	if !f.has(key) {
		f.wrong(key, "is missing")
	}
	return f.number(key, 0)
}

// object takes a field that is an object itself; nil where it is absent.
func (f *fields) object(key string) *fields {
	var value json.RawMessage
	if !f.take(key, "an object", &value) {
		return nil
	}
	inner, err := readFields(value, f.name, f.where+key+".")
	if err != nil {
		f.wrong(key, "%s is not an object", short(value))
		return nil
	}
	return inner
}

// only refuses a field that has any other value than the one supported, in JSON.
func (f *fields) only(key, supported, why string) {
	defer f.ignore(key)
	if !f.has(key) {
		return
	}
	value := string(f.raw[key])
	if value == supported {
		return
	}
	x, err := strconv.ParseFloat(value, 64)
	y, err2 := strconv.ParseFloat(supported, 64)
	if err == nil && err2 == nil && x == y {
		return // 0.0 for 0
	}
	if supported == "null" {
		f.wrong(key, "%s is not supported: %s", short([]byte(value)), why)
		return
	}
	f.wrong(key, "%s is not supported, only %s: %s", short([]byte(value)), supported, why)
}

// ignore takes fields that change nothing.
func (f *fields) ignore(keys ...string) {
	for _, key := range keys {
		delete(f.raw, key)
	}
}

// forget takes all that is left.
func (f *fields) forget() { clear(f.raw) }

// left lists the fields that nobody took, sorted.
func (f *fields) left() []string { return slices.Sorted(maps.Keys(f.raw)) }

// refuseUnknown refuses what is left and is not null.
func (f *fields) refuseUnknown() {
	for _, key := range f.left() {
		if f.has(key) {
			f.wrong(key, "%s: the field is unknown, and might change the model's numbers; remove it if it does not", short(f.raw[key]))
		}
	}
}

// short is a value as an error shows it.
func short(value []byte) string {
	var line bytes.Buffer
	if err := json.Compact(&line, value); err != nil {
		return "a value"
	}
	const most = 60
	if line.Len() > most {
		cut := most
		for cut > 0 && line.Bytes()[cut]&0xC0 == 0x80 {
			cut-- // not within a character
		}
		return string(line.Bytes()[:cut]) + "..."
	}
	return line.String()
}
