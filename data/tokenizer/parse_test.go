package tokenizer

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// smallest is a tokenizer.json with the bytes and one merge, for tests to edit.
func smallest() string {
	var vocab strings.Builder
	for i, b := range bytesInAlphabetOrder() {
		var name bytes.Buffer
		quote(&name, string(alphabet[b]))
		fmt.Fprintf(&vocab, "%s:%d,", name.String(), i)
	}
	return `{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,` +
		`"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},` +
		`"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},` +
		`"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,` +
		`"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{` + vocab.String() + `"ab":256},"merges":[["a","b"]]}}`
}

// edit replaces parts of the smallest file: old, new, old, new, ...
func edit(t testing.TB, replacements ...string) string {
	t.Helper()
	s := smallest()
	for i := 0; i < len(replacements); i += 2 {
		if strings.Count(s, replacements[i]) != 1 {
			t.Fatalf("%q is %d times in the smallest file", replacements[i], strings.Count(s, replacements[i]))
		}
		s = strings.Replace(s, replacements[i], replacements[i+1], 1)
	}
	return s
}

func added(id int, content string) string {
	return fmt.Sprintf(`{"id":%d,"content":%q,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`, id, content)
}

func parse(t testing.TB, file string) *Tokenizer {
	t.Helper()
	tok, err := Parse([]byte(file), "test.json")
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

const (
	preTokenizer = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`
	afterSplit   = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}`
)

func TestWhatWouldChangeTheResultIsRefusedByName(t *testing.T) {
	for name, test := range map[string]struct{ old, new, want string }{
		"truncation":                  {`"truncation":null`, `"truncation":{"max_length":5}`, `truncation: {"max_length":5}: supported is null`},
		"padding":                     {`"padding":null`, `"padding":{}`, `padding: {}: supported is null`},
		"another version":             {`"version":"1.0"`, `"version":"2.0"`, `version: "2.0": supported is "1.0"`},
		"no version":                  {`"version":"1.0",`, ``, `version: missing`},
		"another normalizer":          {`"normalizer":null`, `"normalizer":{"type":"NFKC"}`, `normalizer: {"type":"NFKC"}: supported is null or NFC`},
		"a setting of the normalizer": {`"normalizer":null`, `"normalizer":{"type":"NFC","x":1}`, `normalizer.x: 1: a field that is not supported`},
		"no pre-tokenizer":            {preTokenizer, `null`, `pre_tokenizer: null: supported is Sequence or ByteLevel`},
		"another pre-tokenizer":       {preTokenizer, `{"type":"Metaspace"}`, `pre_tokenizer: {"type":"Metaspace"}: supported`},
		"a prefix space":              {preTokenizer, strings.Replace(preTokenizer, `"add_prefix_space":false`, `"add_prefix_space":true`, 1), `pre_tokenizer.add_prefix_space: true: supported is false`},
		"no pattern":                  {preTokenizer, afterSplit, `pre_tokenizer.use_regex: false`},
		"digits in groups": {
			preTokenizer, `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":false},` + preTokenizer + `]}`,
			`pre_tokenizer.pretokenizers[0].individual_digits: false: supported is true`,
		},
		"another expression": {
			preTokenizer, `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+"},"behavior":"Isolated","invert":false},` + afterSplit + `]}`,
			`pre_tokenizer.pretokenizers[0].pattern: {"Regex":"\\s+"}: supported is the regular expression of Qwen 2 or of Llama 3`,
		},
		"another behaviour": {
			preTokenizer, `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"String":" "},"behavior":"Removed","invert":true},` + afterSplit + `]}`,
			`pre_tokenizer.pretokenizers[0].behavior: "Removed": supported is "Isolated"`,
		},
		"two patterns": {
			preTokenizer, `{"type":"Sequence","pretokenizers":[` + preTokenizer + `,` + preTokenizer + `]}`,
			`supported is ByteLevel alone or Split and ByteLevel`,
		},
		"an empty sequence":         {preTokenizer, `{"type":"Sequence","pretokenizers":[]}`, `pre_tokenizer: `},
		"a template that adds":      {`"post_processor":null`, `"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}]}`, `post_processor.single: `},
		"another post-processor":    {`"post_processor":null`, `"post_processor":{"type":"BertProcessing"}`, `post_processor: {"type":"BertProcessing"}`},
		"one hidden in a sequence":  {`"post_processor":null`, `"post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"RobertaProcessing"}]}`, `post_processor.processors[1]: `},
		"another decoder":           {`"decoder":{"type":"ByteLevel"`, `"decoder":{"type":"WordPiece"`, `decoder: {"type":"WordPiece"`},
		"another model":             {`"type":"BPE"`, `"type":"Unigram"`, `model.type: "Unigram": supported is "BPE"`},
		"dropout":                   {`"dropout":null`, `"dropout":0.1`, `model.dropout: 0.1: supported is null`},
		"a prefix of subwords":      {`"continuing_subword_prefix":null`, `"continuing_subword_prefix":"##"`, `model.continuing_subword_prefix: "##"`},
		"a suffix of words":         {`"end_of_word_suffix":null`, `"end_of_word_suffix":"</w>"`, `model.end_of_word_suffix: "</w>"`},
		"byte fallback":             {`"byte_fallback":false`, `"byte_fallback":true`, `model.byte_fallback: true`},
		"a merge without token":     {`[["a","b"]]`, `[["a","c"]]`, `model.merges: entry 0, "a" and "c": these two and "ac" must be in model.vocab`},
		"a merge twice":             {`[["a","b"]]`, `["a b",["a","b"]]`, `model.merges: entry 1, "a" and "b": the pair appears twice`},
		"a merge of three":          {`[["a","b"]]`, `[["a","b","c"]]`, `model.merges: entry 0 must be`},
		"a merge of one":            {`[["a","b"]]`, `["ab"]`, `model.merges: entry 0 must be`},
		"a merge that is a number":  {`[["a","b"]]`, `[7]`, `model.merges: entry 0 must be`},
		"merges that are no list":   {`[["a","b"]]`, `{}`, `model.merges: {}: must be a list`},
		"an id twice":               {`"ab":256`, `"ab":255`, `model.vocab: id 255 belongs to two tokens`},
		"a token twice":             {`"ab":256`, `"ab":256,"ab":257`, `model.vocab: token "ab" appears twice, with ids 256 and 257`},
		"a huge id":                 {`"ab":256`, `"ab":999999999`, `model.vocab: token "ab": id 999999999: supported are ids from 0 to 1048575`},
		"a fraction as id":          {`"ab":256`, `"ab":256.5`, `model.vocab: token "ab": its id must be an integer`},
		"a string as id":            {`"ab":256`, `"ab":"256"`, `model.vocab: token "ab": its id must be an integer`},
		"an empty token":            {`"ab":256`, `"ab":256,"":257`, `model.vocab: id 257: a token must not be empty`},
		"a stripping token":         {`"added_tokens":[]`, `"added_tokens":[` + strings.Replace(added(257, "<x>"), `"lstrip":false`, `"lstrip":true`, 1) + `]`, `added_tokens[0] "<x>": lstrip is true: supported is false`},
		"a single word":             {`"added_tokens":[]`, `"added_tokens":[` + strings.Replace(added(257, "<x>"), `"single_word":false`, `"single_word":true`, 1) + `]`, `single_word is true`},
		"an empty added token":      {`"added_tokens":[]`, `"added_tokens":[` + added(257, "") + `]`, `content must not be empty`},
		"an added token twice":      {`"added_tokens":[]`, `"added_tokens":[` + added(257, "<x>") + `,` + added(258, "<x>") + `]`, `added_tokens[1] "<x>": its content appears twice`},
		"an id the model gave":      {`"added_tokens":[]`, `"added_tokens":[` + added(3, "<x>") + `]`, `added_tokens[0] "<x>": id 3: Hugging Face's library gives it 257`},
		"another id than the model": {`"added_tokens":[]`, `"added_tokens":[` + added(257, "ab") + `]`, `added_tokens[0] "ab": id 257: Hugging Face's library gives it 256, the id in model.vocab`},
		"added tokens of one kind":  {`"added_tokens":[]`, `"added_tokens":{}`, `added_tokens: `},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(edit(t, test.old, test.new)), "test.json")
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), "test.json: ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q\nwant %q", err, test.want)
			}
		})
	}
}

