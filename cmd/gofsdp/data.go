package main

import (
	"fmt"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/data/tokenizer"
	"github.com/gofsdp/gofsdp/record"
)

type dataCommand struct {
	Tokenizer tokenizerCommand `cmd:"" help:"Train a byte-level BPE tokenizer on text and write it as a tokenizer.json."`
}

type tokenizerCommand struct {
	Text      []string `arg:"" help:"Files, directories or globs; gosource is Go's standard library."`
	Out       string   `short:"o" default:"tokenizer.json" help:"File to write."`
	VocabSize int      `default:"4096" help:"Entries, end-of-text included."`
	Pattern   string   `default:"qwen2" enum:"qwen2,gpt2,llama3" help:"How text is cut into words: qwen2, gpt2 or llama3."`
	MaxBytes  int64    `default:"0" help:"Most bytes of text to learn from; 0 takes all."`
}

// defaultData returns the settings of a text that is named on the command
// line.
func defaultData(path []string) data.Settings {
	var cfg config.Config
	config.Bind(&cfg)
	cfg.Data.Path = path
	return cfg.Data
}

// Run trains and writes.
func (c *tokenizerCommand) Run(a *app) error {
	if err := vacant(c.Out); err != nil {
		return asUser(err)
	}
	if c.VocabSize < 257 {
		return asUser(fmt.Errorf("--vocab-size: %d is less than 257: the 256 bytes and end-of-text", c.VocabSize))
	}
	text := defaultData(c.Text)
	text.MaxBytes = c.MaxBytes
	texts, err := data.Texts(a.ctx, text)
	if err != nil {
		return a.textError(err)
	}
	tok, err := tokenizer.Train(texts, tokenizer.Options{VocabSize: c.VocabSize, Pattern: tokenizer.Pattern(c.Pattern)})
	if err != nil {
		return asUser(err)
	}
	file, err := tok.MarshalJSON()
	if err != nil {
		return err
	}
	if err := record.WriteFileAtomic(c.Out, append(file, '\n'), 0o644); err != nil {
		return asUser(err)
	}
	a.printf("wrote %s: %d entries\n", c.Out, tok.VocabSize())
	return nil
}
