package main

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/train"
)

type evalCommand struct {
	modelFlags
	Text           []string `arg:"" help:"Files, directories or globs; all of it is evaluated."`
	CacheDir       string   `placeholder:"DIR" help:"Directory of token files; empty means gofsdp in the user's cache directory."`
	SequenceLength int      `default:"0" help:"Tokens that the model sees at once; 0 takes 512, or the model's positions where they are fewer."`
}

// Run prints loss and bits per byte.
func (c *evalCommand) Run(a *app) (err error) {
	if c.SequenceLength != 0 && c.SequenceLength < 2 {
		return asUser(fmt.Errorf("--sequence-length: %d is below the least allowed, 2", c.SequenceLength))
	}
	dev, place, err := c.open(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	m, err := train.OpenForUse(c.Model, c.Precision, place, dev, func(o *fsdp.Options, _ func(string) int) error {
		if c.SequenceLength == 0 {
			c.SequenceLength = min(512, o.Model.MaxPositions)
		}
		if c.SequenceLength > o.Model.MaxPositions {
			return fmt.Errorf("--sequence-length: %d tokens are more than the model's %d positions (max_position_embeddings)", c.SequenceLength, o.Model.MaxPositions)
		}
		o.Eval, o.SeqLen = true, c.SequenceLength
		o.Seqs = max(2048/c.SequenceLength, 1)
		return nil
	})
	if err != nil {
		return byFlag(err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	text := defaultData(c.Text)
	text.SequenceLength, text.CacheDir = c.SequenceLength, c.CacheDir
	set, err := data.PrepareHeldOut(a.ctx, text, m.Tokenizer, nil)
	if err != nil {
		return a.textError(err)
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	ev, err := train.Evaluate(a.ctx, m.Engine, set.HeldOut, 0)
	if err != nil {
		return err
	}
	a.printf("loss %.4f nats a token over %d tokens, %.3f bits per byte over %d bytes\n", ev.Loss, ev.Targets, ev.BitsPerByte, set.HeldOut.TargetBytes())
	return nil
}
