package model

import (
	"fmt"
	"strings"
)

// The names of parameters outside of blocks, as Hugging Face spells them.
const (
	EmbedName = "model.embed_tokens.weight"
	NormName  = "model.norm.weight"
	headName  = "lm_head.weight"
)

// Init says how a parameter begins where no weights are loaded.
type Init uint8

// The beginnings: matrices from a normal distribution, norms at one, biases at
// zero.
const (
	Normal Init = iota
	One
	Zero
)

// Param is one parameter of a model.
type Param struct {
	Name  string // Hugging Face's name
	Shape []int  // row-major; matrices are [out,in]
	Decay bool   // whether weight decay applies: to matrices only
	Init  Init
}

// Len returns the number of elements.
func (p Param) Len() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// Unit is what is sharded, gathered and released together.
type Unit struct {
	Name   string // "embed", "block 0", …, "head", or "embed+head"
	Params []Param
}

// HeadName returns the name of the weights that make logits.
func (c Config) HeadName() string {
	if c.Tied {
		return EmbedName
	}
	return headName
}

// Units returns the model's parameters in units: the embedding, each block,
// and the head with the final norm. Tied, embedding and head are one unit, the
// first, which is used twice.
func (c Config) Units() []Unit {
	embed := matrix(EmbedName, c.Vocab, c.Hidden)
	norm := ones(NormName, c.Hidden)
	units := []Unit{{Name: "embed", Params: []Param{embed}}}
	if c.Tied {
		units[0] = Unit{Name: "embed+head", Params: []Param{embed, norm}}
	}
	for l := range c.Layers {
		units = append(units, Unit{Name: fmt.Sprintf("block %d", l), Params: c.blockParams(l)})
	}
	if !c.Tied {
		units = append(units, Unit{Name: "head", Params: []Param{matrix(headName, c.Vocab, c.Hidden), norm}})
	}
	return units
}

// Params returns all parameters, unit by unit.
func (c Config) Params() []Param {
	var list []Param
	for _, u := range c.Units() {
		list = append(list, u.Params...)
	}
	return list
}

// NumParams counts all elements, tied weights once.
func (c Config) NumParams() int64 {
	var n int64
	for _, p := range c.Params() {
		n += int64(p.Len())
	}
	return n
}

// FLOPsPerToken returns the training work of a token at sequence length seqLen:
// 6·N + 6·L·d·T, where N counts a tied embedding once and an untied look-up not
// at all, d is the width of attention (heads times head size) and attention
// counts as causal; recomputation does not count.
func (c Config) FLOPsPerToken(seqLen int) float64 {
	n := float64(c.NumParams())
	if !c.Tied {
		n -= float64(c.Vocab) * float64(c.Hidden)
	}
	return 6*n + 6*float64(c.Layers)*float64(c.Heads*c.HeadSize)*float64(seqLen)
}

func blockName(layer int) string { return fmt.Sprintf("model.layers.%d.", layer) }

// leaf returns the last part of a dotted name.
func leaf(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

func matrix(name string, out, in int) Param {
	return Param{Name: name, Shape: []int{out, in}, Decay: true}
}

func ones(name string, n int) Param { return Param{Name: name, Shape: []int{n}, Init: One} }

func zeros(name string, n int) Param { return Param{Name: name, Shape: []int{n}, Init: Zero} }

func (c Config) blockParams(layer int) []Param {
	b := blockName(layer)
	q, kv := c.Heads*c.HeadSize, c.KVHeads*c.HeadSize
	list := []Param{
		matrix(b+"self_attn.q_proj.weight", q, c.Hidden),
		matrix(b+"self_attn.k_proj.weight", kv, c.Hidden),
		matrix(b+"self_attn.v_proj.weight", kv, c.Hidden),
		matrix(b+"self_attn.o_proj.weight", c.Hidden, q),
		matrix(b+"mlp.gate_proj.weight", c.MLP, c.Hidden),
		matrix(b+"mlp.up_proj.weight", c.MLP, c.Hidden),
		matrix(b+"mlp.down_proj.weight", c.Hidden, c.MLP),
		ones(b+"input_layernorm.weight", c.Hidden),
		ones(b+"post_attention_layernorm.weight", c.Hidden),
	}
	if c.QKVBias {
		list = append(list, zeros(b+"self_attn.q_proj.bias", q), zeros(b+"self_attn.k_proj.bias", kv), zeros(b+"self_attn.v_proj.bias", kv))
	}
	if c.QKNorm {
		list = append(list, ones(b+"self_attn.q_norm.weight", c.HeadSize), ones(b+"self_attn.k_norm.weight", c.HeadSize))
	}
	return list
}

// HeadUnit returns the index of the unit that holds head and final norm.
func (c Config) HeadUnit() int {
	if c.Tied {
		return 0
	}
	return c.Layers + 1
}
