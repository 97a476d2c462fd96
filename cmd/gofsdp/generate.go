package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/train"
)

// modelFlags are the flags of whoever opens a model for use.
type modelFlags struct {
	Model     string `arg:"" help:"Directory with weights, such as runs/quickstart-0001/model, or a Hub name in the local cache."`
	Precision string `default:"f32" enum:"f32,bf16" help:"What weights and activations compute in: f32 or bf16."`
	Threads   int    `default:"0" help:"Threads that compute; 0 takes all cores."`
	Device    string `default:"auto" enum:"auto,cpu,cuda,sim" help:"What computes: auto, cpu, cuda or sim, as scaling.device says of a run."`
}

// open opens the device that the flags name.
func (f modelFlags) open(a *app) (device.Device, train.Place, error) {
	s := config.Scaling{Workers: 1, Nodes: 1, Threads: f.Threads, ISA: autoISA, Device: f.Device, Graphs: "auto"}
	on, err := choose(s, a.err)
	if err != nil {
		return nil, train.Place{}, byFlag(err)
	}
	dev, err := on.open(s)
	return dev, train.Place{Apart: on.apart(s, fsdp.Mesh{})}, err
}

type generateCommand struct {
	modelFlags
	Prompt      string  `short:"p" help:"Text to continue; - reads standard input."`
	Tokens      int     `short:"n" default:"128" help:"Most tokens to add."`
	Temperature float64 `default:"0.8" help:"0 always takes the likeliest token."`
	TopP        float64 `default:"0.95" help:"Draw from the likeliest tokens that together have this probability."`
	Seed        uint64  `default:"0" help:"The same seed draws the same text."`
}

// check returns what is wrong with the flags.
func (c *generateCommand) check() error {
	var errs []error
	if c.Tokens < 1 {
		errs = append(errs, fmt.Errorf("--tokens: %d is below the least allowed, 1", c.Tokens))
	}
	if !(c.Temperature >= 0) {
		errs = append(errs, fmt.Errorf("--temperature: %v is below the least allowed, 0", c.Temperature))
	}
	if !(c.TopP >= 0 && c.TopP <= 1) {
		errs = append(errs, fmt.Errorf("--top-p: %v is not between 0 and 1", c.TopP))
	}
	return errors.Join(errs...)
}

// Run prints the prompt and its continuation.
func (c *generateCommand) Run(a *app) (err error) {
	if err := c.check(); err != nil {
		return asUser(err)
	}
	if c.Prompt == "-" {
		text, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		c.Prompt = string(text)
	}
	dev, place, err := c.open(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	m, err := train.OpenForUse(c.Model, c.Precision, place, dev, func(o *fsdp.Options, tokens func(string) int) error {
		prompt := max(tokens(c.Prompt), 1) // an empty one begins with end-of-text
		if prompt >= o.Model.MaxPositions {
			return fmt.Errorf("the prompt has %d tokens, which leaves no room in the model's %d positions; shorten it", prompt, o.Model.MaxPositions)
		}
		o.Decoding = train.Decoding(min(prompt+c.Tokens, o.Model.MaxPositions))
		return nil
	})
	if err != nil {
		return byFlag(err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	a.printf("%s", c.Prompt)
	s := train.Sample{Tokens: c.Tokens, Temperature: c.Temperature, TopP: c.TopP}
	err = train.Generate(a.ctx, m.Engine, m.Tokenizer, c.Prompt, s, c.Seed, func(text []byte) { a.printf("%s", text) })
	a.printf("\n")
	return errors.Join(err, a.ctx.Err())
}
