package model

import (
	"errors"
	"strings"
)

// ParseConfig reads a config.json. It takes transformers 4's form and transformers 5's, and fills
// in what transformers fills in. Whatever would change the model's numbers and is not supported is
// refused by name and value; so is every field that it does not know, because a field that nobody
// reads may be one that matters. The error joins all mistakes of the file, each beginning with name
// (the file's, as the user knows it) and the field.
//
// Defaults: transformers 5.24, configuration_*.py of the families.
func ParseConfig(text []byte, name string) (Config, error) {
	f, err := readFields(text, name, "")
	if err != nil {
		return Config{}, err
	}
	c := Config{Family: f.text("model_type", "")}
	of, ok := familyOf(c.Family)
	if !ok {
		// Every other rule depends on the family, so nothing more can be said of the file.
		switch {
		case c.Family != "":
			f.wrong("model_type", "%q is not supported, only %s", c.Family, familyNames("and"))
		case !f.doubted["model_type"]:
			f.wrong("model_type", "is missing: it names the family, %s", familyNames("or"))
		}
		return Config{}, errors.Join(f.errs...)
	}
	readSizes(f, of, &c)
	rope := readRope(f, &c)
	refuseUnsupported(f, of, c)
	f.refuseUnknown()
	for _, m := range c.check() {
		if field, ok := strings.CutPrefix(m.field, "rope_scaling."); ok {
			m.field = rope + field
		}
		if !f.doubted[m.field] {
			f.wrong(m.field, "%s", m.what)
		}
	}
	if len(f.errs) > 0 {
		return Config{}, errors.Join(f.errs...)
	}
	return c, nil
}

func readSizes(f *fields, of family, c *Config) {
	c.Vocab = f.required("vocab_size")
	c.Hidden = f.required("hidden_size")
	c.Layers = f.required("num_hidden_layers")
	c.Heads = f.required("num_attention_heads")
	c.MLP = f.required("intermediate_size")

	if of.kvHeads {
		c.KVHeads = f.integer("num_key_value_heads", c.Heads)
		f.derived("num_key_value_heads", "num_attention_heads")
	} else {
		c.KVHeads = f.required("num_key_value_heads")
	}
	switch {
	case f.has("head_dim"):
		c.HeadSize = f.integer("head_dim", 0)
	case of.headSize > 0:
		c.HeadSize = of.headSize
	case c.Hidden < 1 || c.Heads < 1: // is said of them
		f.doubted["head_dim"] = true
	case c.Hidden%c.Heads == 0:
		c.HeadSize = c.Hidden / c.Heads
	default:
		f.wrong("head_dim", "is missing, and hidden_size %d is no multiple of num_attention_heads %d", c.Hidden, c.Heads)
	}

	c.MaxPositions = f.integer("max_position_embeddings", of.positions)
	c.NormEps = f.number("rms_norm_eps", 1e-6)
	c.InitStd = f.number("initializer_range", 0.02)
	c.Tied = f.boolean("tie_word_embeddings", false)
	c.QKVBias, c.QKNorm = of.qkvBias, of.qkNorm
}

// readRope reads transformers 4's rope_theta and rope_scaling and transformers 5's rope_parameters,
// which holds both. What is said twice must agree. It returns the path of the object that it read.
func readRope(f *fields, c *Config) string {
	outer := f.has("rope_theta")
	c.RopeTheta = f.number("rope_theta", 10000) // transformers' default of all families
	old, now := f.object("rope_scaling"), f.object("rope_parameters")
	if old != nil && now != nil {
		f.wrong("rope_scaling", "is there beside rope_parameters; one of them must go")
	}
	rope := now
	if rope == nil {
		rope = old
	}
	if rope == nil {
		return ""
	}
	inner := rope.number("rope_theta", c.RopeTheta)
	if outer && inner != c.RopeTheta {
		rope.wrong("rope_theta", "%v differs from the file's own rope_theta, %v", inner, c.RopeTheta)
	}
	c.RopeTheta = inner
	kind := rope.text("rope_type", "")
	if older := rope.text("type", kind); kind == "" {
		kind = older
	} else if older != kind {
		rope.wrong("type", "%q differs from rope_type, %q", older, kind)
	}
	rope.only("partial_rotary_factor", "1", "every pair of a head is turned")
	switch kind {
	case "", "default":
	case "llama3":
		c.RopeScaling = &Llama3Scaling{
			Factor:               rope.requiredNumber("factor"),
			LowFreqFactor:        rope.requiredNumber("low_freq_factor"),
			HighFreqFactor:       rope.requiredNumber("high_freq_factor"),
			OriginalMaxPositions: rope.integer("original_max_position_embeddings", c.MaxPositions),
		}
	default:
		rope.wrong("rope_type", "%q is not supported, only default and llama3", kind)
		rope.forget() // the parameters of a kind that is refused are no mistakes of their own
	}
	rope.refuseUnknown()
	f.adopt(rope)
	return rope.where
}

// refuseUnsupported names the fields that would change the numbers, each with the value that does not.
func refuseUnsupported(f *fields, of family, c Config) {
	f.only("hidden_act", `"silu"`, "the MLP's gate is SiLU")
	f.only("attention_dropout", "0", "there is no dropout")
	f.only("use_sliding_window", "false", "attention reaches over the whole document")
	f.only("mlp_bias", "false", "the MLP has no biases")
	f.only("quantization_config", "null", "weights are not quantised")
	f.only("partial_rotary_factor", "1", "every pair of a head is turned")
	f.only("rope_interleaved", "false", "RoPE turns the two halves of a head")
	f.only("use_mrope", "false", "positions are those of text")
	f.only("is_encoder_decoder", "false", "the model is a decoder alone")
	f.only("add_cross_attention", "false", "the model is a decoder alone")
	f.only("chunk_size_feed_forward", "0", "the MLP is computed in one piece")
	if of.qkvBias {
		f.only("attention_bias", "true", "a "+of.name+" always has query, key and value biases")
	} else {
		f.only("attention_bias", "false", "the attention's projections have no biases")
	}
	switch of.window {
	case switched:
		// Only the length of a window that use_sliding_window turns on.
		f.ignore("sliding_window", "max_window_layers")
	case absent:
		f.only("sliding_window", "null", "attention reaches over the whole document")
	}
	if kinds := f.texts("layer_types"); kinds != nil {
		if c.Layers > 0 && len(kinds) != c.Layers {
			f.wrong("layer_types", "has %d entries for num_hidden_layers %d", len(kinds), c.Layers)
		}
		for i, kind := range kinds {
			if kind != "full_attention" {
				f.wrong("layer_types", "entry %d: %q is not supported, only full_attention", i, kind)
				break
			}
		}
	}
	f.ignore(harmless...)
	for _, key := range f.left() {
		if strings.HasSuffix(key, "_token_id") {
			f.ignore(key)
		}
	}
}

// harmless are the fields that transformers or a well-known tool writes and that no number of a
// decoder depends on. Precision is the run's choice, sampling the caller's.
var harmless = []string{
	"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache",
	"_name_or_path", "name_or_path", "_commit_hash", "is_llama_config", "pretraining_tp",
	"_attn_implementation", "attn_implementation", "_attn_implementation_autoset",
	"output_attentions", "output_hidden_states", "return_dict", "return_dict_in_generate", "torchscript",
	"id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
	"tokenizer_class", "prefix", "transformers.js_config", "unsloth_fixed", "unsloth_version",
	"do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
	"max_length", "min_length", "num_beams", "num_return_sequences", "max_new_tokens",
}
