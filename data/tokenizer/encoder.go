package tokenizer

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
)

// An encoder is what one call of Encode needs for itself.
type encoder struct {
	t     *Tokenizer
	m     merger
	seed  maphash.Seed
	cache []cachedWord
	word  func(string) // e.addWord, made once
	dst   []int32
}

// A cachedWord is a short word with its ids, 64 bytes in all. Longer words are
// rare and merged anew each time.
type cachedWord struct {
	bytes  [22]byte
	length uint8 // 0 marks a free slot
	count  uint8
	ids    [10]int32
}

// cacheSlots bounds the cache to 2 MiB. A word overwrites the one that was in
// its slot: text repeats its frequent words so soon that this is enough.
const cacheSlots = 1 << 15

func newEncoder(t *Tokenizer) *encoder {
	e := &encoder{t: t, seed: maphash.MakeSeed(), cache: make([]cachedWord, cacheSlots)}
	e.word = e.addWord
	return e
}

func (e *encoder) encode(dst []int32, text string) []int32 {
	e.dst = dst
	e.t.raw.cut(text, e.addNormalized, e.addToken)
	dst, e.dst = e.dst, nil
	return dst
}

// addNormalized takes the text between added tokens.
func (e *encoder) addNormalized(text string) {
	if e.t.nfc {
		text = composed(text)
	}
	e.t.normalized.cut(text, e.addPlain, e.addToken)
}

func (e *encoder) addToken(id int32) { e.dst = append(e.dst, id) }

func (e *encoder) addPlain(text string) { e.t.eachWord(text, e.word) }

func (e *encoder) addWord(word string) {
	if len(word) > len(cachedWord{}.bytes) {
		e.dst = append(e.dst, e.merged(word)...)
		return
	}
	slot := &e.cache[maphash.String(e.seed, word)%cacheSlots]
	if string(slot.bytes[:slot.length]) == word {
		e.dst = append(e.dst, slot.ids[:slot.count]...)
		return
	}
	ids := e.merged(word)
	e.dst = append(e.dst, ids...)
	if len(ids) <= len(slot.ids) {
		slot.length = uint8(copy(slot.bytes[:], word))
		slot.count = uint8(copy(slot.ids[:], ids))
	}
}

// merged returns the ids of a word, valid until the next call.
func (e *encoder) merged(word string) []int32 {
	e.m.ids = e.m.ids[:0]
	if id, ok := e.t.words[word]; ok {
		e.m.ids = append(e.m.ids, id)
		return e.m.ids
	}
	for i := range len(word) {
		if id := e.t.vocab.byteIDs[word[i]]; id >= 0 {
			e.m.ids = append(e.m.ids, id)
		}
	}
	return e.m.apply(&e.t.merges)
}

// A matcher finds added tokens: the leftmost, and of those the longest.
type matcher struct {
	byFirst [256][]match // by first byte, longest first
	first   int          // the first byte if all tokens share it, else -1
	empty   bool
}

type match struct {
	content string
	id      int32
}

// newMatcher takes the added tokens for which spell reports true, as it
// spells them.
func newMatcher(v *vocabulary, spell func(addedToken) (string, bool)) matcher {
	m := matcher{first: -1, empty: true}
	for id, a := range v.added {
		content, ok := spell(a)
		if !ok {
			continue
		}
		b := content[0]
		if m.empty {
			m.first, m.empty = int(b), false
		} else if m.first != int(b) {
			m.first = -1
		}
		m.byFirst[b] = append(m.byFirst[b], match{content, id})
	}
	for _, l := range m.byFirst {
		slices.SortFunc(l, func(a, b match) int {
			return cmp.Or(len(b.content)-len(a.content), cmp.Compare(a.content, b.content))
		})
	}
	return m
}

// cut calls text with each stretch between tokens that is not empty, and token
// with each token, in order.
func (m *matcher) cut(s string, text func(string), token func(int32)) {
	from := 0
	for i := 0; i < len(s) && !m.empty; {
		if m.first >= 0 {
			skip := strings.IndexByte(s[i:], byte(m.first))
			if skip < 0 {
				break
			}
			i += skip
		}
		found := match{}
		for _, c := range m.byFirst[s[i]] {
			if strings.HasPrefix(s[i:], c.content) {
				found = c
				break
			}
		}
		if found.content == "" {
			i++
			continue
		}
		if from < i {
			text(s[from:i])
		}
		token(found.id)
		i += len(found.content)
		from = i
	}
	if from < len(s) {
		text(s[from:])
	}
}
