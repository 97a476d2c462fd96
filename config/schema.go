package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"time"
)

// member is one name and value of a JSON object whose order is kept: an editor completes keys in the
// order of the structs.
type member struct {
	name  string
	value any
}

type object []member

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			out.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		out.Write(name)
		out.WriteByte(':')
		out.Write(value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// JSONSchema writes the JSON Schema (draft 2020-12) of the configuration, for editors. It knows keys,
// types, choices, limits and defaults; limits of durations, and what Check methods say, it cannot
// express.
func (b *Binding) JSONSchema() []byte {
	schema := append(object{{"$schema", "https://json-schema.org/draft/2020-12/schema"}}, sectionSchema(b.root, "object")...)
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		panic("config: " + err.Error()) // strings, numbers and lists of them always marshal
	}
	return append(text, '\n')
}

func sectionSchema(section *field, kind any) object {
	var properties object
	for _, f := range section.fields {
		if f.isSection() {
			s := sectionSchema(f, []string{"object", "null"}) // null where all its keys are left out
			if f.help != "" {
				s = append(object{{"description", f.help}}, s...)
			}
			properties = append(properties, member{f.name, s})
		} else {
			properties = append(properties, member{f.name, valueSchema(f)})
		}
	}
	return object{{"type", kind}, {"additionalProperties", false}, {"properties", properties}}
}

func valueSchema(f *field) object {
	s := append(object{{"description", f.help}}, f.kind.schema()...)
	if f.limits.enum != nil && f.kind == (textKind{}) {
		s = append(s, member{"enum", f.limits.enum})
	}
	if f.limits.enum != nil && f.kind == (listKind{}) {
		s[len(s)-1].value = object{{"type", "string"}, {"enum", f.limits.enum}}
	}
	if f.kind != (durationKind{}) {
		if f.limits.min != nil {
			s = append(s, member{"minimum", f.limits.min.value.Interface()})
		}
		if f.limits.max != nil {
			s = append(s, member{"maximum", f.limits.max.value.Interface()})
		}
	}
	return append(s, member{"default", schemaDefault(f.initial)})
}

func schemaDefault(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case time.Duration:
		return durationKind{}.print(v)
	case []string:
		return append([]string{}, x...) // [] and not null
	default:
		return x
	}
}

func (textKind) schema() object  { return object{{"type", "string"}} }
func (boolKind) schema() object  { return object{{"type", "boolean"}} }
func (intKind) schema() object   { return object{{"type", "integer"}} }
func (floatKind) schema() object { return object{{"type", "number"}} }

func (durationKind) schema() object {
	return object{{"type", "string"}, {"pattern", `^-?([0-9.]+(ns|us|µs|ms|s|m|h))+$`}}
}

func (listKind) schema() object {
	return object{{"type", "array"}, {"items", object{{"type", "string"}}}}
}