func TestWhatDoesNotChangeTheResultIsAccepted(t *testing.T) {
	want := parse(t, smallest()).Encode(nil, "abba abab 12")
	for name, test := range map[string][]string{
		"as it is":                     nil,
		"merges as strings":            {`[["a","b"]]`, `["a b"]`},
		"a head of merges.txt":         {`[["a","b"]]`, `["#version: 0.2","a b"]`},
		"a post-processor for offsets": {`"post_processor":null`, `"post_processor":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false}`},
		"a template that adds nothing": {`"post_processor":null`, `"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{}}`},
		"an unknown token never used":  {`"unk_token":null`, `"unk_token":"a"`},
		"empty affixes":                {`"continuing_subword_prefix":null`, `"continuing_subword_prefix":""`, `"end_of_word_suffix":null`, `"end_of_word_suffix":""`},
		"no dropout":                   {`"dropout":null`, `"dropout":0.0`},
		"the default of use_regex":     {preTokenizer, `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true}`},
		"a sequence of one":            {preTokenizer, `{"type":"Sequence","pretokenizers":[` + preTokenizer + `]}`},
		"escapes in names":             {`"ab":256`, `"\u0061b":256`},
		"blanks between":               {`"ab":256`, "\n\t\"ab\" :\r\n 256 ", `[["a","b"]]`, ` [ [ "a" , "b" ] ] `},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parse(t, edit(t, test...)).Encode(nil, "abba abab 12"); !slices.Equal(got, want) {
				t.Errorf("ids %v, want %v", got, want)
			}
		})
	}
}

