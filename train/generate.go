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
// When ctx ends, of any rank, it returns context.Canceled or ctx's error: what was
// emitted is all. A model whose weights are not numbers is another.
func Generate(ctx context.Context, e *fsdp.Engine, tok *tokenizer.Tokenizer, prompt string, s Sample, seed uint64, emit func([]byte)) error {
	cache := e.Plan.Decoding.CacheLen
	next, err := promptTokens(tok, prompt, cache, e.Plan.Model.Vocab)
	if err != nil {
		return err
	}
	eot, ends := tok.EndOfText()
	e.Forget()
	c := chooser{temperature: s.Temperature, topP: s.TopP, seed: seed}
	used := 0
	for n := 0; n < s.Tokens && used+len(next) <= cache; n++ {
		if stop, err := wished(ctx, e); err != nil || stop {
			return stopped(ctx, err)
		}
		logits, err := e.Extend([][]int32{next})
		if err != nil {
			return err
		}
		used += len(next)
		if !finite(float64(slices.Max(logits))) {
			return fmt.Errorf("the model gives %v as a logit: its weights are not finite, or overflow", slices.Max(logits))
		}
		id := c.choose(logits)
		if ends && id == eot {
			return nil
		}
		emit(tok.TokenBytes(id))
		next = []int32{id}
	}
	return nil
}

// promptTokens encodes a prompt, an empty one as end-of-text. It fails where the
// prompt fills the cache or has a token beyond the vocabulary.
func promptTokens(tok *tokenizer.Tokenizer, prompt string, cache, vocab int) ([]int32, error) {
	ids := tok.Encode(nil, prompt)
	if len(ids) == 0 {
		eot, ok := tok.EndOfText()
		if !ok {
			return nil, fmt.Errorf("the prompt is empty and the tokenizer has no end-of-text token to begin with")
		}
		ids = []int32{eot}
	}
	if len(ids) >= cache {
		return nil, fmt.Errorf("the prompt has %d tokens, which leaves no room in the %d that the model sees at once; shorten it", len(ids), cache)
	}
	if i := slices.IndexFunc(ids, func(id int32) bool { return int(id) >= vocab }); i >= 0 {
		return nil, fmt.Errorf("the prompt has token %d, the model's vocabulary has %d: this is not the model's tokenizer", ids[i], vocab)
	}
	return ids, nil
}
