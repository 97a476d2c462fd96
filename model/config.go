package model

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Config is everything about a decoder that its config.json says and that changes its numbers.
// Sizes are counts of elements. One that ParseConfig, Builtin or Resolve gives out is consistent.
type Config struct {
	Family       string         // one of families, "qwen2" for example: config.json's model_type
	Vocab        int            // rows of the embedding and of the head
	Hidden       int            // width of the residual stream
	Layers       int            // decoder blocks
	Heads        int            // query heads
	KVHeads      int            // key and value heads; divides Heads
	HeadSize     int            // elements of one head, even; Heads·HeadSize may differ from Hidden
	MLP          int            // width of the gated MLP
	MaxPositions int            // longest sequence that the model is meant for
	NormEps      float64        // added to the mean square under each norm's root
	RopeTheta    float64        // base of RoPE's wavelengths
	RopeScaling  *Llama3Scaling // nil: plain RoPE
	QKVBias      bool           // the query, key and value projections have biases: Qwen2
	QKNorm       bool           // an RMS norm of each query and key head before RoPE: Qwen3
	Tied         bool           // the head is the embedding
	InitStd      float64        // initializer_range: standard deviation of fresh matrices
}

// Llama3Scaling divides RoPE's low frequencies by Factor, leaves the high ones alone and blends in
// between, as Llama 3.1 does ("rope_type": "llama3"). A frequency is low where its wavelength
// exceeds OriginalMaxPositions/LowFreqFactor, high where it is below OriginalMaxPositions/HighFreqFactor.
type Llama3Scaling struct {
	Factor               float64
	LowFreqFactor        float64
	HighFreqFactor       float64
	OriginalMaxPositions int
}

// Limits that no real model comes near. They keep every product of sizes, summed over all layers,
// within an int, so that a hostile file cannot wrap one around.
const (
	mostWidth     = 1 << 22
	mostVocab     = 1 << 24
	mostLayers    = 1 << 12
	mostPositions = 1<<31 - 1
)

// mistake is what is wrong with one field of config.json.
type mistake struct{ field, what string }

// check lists what is inconsistent.
func (c Config) check() []mistake {
	var mistakes []mistake
	wrong := func(field, format string, args ...any) {
		mistakes = append(mistakes, mistake{field, fmt.Sprintf(format, args...)})
	}
	of, ok := familyOf(c.Family)
	if !ok {
		wrong("model_type", "%q is not supported, only %s", c.Family, familyNames("and"))
	} else if c.QKVBias != of.qkvBias || c.QKNorm != of.qkNorm {
		wrong("model_type", "a %s has query, key and value biases: %v, and query and key norms: %v", of.name, of.qkvBias, of.qkNorm)
	}
	sound := true
	for _, size := range []struct {
		field       string
		value, most int
	}{
		{"vocab_size", c.Vocab, mostVocab},
		{"hidden_size", c.Hidden, mostWidth},
		{"num_hidden_layers", c.Layers, mostLayers},
		{"num_attention_heads", c.Heads, mostWidth},
		{"num_key_value_heads", c.KVHeads, mostWidth},
		{"head_dim", c.HeadSize, mostWidth},
		{"intermediate_size", c.MLP, mostWidth},
		{"max_position_embeddings", c.MaxPositions, mostPositions},
	} {
		if size.value < 1 || size.value > size.most {
			wrong(size.field, "%d is not between 1 and %d", size.value, size.most)
			sound = false
		}
	}
	if sound {
		if c.Heads%c.KVHeads != 0 {
			wrong("num_key_value_heads", "%d does not divide num_attention_heads, %d", c.KVHeads, c.Heads)
		}
		if c.HeadSize%2 != 0 {
			wrong("head_dim", "%d is odd, and RoPE turns pairs", c.HeadSize)
		}
		if c.Heads*c.HeadSize > mostWidth {
			wrong("head_dim", "%d heads of %d are more than %d elements", c.Heads, c.HeadSize, mostWidth)
		}
		if of.evenHeads && c.Hidden%c.Heads != 0 {
			wrong("hidden_size", "%d is no multiple of num_attention_heads, %d, as transformers wants it of a %s", c.Hidden, c.Heads, of.name)
		}
	}
	if !(c.NormEps > 0 && c.NormEps < 1) {
		wrong("rms_norm_eps", "%v is not between 0 and 1", c.NormEps)
	}
	if !(c.InitStd >= 0 && c.InitStd <= 1) {
		wrong("initializer_range", "%v is not between 0 and 1", c.InitStd)
	}
	if !(c.RopeTheta > 1) {
		wrong("rope_theta", "%v is not above 1", c.RopeTheta)
	}
	if s := c.RopeScaling; s != nil {
		if !(s.Factor >= 1) {
			wrong("rope_scaling.factor", "%v is not 1 or more", s.Factor)
		}
		if !(s.LowFreqFactor > 0 && s.LowFreqFactor < s.HighFreqFactor) {
			wrong("rope_scaling.low_freq_factor", "%v is not between 0 and high_freq_factor, %v", s.LowFreqFactor, s.HighFreqFactor)
		}
		if s.OriginalMaxPositions < 1 || s.OriginalMaxPositions > mostPositions {
			wrong("rope_scaling.original_max_position_embeddings", "%d is not between 1 and %d", s.OriginalMaxPositions, mostPositions)
		}
	}
	return mistakes
}

