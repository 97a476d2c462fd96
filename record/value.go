package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
)

// Value is a recorded value that may not be known. The zero Value is not known.
// In JSON it is the plain value, or {"unknown": "the reason"}; null is read as
// not known. T must not itself be such an object.
type Value[T any] struct {
	value  T
	known  bool
	reason string
}

// notRecorded is the reason of a Value that nobody set.
const notRecorded = "not recorded"

// Known returns a value that is known.
func Known[T any](value T) Value[T] { return Value[T]{value: value, known: true} }

// Unknown returns a value that is not known, and why.
func Unknown[T any](reason string) Value[T] { return Value[T]{reason: reason} }

// ValueOf returns the value, or not known with the error as the reason.
func ValueOf[T any](value T, err error) Value[T] {
	if err != nil {
		return Unknown[T](err.Error())
	}
	return Known(value)
}

// Get returns the value and whether it is known.
func (v Value[T]) Get() (value T, known bool) { return v.value, v.known }

// Reason returns why the value is not known, and nothing where it is.
func (v Value[T]) Reason() string {
	if !v.known && v.reason == "" {
		return notRecorded
	}
	return v.reason
}

// String returns the value, or "unknown (the reason)".
func (v Value[T]) String() string {
	if !v.known {
		return "unknown (" + v.Reason() + ")"
	}
	return fmt.Sprint(v.value)
}

type unknown struct {
	Reason string `json:"unknown"`
}

// MarshalJSON implements json.Marshaler. JSON has no infinities and no NaN:
// such a number is written as not known, with its name as the reason, so that a
// run that diverged still gets its record.
func (v Value[T]) MarshalJSON() ([]byte, error) {
	if !v.known {
		return json.Marshal(unknown{v.Reason()})
	}
	if f, ok := any(v.value).(float64); ok && !finite(f) {
		return json.Marshal(unknown{notFinite(f)})
	}
	return json.Marshal(v.value)
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Value[T]) UnmarshalJSON(text []byte) error {
	*v = Value[T]{}
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) == nil && len(members) == 1 && members["unknown"] != nil {
		return json.Unmarshal(members["unknown"], &v.reason)
	}
	if err := json.Unmarshal(text, &v.value); err != nil {
		return err
	}
	v.known = true
	return nil
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

func notFinite(f float64) string { return fmt.Sprintf("not finite: %v", f) }
