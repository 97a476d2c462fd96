package train

import (
	"context"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/data/tokenizer"
	"github.com/gofsdp/gofsdp/fsdp"
)

// Generate continues prompt by up to s.Tokens tokens and hands each piece of
// text to emit as it comes; pieces need not be whole characters. It stops
// before the end-of-text token. The engine's plan must decode one sequence.
// When ctx ends it returns nil: what was emitted is all.
func Generate(ctx context.Context, e *fsdp.Engine, tok *tokenizer.Tokenizer, prompt string, s Sample, seed uint64, emit func([]byte)) error {
	ids := tok.Encode(nil, prompt)
	eot, ends := tok.EndOfText()
	if len(ids) == 0 {
		if !ends {
			return fmt.Errorf("the prompt is empty and the tokenizer has no end-of-text token to begin with")
		}
		ids = []int32{eot}
	}
	cache := e.Plan.Decoding.CacheLen
	if len(ids) >= cache {
		return fmt.Errorf("a prompt of %d tokens leaves no room in the %d that the model is run with", len(ids), cache)
	}
	if i := slices.IndexFunc(ids, func(id int32) bool { return int(id) >= e.Plan.Model.Vocab }); i >= 0 {
		return fmt.Errorf("the prompt has token %d, the model knows %d", ids[i], e.Plan.Model.Vocab)
	}
	e.Forget()
	c := chooser{temperature: s.Temperature, topP: s.TopP, seed: seed}
	next, used := ids, 0
	for n := 0; n < s.Tokens && used+len(next) <= cache && ctx.Err() == nil; n++ {
		logits, err := e.Extend([][]int32{next})
		if err != nil {
			return err
		}
		used += len(next)
		id := c.choose(logits)
		if ends && id == eot {
			return nil
		}
		emit(tok.TokenBytes(id))
		next = []int32{id}
	}
	return nil
}