func TestAllMistakesAreReportedAtOnce(t *testing.T) {
	_, err := Parse([]byte(edit(t, `"padding":null`, `"padding":{}`, `"normalizer":null`, `"normalizer":{"type":"NFD"}`, `"dropout":null`, `"dropout":1`, `"ab":256`, `"ab":-1`)), "f")
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"f: padding: ", "f: normalizer: ", "f: model.dropout: ", "f: model.vocab: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
	_, err = Parse([]byte(edit(t, `[["a","b"]]`, `[`+strings.Repeat(`["x","y"],`, 99)+`["x","y"]]`)), "f")
	if err == nil || !strings.Contains(err.Error(), "f: and 80 more mistakes") {
		t.Errorf("a hundred mistakes: %v", err)
	}
}

func TestAnUnknownTokenThatWouldStandForAMissingByteIsRefused(t *testing.T) {
	_, err := Parse([]byte(edit(t, `"unk_token":null`, `"unk_token":"a"`, `"c":66,`, ``)), "f")
	if err == nil || !strings.Contains(err.Error(), `f: model.unk_token: "a"`) || !strings.Contains(err.Error(), "0x63") {
		t.Errorf("got %v", err)
	}
}

func TestAFileThatIsNoTokenizerIsRefusedWithItsPlace(t *testing.T) {
	for file, want := range map[string]string{
		"":                "f:1: ",
		"{\n\n\"a\": }":   "f:3: ",
		"[]":              "f: not a tokenizer.json",
		"{}":              "f: model: missing",
		`{"model":7}`:     "f: not a tokenizer.json",
		"\xff":            "f: not UTF-8",
		`{"model":{}}`:    "f: model.vocab: missing",
		`{"model": null}`: "f: model: missing",
	} {
		if _, err := Parse([]byte(file), "f"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", file, err, want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.json")); err == nil || !strings.Contains(err.Error(), "none.json") {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(smallest()))
	f.Add([]byte(`{"model":{"vocab":{"a":0},"merges":[["a","b"],"a b"]}}`))
	f.Add([]byte(`{"version":"1.0","pre_tokenizer":` + preTokenizer + `,"decoder":{"type":"ByteLevel"},"model":{"vocab":{"a":0,"b":1,"ab":2,"aba":3},"merges":[["a","b"],["ab","a"]]}}`))
	for _, name := range goldenTokenizers {
		data, err := os.ReadFile(filepath.Join("testdata", name+".tokenizer.json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Parse(data, "fuzz")
		if err != nil {
			return
		}
		const text = "It's 12 cafe\u0301s,\n\n\tabba  <|endoftext|>\xff"
		ids := tok.Encode(nil, text)
		for _, id := range ids {
			if id < 0 || int(id) >= tok.VocabSize() {
				t.Fatalf("id %d in a vocabulary of %d", id, tok.VocabSize())
			}
		}
		written, err := tok.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(written, "written")
		if err != nil {
			t.Fatalf("what was written is refused: %v", err)
		}
		if got := again.Encode(nil, text); !slices.Equal(got, ids) {
			t.Fatalf("ids %v, after writing and reading %v", ids, got)
		}
		if !utf8.Valid(written) {
			t.Fatal("what was written is not UTF-8")
		}
	})
}
