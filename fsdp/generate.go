package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/model"
)

// Forget empties all key-value caches, so that new sequences may begin.
func (e *Engine) Forget() { clear(e.cached) }

// Extend appends tokens to each sequence, none where its slice is empty, and
// returns the logits of each sequence's newest token, [Seqs,Vocab]. They stay
// valid until the next Extend. Tokens are taken Prefill at a time while a
// sequence has more than one left. It is an error to go beyond CacheLen.
func (e *Engine) Extend(tokens [][]int32) ([]float32, error) {
	d := e.Plan.Decoding
	if len(tokens) != d.Seqs {
		return nil, fmt.Errorf("fsdp: tokens for %d sequences in a plan of %d", len(tokens), d.Seqs)
	}
	most := 0
	for s, t := range tokens {
		if e.cached[s]+len(t) > d.CacheLen {
			return nil, fmt.Errorf("fsdp: sequence %d has %d tokens and cannot take %d more: the plan caches %d", s, e.cached[s], len(t), d.CacheLen)
		}
		most = max(most, len(t))
	}
	for done := 0; done < most; {
		which, prog, n := 0, &e.Plan.Prefill, d.Prefill
		if most-done == 1 {
			which, prog, n = 1, &e.Plan.Decode, 1
		}
		if err := e.extend(e.Plan.decode[which], prog, n, tokens, done); err != nil {
			return nil, err
		}
		done += n
	}
	return e.logits, nil
}

// extend runs one program over the tokens from done on.
func (e *Engine) extend(in model.DecodeInputs, prog *Program, n int, tokens [][]int32, done int) error {
	ids, pos := e.mail(in.IDs).I32(), e.mail(in.Pos).I32()
	cached, last := e.mail(in.Cached).I32(), e.mail(in.Last).I32()
	clear(ids)
	taken := func(s int) int { return min(max(len(tokens[s])-done, 0), n) }
	for s, t := range tokens {
		cached[s] = int32(e.cached[s])
		last[s] = int32(s*n + max(taken(s)-1, 0))
		copy(ids[s*n:(s+1)*n], t[min(done, len(t)):])
		for i := range n {
			pos[s*n+i] = int32(min(e.cached[s]+i, e.Plan.Decoding.CacheLen-1))
		}
	}
	if err := e.run(prog); err != nil {
		return err
	}
	logits, v := e.mail(e.Plan.logits).F32(), e.Plan.Model.Vocab
	for s := range tokens {
		if taken(s) > 0 {
			copy(e.logits[s*v:(s+1)*v], logits[s*v:])
			e.cached[s] += taken(s)
		}
	}
	return nil
}
