package data

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Values of Settings with a meaning of their own.
const (
	// GoSource stands in Settings.Path for the .go files of Go's own standard
	// library.
	GoSource = "gosource"
	// FormatText and FormatJSONL are the values of Settings.Format.
	FormatText  = "text"
	FormatJSONL = "jsonl"
	// TokenizerModel stands in Settings.Tokenizer for the tokenizer in the
	// model's directory.
	TokenizerModel = "model"
	// TokenizerTrain stands in Settings.Tokenizer for one that is trained on
	// the training split.
	TokenizerTrain = "train"
)

// Settings say which text is read and how it is cut into packs.
type Settings struct {
	Path           []string `yaml:"path" help:"Directories, globs or files of text; gosource is the .go files of Go's own standard library."`
	Format         string   `yaml:"format" default:"text" enum:"text,jsonl" help:"text: each file is a document; jsonl: each line of a file is a JSON object with a document."`
	TextKey        string   `yaml:"text_key" default:"text" help:"Key of a JSON object's text; used with format: jsonl."`
	Include        []string `yaml:"include" help:"Patterns of the file names that are read in a directory; empty means the usual endings of text and source code, for jsonl *.jsonl; a file that is named itself is always read."`
	MaxBytes       int64    `yaml:"max_bytes" default:"0" min:"0" help:"Bytes of text to use: whole files in sorted order while they fit; 0 means all."`
	Holdout        float64  `yaml:"holdout" default:"0.02" help:"Share of the documents that is held out for evaluation, more than 0 and less than 1."`
	Seed           int64    `yaml:"seed" default:"0" help:"Decides which documents are held out, and the order of documents and packs."`
	SequenceLength int      `yaml:"sequence_length" default:"512" min:"2" help:"Tokens in one pack."`
	Tokenizer      string   `yaml:"tokenizer" default:"model" help:"Path of a tokenizer.json; model is the one in the model's directory, train makes one from the training split."`
	VocabSize      int      `yaml:"vocab_size" default:"4096" min:"257" help:"Entries of the tokenizer that is trained, end-of-text included; used with tokenizer: train."`
	CacheDir       string   `yaml:"cache_dir" help:"Directory of token files and trained tokenizers; empty means gofsdp in the user's cache directory."`
}

// Check returns every mistake that shows without looking at a file. Each error
// begins with its key.
func (s Settings) Check() []error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("data."+key+": "+format, args...))
	}
	if len(s.Path) == 0 {
		bad("path", "no text is named; give directories, globs or files, or %s", GoSource)
	}
	for i, p := range s.Path {
		switch {
		case p == "":
			bad("path", "entry %d is empty", i+1)
		case strings.Contains(p, "**"):
			bad("path", "%q: ** is not supported; name the directory, which is read with all its subdirectories by data.include", p)
		case hasMeta(p) && !validPattern(p):
			bad("path", "%q is not a valid pattern", p)
		}
	}
	if s.Format != FormatText && s.Format != FormatJSONL {
		bad("format", "%q is neither %s nor %s", s.Format, FormatText, FormatJSONL)
	}
	if s.Format == FormatJSONL && s.TextKey == "" {
		bad("text_key", "is empty; name the key of the text in each line's object")
	}
	if s.Format == FormatJSONL && slices.Contains(s.Path, GoSource) {
		bad("path", "%s is text, not %s", GoSource, FormatJSONL)
	}
	for _, p := range s.Include {
		switch {
		case !validPattern(p):
			bad("include", "%q is not a valid pattern", p)
		case strings.ContainsAny(p, `/\`):
			bad("include", "%q: patterns match the file's name alone; leave out the directory", p)
		}
	}
	if s.MaxBytes < 0 {
		bad("max_bytes", "%d is negative; 0 means all", s.MaxBytes)
	}
	if !(s.Holdout > 0 && s.Holdout < 1) {
		bad("holdout", "%v is not more than 0 and less than 1", s.Holdout)
	}
	if s.SequenceLength < 2 {
		bad("sequence_length", "%d is less than 2 tokens", s.SequenceLength)
	}
	if s.Tokenizer == "" {
		bad("tokenizer", "is empty; give the path of a tokenizer.json, %s or %s", TokenizerModel, TokenizerTrain)
	}
	if s.Tokenizer == TokenizerTrain && s.VocabSize < 257 {
		bad("vocab_size", "%d is less than 257: the 256 bytes and end-of-text", s.VocabSize)
	}
	return errs
}

// textPatterns are the endings that a directory is read by where the settings
// name none.
var textPatterns = strings.Fields(`*.txt *.text *.md *.rst *.tex *.org
	*.go *.py *.c *.h *.cc *.cpp *.cxx *.hpp *.cu *.cuh *.rs *.java *.kt *.scala *.js *.jsx *.ts *.tsx *.rb *.php *.cs
	*.swift *.jl *.lua *.pl *.r *.hs *.ml *.sh *.sql *.proto *.html *.css *.yaml *.yml *.toml`)

// include returns the patterns that a directory is read by.
func (s Settings) include() []string {
	switch {
	case len(s.Include) > 0:
		return s.Include
	case s.Format == FormatJSONL:
		return []string{"*.jsonl"}
	}
	return textPatterns
}

// patterns names what include returns, for messages.
func (s Settings) patterns() string {
	if len(s.Include) == 0 && s.Format != FormatJSONL {
		return fmt.Sprintf("the %d usual endings of text and source code (*.txt, *.md, *.go, ...)", len(textPatterns))
	}
	return "the patterns " + strings.Join(s.include(), " ")
}

func validPattern(p string) bool {
	_, err := path.Match(p, "")
	return p != "" && err == nil
}

func hasMeta(p string) bool { return strings.ContainsAny(p, `*?[`) }
