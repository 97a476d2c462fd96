package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

// Load reads a tokenizer.json.
func Load(path string) (*Tokenizer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return Parse(data, path)
}

// Parse makes a tokenizer of the content of a tokenizer.json. The error, whose
// lines begin with name, has all mistakes of the file at once. Encode does what
// the library does with add_special_tokens left on; what would make the two
// differ is a mistake: truncation, padding, tokens added around a text, and
// normalizers, pre-tokenizers, models, or settings of them, that this package
// does not have.
func Parse(data []byte, name string) (*Tokenizer, error) {
	c := &checker{name: name}
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%s: not UTF-8 text, so not a tokenizer.json", name)
	}
	var file struct {
		Version       json.RawMessage `json:"version"`
		Truncation    json.RawMessage `json:"truncation"`
		Padding       json.RawMessage `json:"padding"`
		AddedTokens   json.RawMessage `json:"added_tokens"`
		Normalizer    json.RawMessage `json:"normalizer"`
		PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
		PostProcessor json.RawMessage `json:"post_processor"`
		Decoder       json.RawMessage `json:"decoder"`
		Model         *modelJSON      `json:"model"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line := 1 + bytes.Count(data[:min(int(syntax.Offset), len(data))], []byte("\n"))
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		return nil, fmt.Errorf("%s: not a tokenizer.json: %w", name, err)
	}
	if file.Model == nil {
		return nil, fmt.Errorf("%s: model: missing, so not a tokenizer.json", name)
	}
	t := &Tokenizer{}
	c.oneOf("version", file.Version, `"1.0"`)
	c.oneOf("truncation", file.Truncation, "null")
	c.oneOf("padding", file.Padding, "null")
	c.normalizer(file.Normalizer, &t.rules)
	c.preTokenizer(file.PreTokenizer, &t.rules)
	c.postProcessor("post_processor", file.PostProcessor)
	if c.kind("decoder", file.Decoder, "ByteLevel") != "" {
		c.object("decoder", file.Decoder, fields{"type": nil, "add_prefix_space": nil, "trim_offsets": nil, "use_regex": nil})
	}
	c.model(file.Model, &t.rules)

	model, ids := c.vocab(file.Model.Vocab)
	added := c.addedTokens(file.AddedTokens, model, ids, t.nfc)
	if len(c.errs) > 0 {
		return nil, c.err()
	}
	t.vocab = newVocabulary(model, ids, added)
	t.merges = c.merges(file.Model.Merges, &t.vocab)
	if missing := t.MissingBytes(); len(missing) > 0 && !isNull(file.Model.UnkToken) {
		c.errorf("model.unk_token", "%s: supported is null when the vocabulary lacks a byte, and it lacks %d, the first is 0x%02X", file.Model.UnkToken, len(missing), missing[0])
	}
	if len(c.errs) > 0 {
		return nil, c.err()
	}
	t.finish()
	return t, nil
}

// modelJSON keeps the two large fields as text: reading them into maps and
// slices of strings would be most of the time to load a file.
type modelJSON struct {
	Type         json.RawMessage `json:"type"`
	Dropout      json.RawMessage `json:"dropout"`
	UnkToken     json.RawMessage `json:"unk_token"`
	Prefix       json.RawMessage `json:"continuing_subword_prefix"`
	Suffix       json.RawMessage `json:"end_of_word_suffix"`
	FuseUnk      json.RawMessage `json:"fuse_unk"`
	ByteFallback json.RawMessage `json:"byte_fallback"`
	IgnoreMerges json.RawMessage `json:"ignore_merges"`
	Vocab        json.RawMessage `json:"vocab"`
	Merges       json.RawMessage `json:"merges"`
}

// A checker collects the mistakes of a file.
type checker struct {
	name string
	errs []error
	more int
}

// maxMistakes bounds the length of an error: a file of another kind has as
// many mistakes as tokens.
const maxMistakes = 20

func (c *checker) errorf(field, format string, args ...any) {
	if len(c.errs) == maxMistakes {
		c.more++
		return
	}
	c.errs = append(c.errs, fmt.Errorf("%s: %s: %s", c.name, field, fmt.Sprintf(format, args...)))
}

func (c *checker) err() error {
	if c.more > 0 {
		c.errs = append(c.errs, fmt.Errorf("%s: and %d more mistakes", c.name, c.more))
	}
	return errors.Join(c.errs...)
}

// short is a value as an error shows it.
func short(raw json.RawMessage) string {
	if raw == nil {
		return "missing"
	}
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return "unreadable"
	}
	if s := b.String(); len(s) <= 150 {
		return s
	}
	return strings.ToValidUTF8(string(b.Bytes()[:150]), "") + "…"
}

func isNull(raw json.RawMessage) bool { return raw == nil || string(raw) == "null" }

// oneOf checks a value against the JSON texts that are supported. "null" also
// allows the field to be missing.
func (c *checker) oneOf(field string, raw json.RawMessage, supported ...string) {
	if isNull(raw) && slices.Contains(supported, "null") || slices.Contains(supported, string(raw)) {
		return
	}
	c.errorf(field, "%s: supported is %s", short(raw), strings.Join(supported, " or "))
}

// fields are the JSON texts supported for each field of an object, nil for
// those that do not matter.
type fields map[string][]string

// object checks an object's fields, also that it has no others.
func (c *checker) object(path string, raw json.RawMessage, supported fields) {
	var have map[string]json.RawMessage
	if err := json.Unmarshal(raw, &have); err != nil {
		c.errorf(path, "%s: must be an object", short(raw))
		return
	}
	for _, key := range sortedKeys(have) {
		if _, known := supported[key]; !known {
			c.errorf(path+"."+key, "%s: a field that is not supported", short(have[key]))
		}
	}
	for _, key := range sortedKeys(supported) {
		if values := supported[key]; values != nil {
			c.oneOf(path+"."+key, have[key], values...)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// kind returns the field "type" of an object, and "" with a mistake noted when
// it is none of those supported. "null" allows there to be no object.
func (c *checker) kind(path string, raw json.RawMessage, supported ...string) string {
	if isNull(raw) {
		if slices.Contains(supported, "null") {
			return "null"
		}
		c.errorf(path, "null: supported is %s", strings.Join(supported, " or "))
		return ""
	}
	var object struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &object); err != nil || !slices.Contains(supported, object.Type) || object.Type == "null" {
		c.errorf(path, "%s: supported is %s", short(raw), strings.Join(supported, " or "))
		return ""
	}
	return object.Type
}

// list returns the elements of an array field of an object.
func (c *checker) list(path string, raw json.RawMessage, key string) []json.RawMessage {
	c.object(path, raw, fields{"type": nil, key: nil})
	var object map[string]json.RawMessage
	var items []json.RawMessage
	if json.Unmarshal(raw, &object) != nil || json.Unmarshal(object[key], &items) != nil {
		c.errorf(path+"."+key, "%s: must be a list", short(object[key]))
	}
	return items
}

func (c *checker) normalizer(raw json.RawMessage, r *rules) {
	if c.kind("normalizer", raw, "null", "NFC") == "NFC" {
		c.object("normalizer", raw, fields{"type": nil})
		r.nfc = true
	}
}

// preTokenizer takes the steps [Digits,] ByteLevel with its own expression, or
// [Digits,] Split with a known expression and ByteLevel without one.
func (c *checker) preTokenizer(raw json.RawMessage, r *rules) {
	const path = "pre_tokenizer"
	steps, paths := []json.RawMessage{raw}, []string{path}
	switch c.kind(path, raw, "Sequence", "ByteLevel") {
	case "":
		return
	case "Sequence":
		steps, paths = c.list(path, raw, "pretokenizers"), nil
		for i := range steps {
			paths = append(paths, fmt.Sprintf("%s.pretokenizers[%d]", path, i))
		}
	}
	var kinds []string
	for i, step := range steps {
		kinds = append(kinds, c.kind(paths[i], step, "Digits", "Split", "ByteLevel"))
	}
	if slices.Contains(kinds, "") {
		return
	}
	if len(kinds) > 0 && kinds[0] == "Digits" {
		c.object(paths[0], steps[0], fields{"type": nil, "individual_digits": {"true"}})
		r.digits = true
		steps, paths, kinds = steps[1:], paths[1:], kinds[1:]
	}
	byteLevel := fields{"type": nil, "add_prefix_space": {"false"}, "trim_offsets": nil, "use_regex": {"true", "null"}}
	switch strings.Join(kinds, " ") {
	case "ByteLevel":
		r.pattern = GPT2
	case "Split ByteLevel":
		r.pattern = c.split(paths[0], steps[0])
		byteLevel["use_regex"] = []string{"false"}
	default:
		c.errorf(path, "%s: supported is ByteLevel alone or Split and ByteLevel, with or without Digits before", short(raw))
		return
	}
	last := len(steps) - 1
	c.object(paths[last], steps[last], byteLevel)
}

// split returns the pattern of a Split step.
func (c *checker) split(path string, raw json.RawMessage) Pattern {
	c.object(path, raw, fields{"type": nil, "pattern": nil, "behavior": {`"Isolated"`}, "invert": {"false"}})
	var step struct{ Pattern json.RawMessage }
	var pattern struct{ Regex *string }
	if json.Unmarshal(raw, &step) == nil && json.Unmarshal(step.Pattern, &pattern) == nil && pattern.Regex != nil {
		switch *pattern.Regex {
		case qwen2Regex:
			return Qwen2
		case llama3Regex:
			return Llama3
		}
	}
	c.errorf(path+".pattern", "%s: supported is the regular expression of Qwen 2 or of Llama 3", short(step.Pattern))
	return ""
}

// postProcessor takes those that leave the ids of a single text as they are.
func (c *checker) postProcessor(path string, raw json.RawMessage) {
	switch c.kind(path, raw, "null", "ByteLevel", "TemplateProcessing", "Sequence") {
	case "Sequence":
		for i, step := range c.list(path, raw, "processors") {
			c.postProcessor(fmt.Sprintf("%s.processors[%d]", path, i), step)
		}
	case "TemplateProcessing":
		var template struct {
			Single []map[string]json.RawMessage `json:"single"`
		}
		if json.Unmarshal(raw, &template) != nil || len(template.Single) != 1 || template.Single[0]["Sequence"] == nil {
			c.errorf(path+".single", "%s: supported is a template that adds nothing to a single text, [{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]", short(raw))
		}
	}
}

func (c *checker) model(m *modelJSON, r *rules) {
	c.oneOf("model.type", m.Type, `"BPE"`, "null")
	c.oneOf("model.dropout", m.Dropout, "null", "0.0", "0")
	c.oneOf("model.continuing_subword_prefix", m.Prefix, "null", `""`)
	c.oneOf("model.end_of_word_suffix", m.Suffix, "null", `""`)
	c.oneOf("model.fuse_unk", m.FuseUnk, "null", "false", "true")
	c.oneOf("model.byte_fallback", m.ByteFallback, "null", "false")
	c.oneOf("model.ignore_merges", m.IgnoreMerges, "null", "false", "true")
	r.ignoreMerges = string(m.IgnoreMerges) == "true"
}
