// Package tokenizer turns text into token ids and back, with the ids that
// Hugging Face's tokenizers library gives for the same tokenizer.json.
//
// It knows byte-level byte-pair encoding: how text is cut into words, how the
// bytes of a word are merged, what added tokens are, how a tokenizer.json
// spells all this, and how a vocabulary is learned from text. It must not know
// where text comes from, how documents are packed into sequences, or anything
// of models.
//
// Supported are the tokenizer.json files of the GPT-2, Qwen 2 and 3, SmolLM2
// and Llama 3 kind. [Parse] refuses by name whatever else a file says that
// would change a result, so a tokenizer that loads is exact.
//
// # Bytes that are not UTF-8
//
// Hugging Face's library takes strings, so it never sees such bytes. Here each
// of them counts as one character that is neither letter, number nor blank,
// and keeps its value: nothing is replaced, and decoding gives the bytes back.
package tokenizer

import (
	"sync"
)

// A Tokenizer is one vocabulary with the rules to use it. It never changes
// after it was made and may be used by many goroutines at once.
type Tokenizer struct {
	rules
	vocab  vocabulary
	merges mergeTable
	// words gives the id of a whole word, nil unless ignoreMerges is set.
	words map[string]int32

	raw        matcher // added tokens found in the text as it is
	normalized matcher // added tokens found after normalization
	endOfText  int32   // -1 when there is none

	// Encoders hold scratch memory and a word cache each. There are never
	// more of them than there were calls to Encode at the same time.
	mu   sync.Mutex
	idle []*encoder
}

// rules are the settings of a tokenizer.json that say how text becomes words
// and words become ids.
type rules struct {
	pattern Pattern
	// digits cuts every numeric character out before the pattern is used.
	digits bool
	// nfc composes text (Unicode normalization form C) first.
	nfc bool
	// ignoreMerges takes a word that is in the vocabulary without merging.
	ignoreMerges bool
}

// endOfTextNames are what known vocabularies call the token after a document,
// best first.
var endOfTextNames = []string{"<|endoftext|>", "<|end_of_text|>", "<|end▁of▁sentence|>", "</s>", "<eos>"}

// finish builds what is derived from the vocabulary.
func (t *Tokenizer) finish() {
	t.raw = newMatcher(&t.vocab, func(a addedToken) (string, bool) { return a.content, !a.normalized })
	t.normalized = newMatcher(&t.vocab, func(a addedToken) (string, bool) {
		if t.nfc {
			return composed(a.content), a.normalized
		}
		return a.content, a.normalized
	})
	if t.ignoreMerges {
		t.words = t.vocab.byBytes()
	}
	t.endOfText = -1
	for _, name := range endOfTextNames {
		if id, ok := t.vocab.ids[name]; ok {
			t.endOfText = id
			break
		}
	}
}

// Encode appends the ids of text to dst and returns the extended slice. It
// adds no token that is not in the text, such as a beginning of text. Added
// tokens, special ones too, are recognised where the text spells them.
func (t *Tokenizer) Encode(dst []int32, text string) []int32 {
	e := t.takeEncoder()
	dst = e.encode(dst, text)
	t.mu.Lock()
	t.idle = append(t.idle, e)
	t.mu.Unlock()
	return dst
}

func (t *Tokenizer) takeEncoder() *encoder {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.idle); n > 0 {
		e := t.idle[n-1]
		t.idle = t.idle[:n-1]
		return e
	}
	return newEncoder(t)
}

// Decode appends the bytes of ids to dst and returns the extended slice.
// Special tokens appear as they are spelled. An id that names no token adds
// nothing. The bytes of a single token need not be whole characters.
func (t *Tokenizer) Decode(dst []byte, ids []int32) []byte {
	for _, id := range ids {
		dst = append(dst, t.vocab.bytes(id)...)
	}
	return dst
}

// TokenBytes returns the bytes that the token stands for, nil when the id
// names no token. The caller must not change them.
func (t *Tokenizer) TokenBytes(id int32) []byte { return t.vocab.bytes(id) }

// VocabSize is the largest id plus one: the number of rows that an embedding
// needs. Some ids below it may name no token.
func (t *Tokenizer) VocabSize() int { return t.vocab.size() }

// ID returns the id of a token by the name that tokenizer.json gives it:
// added tokens as they appear in text, others in the byte-level alphabet,
// where for example "Ġ" stands for a blank.
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.vocab.ids[token]
	return id, ok
}

// Special reports whether the id is that of a special token, one that controls
// a model rather than being part of a text.
func (t *Tokenizer) Special(id int32) bool {
	a, ok := t.vocab.added[id]
	return ok && a.special
}

// EndOfText returns the id of the token that ends a document: <|endoftext|>,
// or what the Llama 3, DeepSeek or SentencePiece families call it. False when
// the vocabulary has none of them.
func (t *Tokenizer) EndOfText() (int32, bool) { return t.endOfText, t.endOfText >= 0 }

// MissingBytes lists the bytes, in rising order, for which the vocabulary has
// no token. Encode drops them, as Hugging Face's library does, so a text with
// such bytes does not survive a round trip. Most vocabularies lack none.
func (t *Tokenizer) MissingBytes() []byte {
	var missing []byte
	for b, id := range t.vocab.byteIDs {
		if id < 0 {
			missing = append(missing, byte(b))
		}
	}
	return missing
}
