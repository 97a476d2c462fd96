package config_test

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
)

// violation judges value by the part of JSON Schema (draft 2020-12) that JSONSchema writes, and
// returns what is wrong with it, "" for nothing. A keyword that it does not know is a violation.
func violation(schema map[string]any, value any) string {
	for keyword, want := range schema {
		ok := true
		switch keyword {
		case "$schema", "description", "default":
		case "type":
			types, several := want.([]any)
			if !several {
				types = []any{want}
			}
			ok = slices.ContainsFunc(types, func(t any) bool { return hasType(t.(string), value) })
		case "enum":
			ok = slices.ContainsFunc(want.([]any), func(v any) bool { return reflect.DeepEqual(v, value) })
		case "minimum":
			x, isNumber := asNumber(value)
			ok = !isNumber || x >= want.(float64)
		case "maximum":
			x, isNumber := asNumber(value)
			ok = !isNumber || x <= want.(float64)
		case "pattern":
			text, isText := value.(string)
			ok = !isText || regexp.MustCompile(want.(string)).MatchString(text)
		case "items":
			items, _ := value.([]any)
			for i, item := range items {
				if why := violation(want.(map[string]any), item); why != "" {
					return fmt.Sprintf("item %d: %s", i, why)
				}
			}
		case "properties":
			members, _ := value.(map[string]any)
			for name, property := range want.(map[string]any) {
				if v, has := members[name]; has {
					if why := violation(property.(map[string]any), v); why != "" {
						return name + ": " + why
					}
				}
			}
		case "additionalProperties":
			members, _ := value.(map[string]any)
			known := schema["properties"].(map[string]any)
			for name := range members {
				if _, has := known[name]; !has && want == false {
					return "additional property " + name
				}
			}
		default:
			return "unknown keyword " + keyword
		}
		if !ok {
			return fmt.Sprintf("%v is not of %s %v", value, keyword, want)
		}
	}
	return ""
}

func hasType(name string, value any) bool {
	switch name {
	case "object":
		_, ok := value.(map[string]any)
		return ok
	case "array":
		_, ok := value.([]any)
		return ok
	case "string":
		_, ok := value.(string)
		return ok
	case "boolean":
		_, ok := value.(bool)
		return ok
	case "number":
		_, ok := asNumber(value)
		return ok
	case "integer":
		x, ok := asNumber(value)
		return ok && x == math.Trunc(x)
	case "null":
		return value == nil
	}
	return false
}

func asNumber(value any) (float64, bool) {
	switch x := value.(type) {
	case uint64:
		return float64(x), true
	case int64:
		return float64(x), true
	case float64:
		return x, true
	}
	return 0, false
}
