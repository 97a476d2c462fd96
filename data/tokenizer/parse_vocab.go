package tokenizer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// vocab reads model.vocab, an object of tokens and ids. It returns the tokens
// by rising id and the ids by name.
func (c *checker) vocab(raw json.RawMessage) ([]modelToken, map[string]int32) {
	s := jsonScanner{text: string(raw)}
	if !s.take('{') {
		c.errorf("model.vocab", "%s: must be an object of tokens and ids", short(raw))
		return nil, nil
	}
	tokens := make([]modelToken, 0, len(raw)/20)
	for !s.take('}') {
		token, _ := s.str() // a key is a string: the file is valid JSON
		s.take(':')
		id, ok := s.integer()
		switch {
		case !ok:
			c.errorf("model.vocab", "token %q: its id must be an integer", token)
			return nil, nil
		case id < 0 || id >= maxVocab:
			c.errorf("model.vocab", "token %q: id %d: supported are ids from 0 to %d", token, id, maxVocab-1)
		case token == "":
			c.errorf("model.vocab", "id %d: a token must not be empty", id)
		default:
			tokens = append(tokens, modelToken{token, int32(id)})
		}
		s.take(',')
	}
	slices.SortStableFunc(tokens, func(a, b modelToken) int { return cmp.Compare(a.id, b.id) })
	ids := make(map[string]int32, len(tokens))
	for i, m := range tokens {
		if other, twice := ids[m.name]; twice {
			c.errorf("model.vocab", "token %q appears twice, with ids %d and %d", m.name, other, m.id)
		}
		ids[m.name] = m.id
		if i > 0 && tokens[i-1].id == m.id {
			c.errorf("model.vocab", "id %d belongs to two tokens, %q and %q", m.id, tokens[i-1].name, m.name)
		}
	}
	return tokens, ids
}

// merges reads model.merges: a list of pairs, or of strings with a blank
// between the two tokens.
func (c *checker) merges(raw json.RawMessage, v *vocabulary) mergeTable {
	const path = "model.merges"
	s := jsonScanner{text: string(raw)}
	if !s.take('[') {
		c.errorf(path, "%s: must be a list", short(raw))
		return mergeTable{}
	}
	table := newMergeTable(strings.Count(s.text, ",") + 1)
	var joined []byte
	for rank := 0; !s.take(']'); s.take(',') {
		left, right, ok := s.merge()
		if !ok {
			c.errorf(path, `entry %d must be ["a", "b"] or "a b"`, rank)
			return mergeTable{}
		}
		if rank == 0 && strings.HasPrefix(left, "#version") {
			continue // the head of an old merges.txt, carried along
		}
		joined = append(append(joined[:0], left...), right...)
		a, aOK := v.ids[left]
		b, bOK := v.ids[right]
		id, ok := v.ids[string(joined)]
		switch {
		case !aOK || !bOK || !ok:
			c.errorf(path, "entry %d, %q and %q: these two and %q must be in model.vocab", rank, left, right, joined)
		case !table.add(pairOf(a, b), mergeOf(rank, id)):
			c.errorf(path, "entry %d, %q and %q: the pair appears twice", rank, left, right)
		}
		rank++
	}
	return table
}

// merge reads one entry of model.merges.
func (s *jsonScanner) merge() (left, right string, ok bool) {
	if !s.take('[') {
		both, ok := s.str()
		left, right, found := strings.Cut(both, " ")
		return left, right, ok && found && !strings.Contains(right, " ")
	}
	left, ok1 := s.str()
	s.take(',')
	right, ok2 := s.str()
	return left, right, ok1 && ok2 && s.take(']')
}

// addedTokens reads added_tokens. Hugging Face's library takes the model's id if
// the model has the token, and otherwise numbers the tokens itself, from the
// number of the model's tokens on. The ids in the file must agree with that.
func (c *checker) addedTokens(raw json.RawMessage, model []modelToken, ids map[string]int32, nfc bool) map[int32]addedToken {
	var tokens []struct {
		ID         int64  `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	}
	if raw == nil {
		return nil
	}
	if err := json.Unmarshal(raw, &tokens); err != nil {
		c.errorf("added_tokens", "%v", err)
		return nil
	}
	added := make(map[int32]addedToken, len(tokens))
	contents := make(map[string]bool, len(tokens))
	next := int32(len(model))
	for i, a := range tokens {
		path := fmt.Sprintf("added_tokens[%d] %q", i, a.Content)
		for _, flag := range []struct {
			name string
			set  bool
		}{{"single_word", a.SingleWord}, {"lstrip", a.LStrip}, {"rstrip", a.RStrip}} {
			if flag.set {
				c.errorf(path, "%s is true: supported is false", flag.name)
			}
		}
		spelling := a.Content
		if a.Normalized && nfc {
			spelling = composed(spelling)
		}
		switch {
		case a.ID < 0 || a.ID >= maxVocab:
			c.errorf(path, "id %d: supported are ids from 0 to %d", a.ID, maxVocab-1)
			continue
		case a.Content == "":
			c.errorf(path, "content must not be empty")
		case contents[spelling]:
			c.errorf(path, "its content appears twice")
		}
		contents[spelling] = true
		id := int32(a.ID)
		want, inModel := ids[a.Content]
		if !inModel {
			want = next
			next++
		}
		if id != want {
			c.errorf(path, "id %d: Hugging Face's library gives it %d, the %s", id, want,
				map[bool]string{true: "id in model.vocab", false: "next one after the model's tokens and those added before"}[inModel])
		} else if i, taken := slices.BinarySearchFunc(model, id, byID); taken && !inModel {
			c.errorf(path, "id %d: model.vocab gives it to %q", id, model[i].name)
		}
		added[id] = addedToken{content: a.Content, special: a.Special, normalized: a.Normalized}
	}
	return added
}

func byID(m modelToken, id int32) int { return cmp.Compare(m.id, id) }

// A jsonScanner walks over text that encoding/json found valid.
type jsonScanner struct {
	text string
	i    int
}

// take skips blanks and, if it comes next, the character b.
func (s *jsonScanner) take(b byte) bool {
	for s.i < len(s.text) {
		switch s.text[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
			continue
		case b:
			s.i++
			return true
		}
		return false
	}
	return false
}

// str reads a string. One without escapes is a part of the text, not a copy.
func (s *jsonScanner) str() (string, bool) {
	if !s.take('"') {
		return "", false
	}
	start, escaped := s.i, false
	for s.i < len(s.text) && s.text[s.i] != '"' {
		if s.text[s.i] == '\\' {
			escaped = true
			s.i++
		}
		s.i++
	}
	out := s.text[start:s.i]
	s.i++
	if escaped {
		if err := json.Unmarshal([]byte(s.text[start-1:s.i]), &out); err != nil {
			return "", false
		}
	}
	return out, true
}

// integer reads a number without fraction or exponent.
func (s *jsonScanner) integer() (int64, bool) {
	s.take(0) // blanks
	start := s.i
	for s.i < len(s.text) && strings.IndexByte("-0123456789", s.text[s.i]) >= 0 {
		s.i++
	}
	n, err := strconv.ParseInt(s.text[start:s.i], 10, 64)
	if s.i < len(s.text) && strings.IndexByte(".eE", s.text[s.i]) >= 0 {
		return 0, false
	}
	return n, err == nil
}
