package tokenizer

import "unicode/utf8"

// maxVocab bounds ids, so that a file with one huge id does not cost memory.
// The largest vocabularies in use have about 2^18 entries.
const maxVocab = 1 << 20

// alphabet spells each byte as one printable character, the way GPT-2's
// encoder.py (github.com/openai/gpt-2, src/encoder.py) defined it: printable
// Latin-1 characters stand for themselves, the others are numbered from U+0100.
var alphabet, alphabetBytes = func() (spell [256]rune, bytes map[rune]byte) {
	bytes = make(map[rune]byte, 256)
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if !('!' <= r && r <= '~' || 0xA1 <= r && r <= 0xAC || 0xAE <= r) {
			r = next
			next++
		}
		spell[b] = r
		bytes[r] = byte(b)
	}
	return spell, bytes
}()

// spelled writes bytes in the byte-level alphabet.
func spelled(b []byte) string {
	out := make([]byte, 0, len(b)+len(b)/2)
	for _, c := range b {
		out = utf8.AppendRune(out, alphabet[c])
	}
	return string(out)
}

// appendUnspelled appends the bytes that a token of the byte-level alphabet
// stands for. A token with any other character stands for itself.
func appendUnspelled(dst []byte, token string) []byte {
	start := len(dst)
	for _, r := range token {
		b, ok := alphabetBytes[r]
		if !ok {
			return append(dst[:start], token...)
		}
		dst = append(dst, b)
	}
	return dst
}

// An addedToken is found in the text before it is cut into words.
type addedToken struct {
	content string
	special bool
	// normalized tokens are looked for after normalization, in what the
	// other added tokens left over.
	normalized bool
}

// A vocabulary maps tokens to ids and ids to bytes.
type vocabulary struct {
	// ids has every token under its name in the file, added ones too.
	ids map[string]int32
	// model is the part of ids that the file's model.vocab lists, by rising id.
	model []modelToken
	added map[int32]addedToken
	// The bytes of token id are text[starts[id]:starts[id+1]].
	text   []byte
	starts []uint32
	// byteIDs is the token of each single byte, -1 for none.
	byteIDs [256]int32
}

type modelToken struct {
	name string
	id   int32
}

// newVocabulary takes the model's tokens by rising id, the same by name, and
// the added tokens. A token that is in both has the same id in both. It keeps
// what it is given, and completes ids.
func newVocabulary(model []modelToken, ids map[string]int32, added map[int32]addedToken) vocabulary {
	v := vocabulary{ids: ids, model: model, added: added}
	size := 0
	if len(model) > 0 {
		size = int(model[len(model)-1].id) + 1
	}
	for id, a := range added {
		v.ids[a.content] = id
		size = max(size, int(id)+1)
	}
	for b := range v.byteIDs {
		v.byteIDs[b] = -1
		if id, ok := v.ids[string(alphabet[b])]; ok {
			v.byteIDs[b] = id
		}
	}
	v.starts = make([]uint32, 1, size+1)
	rest := model
	for id := range int32(size) {
		inModel := len(rest) > 0 && rest[0].id == id
		if a, ok := added[id]; ok {
			v.text = append(v.text, a.content...)
		} else if inModel {
			v.text = appendUnspelled(v.text, rest[0].name)
		}
		if inModel {
			rest = rest[1:]
		}
		v.starts = append(v.starts, uint32(len(v.text)))
	}
	return v
}

func (v *vocabulary) size() int { return len(v.starts) - 1 }

func (v *vocabulary) bytes(id int32) []byte {
	if id < 0 || int(id) >= v.size() {
		return nil
	}
	from, to := v.starts[id], v.starts[id+1]
	if from == to {
		return nil
	}
	return v.text[from:to:to]
}

// byBytes indexes the model's tokens by the bytes they stand for.
func (v *vocabulary) byBytes() map[string]int32 {
	words := make(map[string]int32, len(v.model))
	var buf []byte
	for _, m := range v.model {
		buf = appendUnspelled(buf[:0], m.name)
		if spelled(buf) == m.name {
			words[string(buf)] = m.id
		}
	}
	return words
}
