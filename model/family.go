package model

import "strings"

// family is what sets one family of decoders apart from the others. The package knows no more of it than its
// row in families; README.md says what adding one takes besides.
type family struct {
	name    string // config.json's model_type
	class   string // that transformers loads it into
	qkvBias bool   // the query, key and value projections have biases
	qkNorm  bool   // an RMS norm of each query and key head before RoPE

	// What transformers fills in where a file says nothing.
	positions int  // of max_position_embeddings
	headSize  int  // of head_dim; 0: hidden_size / num_attention_heads
	kvHeads   bool // num_key_value_heads is num_attention_heads; false: a file must say it

	window    window // how a file says that attention reaches over the whole document
	evenHeads bool   // transformers wants hidden_size to be a multiple of num_attention_heads
	mlpBias   bool   // a file says that the MLP has no biases
}

// window is how a family's file speaks of sliding windows, of which there are none here.
type window uint8

const (
	switched window = iota // use_sliding_window is false, and then sliding_window and max_window_layers mean nothing
	absent                 // sliding_window is null or not there
)

// The defaults are those of transformers 5.24, configuration_{qwen2,qwen3,llama}.py. Of Qwen it takes 32 for an
// absent number of key and value heads and all heads for null; nobody means either, so a file must say it.
var families = []family{
	{name: "qwen2", class: "Qwen2ForCausalLM", qkvBias: true, positions: 32768, window: switched},
	{name: "qwen3", class: "Qwen3ForCausalLM", qkNorm: true, positions: 32768, headSize: 128, window: switched},
	{name: "llama", class: "LlamaForCausalLM", positions: 2048, kvHeads: true, window: absent, evenHeads: true, mlpBias: true},
}

// familyOf returns the family of that name.
func familyOf(name string) (family, bool) {
	for _, f := range families {
		if f.name == name {
			return f, true
		}
	}
	return family{}, false
}

// familyNames lists the families, with the word before the last one.
func familyNames(word string) string {
	var names []string
	for _, f := range families {
		names = append(names, f.name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + word + " " + names[last]
}
