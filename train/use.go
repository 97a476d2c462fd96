package train

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/data/tokenizer"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

// Ready is a model with its weights on a device, for generation or evaluation.
type Ready struct {
	Engine    *fsdp.Engine
	Tokenizer *tokenizer.Tokenizer
}

// OpenForUse opens a model that has weights and a tokenizer, on a device that is
// of place (its Apart). shape says what the plan is to do; it may count a text's
// tokens. The caller closes it.
func OpenForUse(name, precision string, place Place, dev device.Device, shape func(o *fsdp.Options, tokens func(string) int) error) (m *Ready, err error) {
	src, tok, weights, err := OpenModel(name, "auto")
	if err != nil {
		return nil, err
	}
	if weights == nil {
		return nil, fmt.Errorf("the model %s has no weights: name a directory that has model.safetensors", name)
	}
	defer func() { err = errors.Join(err, weights.Close()) }()
	if tok == nil {
		return nil, fmt.Errorf("%s has no tokenizer.json", src.Dir)
	}
	o := fsdp.Options{Model: src.Config, Type: Settings{Precision: precision}.Type()}
	if err := shape(&o, func(text string) int { return len(tok.Encode(nil, text)) }); err != nil {
		return nil, err
	}
	plan, err := fsdp.NewPlan(o)
	if err != nil {
		return nil, err
	}
	if err := place.fit(plan, dev.Info()); err != nil {
		return nil, err
	}
	e, err := fsdp.NewEngine(plan, dev, fsdp.Comms{})
	if err != nil {
		return nil, err
	}
	if err := SetWeights(e, weights, 0); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &Ready{e, tok}, nil
}

// Close gives back the engine's memory. The device stays open.
func (m *Ready) Close() error { return m.Engine.Close() }
