package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// Write writes the tokenizer as a tokenizer.json, indented, that Hugging Face's
// library loads and that gives the same ids there.
func (t *Tokenizer) Write(w io.Writer) error {
	data, err := t.MarshalJSON()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	out.WriteByte('\n')
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("tokenizer: writing a tokenizer.json: %w", err)
	}
	return nil
}

// MarshalJSON returns the tokenizer as a tokenizer.json.
func (t *Tokenizer) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`{"version":"1.0","truncation":null,"padding":null,"added_tokens":[`)
	ids := make([]int32, 0, len(t.vocab.added))
	for id := range t.vocab.added {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for i, id := range ids {
		a := t.vocab.added[id]
		comma(&b, i)
		fmt.Fprintf(&b, `{"id":%d,"content":`, id)
		quote(&b, a.content)
		fmt.Fprintf(&b, `,"single_word":false,"lstrip":false,"rstrip":false,"normalized":%t,"special":%t}`, a.normalized, a.special)
	}
	b.WriteString(`],"normalizer":`)
	if t.nfc {
		b.WriteString(`{"type":"NFC"}`)
	} else {
		b.WriteString(`null`)
	}
	b.WriteString(`,"pre_tokenizer":`)
	t.writePreTokenizer(&b)
	b.WriteString(`,"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false},`)
	fmt.Fprintf(&b, `"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":%t,"vocab":{`, t.ignoreMerges)
	names := make(map[int32]string, len(t.vocab.model))
	for i, m := range t.vocab.model {
		names[m.id] = m.name
		comma(&b, i)
		quote(&b, m.name)
		b.WriteByte(':')
		b.WriteString(strconv.Itoa(int(m.id)))
	}
	b.WriteString(`},"merges":[`)
	for i, s := range t.merges.ranked() {
		comma(&b, i)
		b.WriteByte('[')
		quote(&b, names[s.pair.left()])
		b.WriteByte(',')
		quote(&b, names[s.pair.right()])
		b.WriteByte(']')
	}
	b.WriteString(`]}}`)
	return b.Bytes(), nil
}

func (t *Tokenizer) writePreTokenizer(b *bytes.Buffer) {
	b.WriteString(`{"type":"Sequence","pretokenizers":[`)
	if t.digits {
		b.WriteString(`{"type":"Digits","individual_digits":true},`)
	}
	if t.pattern != GPT2 {
		regex := qwen2Regex
		if t.pattern == Llama3 {
			regex = llama3Regex
		}
		b.WriteString(`{"type":"Split","pattern":{"Regex":`)
		quote(b, regex)
		b.WriteString(`},"behavior":"Isolated","invert":false},`)
	}
	fmt.Fprintf(b, `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":%t}]}`, t.pattern == GPT2)
}

func comma(b *bytes.Buffer, i int) {
	if i > 0 {
		b.WriteByte(',')
	}
}

// quote writes a JSON string. Unlike json.Marshal it leaves < and > readable.
func quote(b *bytes.Buffer, s string) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string into a buffer cannot fail
	b.Truncate(b.Len() - 1)
}
