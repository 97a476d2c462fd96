package config

import (
	"fmt"
	"reflect"
	"strings"
)

// A Binding ties a struct of settings to its keys, and to where each value came from.
// It is not safe for concurrent use. The struct it is bound to stays the caller's; values appear in it
// as they are loaded, and are to be trusted only once Check has returned nil.
type Binding struct {
	root     *field
	byKey    map[string]*field
	inputs   []string // names of what was loaded, in order; mistakes are sorted by it
	file     string   // the first of them that is no flag: whose mistakes it is that nothing says
	mistakes []*Mistake
	unread   bool // an input was not understood at all
}

// field is a node of the tree of settings: a section, which has fields, or a value, which has a kind.
type field struct {
	key     string // dotted, "" for the root
	name    string
	help    string
	target  reflect.Value // what it sets, addressable
	fields  []*field      // of a section, in the order of the struct
	kind    kind          // nil for a section
	limits  limits
	initial reflect.Value // the default
	source  Source
}

func (f *field) isSection() bool { return f.kind == nil }

// Bind ties root, a pointer to a struct of settings, to its keys and fills in all defaults.
// It panics where the struct itself is wrong (a missing tag, a type that is not supported, two fields
// of one name, a default outside its limits): that is a mistake of the program, and any test finds it.
func Bind(root any) *Binding {
	v := reflect.ValueOf(root)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: Bind needs a pointer to a struct of settings, not %T", root))
	}
	b := &Binding{byKey: map[string]*field{}}
	b.root = &field{target: v.Elem()}
	b.grow(b.root)
	b.reset(b.root)
	return b
}

// grow adds the fields of section's struct below it.
func (b *Binding) grow(section *field) {
	t := section.target.Type()
	for i := range t.NumField() {
		sf := t.Field(i)
		name, tagged := sf.Tag.Lookup("yaml")
		if name == "-" {
			continue
		}
		where := fmt.Sprintf("config: field %s of %s", sf.Name, t)
		if !sf.IsExported() || !tagged || name == "" || strings.ContainsAny(name, ".,: ") {
			panic(where + ` needs to be exported and to have a tag such as yaml:"name"`)
		}
		f := &field{
			key:    strings.TrimPrefix(section.key+"."+name, "."),
			name:   name,
			help:   sf.Tag.Get("help"),
			target: section.target.Field(i),
		}
		if b.byKey[f.key] != nil {
			panic(where + " has the name of another field: " + name)
		}
		b.byKey[f.key] = f
		section.fields = append(section.fields, f)
		if f.kind = kindOf(sf.Type); f.kind == nil {
			if sf.Type.Kind() != reflect.Struct {
				panic(fmt.Sprintf("%s has type %s, which no setting can have", where, sf.Type))
			}
			b.grow(f)
			continue
		}
		if f.help == "" {
			panic(where + " has no help")
		}
		if err := f.readTags(sf); err != nil {
			panic(fmt.Sprintf("%s: %v", where, err))
		}
	}
}

// readTags takes limits and default of a value from its tags. A zero value that is no default by
// choice is within the limits too, or the template could not be loaded.
func (f *field) readTags(sf reflect.StructField) (err error) {
	if f.limits, err = readLimits(f.kind, sf.Tag); err != nil {
		return err
	}
	text, ok := sf.Tag.Lookup("default")
	if !ok {
		f.initial = reflect.Zero(sf.Type)
		return f.limits.check(f.kind, f.initial)
	}
	f.initial, err = f.parse(text)
	return err
}

// parse reads text as --set and the tags have it, limits included.
func (f *field) parse(text string) (reflect.Value, error) {
	v, err := f.kind.parse(text)
	if err == nil {
		err = f.limits.check(f.kind, v)
	}
	return v, err
}

// reset puts the defaults of f and of what is below it in place.
func (b *Binding) reset(f *field) {
	if f.isSection() {
		for _, child := range f.fields {
			b.reset(child)
		}
		return
	}
	f.set(f.initial, Source{})
}

// set gives f a value. Lists are copied: the caller may append to what it finds in its struct.
func (f *field) set(v reflect.Value, from Source) {
	if list, ok := v.Interface().([]string); ok {
		v = reflect.ValueOf(append([]string(nil), list...))
	}
	f.target.Set(v)
	f.source = from
}

// values calls yield for each value below section, in the order of the structs.
func (section *field) values(yield func(*field)) {
	for _, f := range section.fields {
		if f.isSection() {
			f.values(yield)
		} else {
			yield(f)
		}
	}
}

// Keys returns the keys of all values, dotted, in the order of the structs.
func (b *Binding) Keys() []string {
	var keys []string
	b.root.values(func(f *field) { keys = append(keys, f.key) })
	return keys
}

// Sources returns where the value of each key came from.
func (b *Binding) Sources() map[string]Source {
	sources := map[string]Source{}
	b.root.values(func(f *field) { sources[f.key] = f.source })
	return sources
}
