package tokenizer

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"unicode/utf8"
)

// Options are the settings of [Train].
type Options struct {
	// VocabSize is the number of entries, special tokens included: 256 for
	// the bytes, the special tokens, and the rest learned.
	VocabSize int
	// Pattern cuts text into words; empty is Qwen2. With Qwen2 text is
	// normalized to NFC, as in the files of that family.
	Pattern Pattern
	// SpecialTokens get the last ids, in this order; nil is <|endoftext|>.
	SpecialTokens []string
}

// TooLittleError says that a text does not teach as many entries as were asked for.
type TooLittleError struct {
	VocabSize int // what was asked for
	Most      int // what the text gives
}

func (e *TooLittleError) Error() string {
	return fmt.Sprintf("tokenizer: the text is too little for a vocabulary of %d entries: after %d no pair of tokens occurs twice; give more text or ask for at most %d",
		e.VocabSize, e.Most, e.Most)
}

// maxTrainedWord bounds the words, in bytes, that training looks at, since
// each merge reads whole words: longer ones, such as prose in a script without
// blanks, are cut there between two characters.
const maxTrainedWord = 256

// Train learns a vocabulary: it counts the words of all texts, then again and
// again joins the neighbouring pair of tokens that occurs most often (of those
// with the same count the one with the lower ids) into a new token. The result
// depends only on the texts and the options, and not on the order of texts.
// The ids are 256 bytes in the order of the byte-level alphabet, what was
// learned in the order of learning, and the special tokens.
//
// An error of texts ends the training and is returned. Where the texts have too
// few pairs that occur twice to fill the vocabulary the error is a
// [TooLittleError].
func Train(texts iter.Seq2[string, error], o Options) (*Tokenizer, error) {
	if o.Pattern == "" {
		o.Pattern = Qwen2
	}
	if o.SpecialTokens == nil {
		o.SpecialTokens = []string{"<|endoftext|>"}
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	t := &Tokenizer{rules: rules{pattern: o.Pattern, nfc: o.Pattern == Qwen2}}
	added := make(map[int32]addedToken)
	for i, s := range o.SpecialTokens {
		added[int32(o.VocabSize-len(o.SpecialTokens)+i)] = addedToken{content: s, special: true}
	}
	model := make([]modelToken, 256)
	ids := make(map[string]int32)
	for i, b := range bytesInAlphabetOrder() {
		model[i] = modelToken{string(alphabet[b]), int32(i)}
		ids[model[i].name] = int32(i)
	}
	t.vocab = newVocabulary(model, ids, added)
	t.finish()

	words, err := countWords(t, texts)
	if err != nil {
		return nil, err
	}
	l := newLearner(words)
	wanted := o.VocabSize - len(o.SpecialTokens)
	var merges []mergeSlot
	for len(model) < wanted {
		best, ok := l.best()
		if !ok {
			return nil, &TooLittleError{VocabSize: o.VocabSize, Most: len(model) + len(o.SpecialTokens)}
		}
		name := model[best.left()].name + model[best.right()].name
		id, known := ids[name]
		if known && int(id) >= wanted {
			return nil, fmt.Errorf("tokenizer: special token %q is also a token that the text teaches; choose another", name)
		}
		if !known {
			id = int32(len(model))
			model = append(model, modelToken{name, id})
			ids[name] = id
		}
		merges = append(merges, mergeSlot{best, mergeOf(len(merges), id)})
		l.join(best, id)
	}
	t.merges = newMergeTable(len(merges))
	for _, m := range merges {
		t.merges.add(m.pair, m.merge)
	}
	t.vocab = newVocabulary(model, ids, added)
	t.finish()
	return t, nil
}

// check returns all mistakes of the options.
func (o *Options) check() error {
	var errs []error
	if o.Pattern != Qwen2 && o.Pattern != GPT2 && o.Pattern != Llama3 {
		errs = append(errs, fmt.Errorf("tokenizer: pattern %q: supported are %s, %s and %s", o.Pattern, Qwen2, GPT2, Llama3))
	}
	if least := 256 + len(o.SpecialTokens); o.VocabSize < least || o.VocabSize > maxVocab {
		errs = append(errs, fmt.Errorf("tokenizer: vocabulary size %d: must be from %d (256 bytes and %d special tokens) to %d", o.VocabSize, least, len(o.SpecialTokens), maxVocab))
	}
	for i, s := range o.SpecialTokens {
		switch {
		case s == "" || !utf8.ValidString(s):
			errs = append(errs, fmt.Errorf("tokenizer: special token %q: must be UTF-8 text and not empty", s))
		case utf8.RuneCountInString(s) == 1 && len(appendUnspelled(nil, s)) == 1:
			errs = append(errs, fmt.Errorf("tokenizer: special token %q: is the name of a byte; choose a longer one", s))
		case slices.Contains(o.SpecialTokens[:i], s):
			errs = append(errs, fmt.Errorf("tokenizer: special token %q: appears twice", s))
		}
	}
	return errors.Join(errs...)
}

// bytesInAlphabetOrder lists the bytes by the character that spells them, the
// order of ids in GPT-2's vocabulary.
func bytesInAlphabetOrder() []byte {
	order := make([]byte, 256)
	for i := range order {
		order[i] = byte(i)
	}
	slices.SortFunc(order, func(a, b byte) int { return int(alphabet[a]) - int(alphabet[b]) })
	return order
}

// A trainedWord is a word of the texts as the tokens learned so far.
type trainedWord struct {
	ids   []int32
	count int64
}

// countWords cuts the texts, without the special tokens in them, into words.
func countWords(t *Tokenizer, texts iter.Seq2[string, error]) ([]trainedWord, error) {
	index := make(map[string]int)
	var words []trainedWord
	count := func(word string) {
		i, ok := index[word]
		if !ok {
			i = len(words)
			ids := make([]int32, len(word))
			for j := range ids {
				ids[j] = t.vocab.byteIDs[word[j]]
			}
			words = append(words, trainedWord{ids: ids})
			index[string([]byte(word))] = i // a copy, so that the text can go
		}
		words[i].count++
	}
	plain := func(text string) {
		if t.nfc {
			text = composed(text)
		}
		t.eachWord(text, func(word string) {
			for len(word) > maxTrainedWord {
				end := maxTrainedWord
				for end > maxTrainedWord-utf8.UTFMax && !utf8.RuneStart(word[end]) {
					end--
				}
				count(word[:end])
				word = word[end:]
			}
			count(word)
		})
	}
	for text, err := range texts {
		if err != nil {
			return nil, fmt.Errorf("tokenizer: reading the texts to train on: %w", err)
		}
		t.raw.cut(text, plain, func(int32) {})
	}
	return words, nil
}