// JSON writes the config.json that transformers loads as this model and that ParseConfig reads back
// equal. RoPE is written in the form that both transformers 4 and 5 understand. It panics on a
// Config that is not consistent.
func (c Config) JSON() []byte {
	if mistakes := c.check(); mistakes != nil {
		panic(fmt.Sprintf("model: writing an inconsistent configuration: %s: %s", mistakes[0].field, mistakes[0].what))
	}
	no, none := false, float(0)
	of, _ := familyOf(c.Family)
	file := configFile{
		Architectures: []string{of.class},
		Dropout:       &none,
		HiddenAct:     "silu",
		Hidden:        c.Hidden,
		InitStd:       float(c.InitStd),
		MLP:           c.MLP,
		MaxPositions:  c.MaxPositions,
		Family:        c.Family,
		Heads:         c.Heads,
		Layers:        c.Layers,
		KVHeads:       c.KVHeads,
		NormEps:       float(c.NormEps),
		RopeTheta:     float(c.RopeTheta),
		Tied:          c.Tied,
		UseCache:      true,
		Vocab:         c.Vocab,
	}
	// Published Qwen2 files do not name the head size; theirs is always hidden_size / heads.
	if c.Family != "qwen2" || c.HeadSize*c.Heads != c.Hidden {
		file.HeadSize = c.HeadSize
	}
	if !of.qkvBias {
		file.AttentionBias = &no
	}
	if of.mlpBias {
		file.MLPBias = &no
	}
	if of.window == switched {
		file.UseSlidingWindow = &no
	}
	if s := c.RopeScaling; s != nil {
		file.RopeScaling = &ropeFile{
			Factor:               float(s.Factor),
			HighFreqFactor:       float(s.HighFreqFactor),
			LowFreqFactor:        float(s.LowFreqFactor),
			OriginalMaxPositions: s.OriginalMaxPositions,
			Type:                 "llama3",
		}
	}
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("model: writing a configuration: %v", err))
	}
	return append(text, '\n')
}

// configFile is config.json as JSON writes it, in transformers' alphabetical order.
type configFile struct {
	Architectures    []string  `json:"architectures"`
	AttentionBias    *bool     `json:"attention_bias,omitempty"`
	Dropout          *float    `json:"attention_dropout"`
	HeadSize         int       `json:"head_dim,omitempty"`
	HiddenAct        string    `json:"hidden_act"`
	Hidden           int       `json:"hidden_size"`
	InitStd          float     `json:"initializer_range"`
	MLP              int       `json:"intermediate_size"`
	MaxPositions     int       `json:"max_position_embeddings"`
	MLPBias          *bool     `json:"mlp_bias,omitempty"`
	Family           string    `json:"model_type"`
	Heads            int       `json:"num_attention_heads"`
	Layers           int       `json:"num_hidden_layers"`
	KVHeads          int       `json:"num_key_value_heads"`
	NormEps          float     `json:"rms_norm_eps"`
	RopeScaling      *ropeFile `json:"rope_scaling"`
	RopeTheta        float     `json:"rope_theta"`
	Tied             bool      `json:"tie_word_embeddings"`
	UseCache         bool      `json:"use_cache"`
	UseSlidingWindow *bool     `json:"use_sliding_window,omitempty"`
	Vocab            int       `json:"vocab_size"`
}

type ropeFile struct {
	Factor               float  `json:"factor"`
	HighFreqFactor       float  `json:"high_freq_factor"`
	LowFreqFactor        float  `json:"low_freq_factor"`
	OriginalMaxPositions int    `json:"original_max_position_embeddings"`
	Type                 string `json:"rope_type"`
}

// float is a number with a decimal point or an exponent even where it is whole: transformers 5
// refuses an integer where it wants a float.
type float float64

func (f float) MarshalJSON() ([]byte, error) {
	form := byte('f')
	if f != 0 && (f < 1e-4 || f >= 1e15) {
		form = 'g'
	}
	text := strconv.FormatFloat(float64(f), form, -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return []byte(text), nil
}
