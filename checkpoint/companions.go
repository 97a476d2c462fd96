package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/safetensors"
)

// companions are the files of a Hugging Face directory that go along with its
// weights: what AutoTokenizer and generate read (transformers 5.24,
// tokenization_utils_base.py and generation/configuration_utils.py).
var companions = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "merges.txt", "tokenizer.model",
	"chat_template.jinja", "chat_template.json",
	"generation_config.json",
}

// writeCompanions writes all files but the weights and their index.
func (x *Export) writeCompanions(dir string) error {
	// Decoding keeps the numbers as they are spelled, and encoding sorts the
	// keys, as transformers does.
	var config map[string]json.RawMessage
	if err := json.Unmarshal(x.Config.JSON(), &config); err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	// The type that transformers 5 loads weights as, and 4 where it is asked for
	// "auto"; both read this, the older, name.
	config["torch_dtype"] = json.RawMessage(`"` + torchTypes[x.Type] + `"`)
	// Null, and not absent: a Llama's end of text is else token 2, as Llama 2 had it.
	for _, key := range specialIDs {
		config[key] = json.RawMessage("null")
	}
	var err error
	if x.From != "" {
		err = x.copyCompanions(dir, config)
	} else if x.Tokenizer != nil {
		err = x.writeTokenizer(dir, config)
	}
	if err != nil {
		return err
	}
	return writeJSON(dir, "config.json", config)
}

var torchTypes = map[safetensors.DType]string{safetensors.F32: "float32", safetensors.BF16: "bfloat16"}

// specialIDs are what config.json says of special tokens. No number of the model
// depends on them, so a model.Config has none.
var specialIDs = []string{"bos_token_id", "eos_token_id", "pad_token_id"}

// copyCompanions copies from x.From what is there, and takes the ids of special
// tokens over into config.
func (x *Export) copyCompanions(dir string, config map[string]json.RawMessage) error {
	for _, name := range companions {
		from := filepath.Join(x.From, name)
		// Not Stat: the end of a link that leads nowhere is missed, not absent.
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := copyFile(filepath.Join(dir, name), from); err != nil {
			return err
		}
	}
	path := filepath.Join(x.From, "config.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var source map[string]json.RawMessage
	if err := json.Unmarshal(text, &source); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, key := range specialIDs {
		if id, ok := source[key]; ok {
			config[key] = id
		} else {
			delete(config, key) // transformers' default was meant, and is again
		}
	}
	return nil
}

// writeTokenizer writes x.Tokenizer and the least that AutoTokenizer needs
// beside it, and tells generation where to stop.
func (x *Export) writeTokenizer(dir string, config map[string]json.RawMessage) error {
	if err := writeFile(dir, "tokenizer.json", x.Tokenizer); err != nil {
		return err
	}
	settings := map[string]any{
		"tokenizer_class":  "PreTrainedTokenizerFast",
		"model_max_length": x.Config.MaxPositions,
		// transformers 4 would else remove blanks before punctuation, and give
		// token_type_ids, which generate refuses.
		"clean_up_tokenization_spaces": false,
		"model_input_names":            []string{"input_ids", "attention_mask"},
	}
	if x.EndOfText != "" {
		id, err := tokenID(x.Tokenizer, x.EndOfText)
		if err != nil {
			return err
		}
		settings["eos_token"] = x.EndOfText
		config["eos_token_id"] = id
		if err := writeJSON(dir, "generation_config.json", map[string]any{"eos_token_id": id}); err != nil {
			return err
		}
	}
	return writeJSON(dir, "tokenizer_config.json", settings)
}

// tokenID finds the id of a token, an added one or one of the vocabulary, in a
// tokenizer.json.
func tokenID(text []byte, token string) (json.RawMessage, error) {
	var file struct {
		Added []struct {
			ID      json.RawMessage `json:"id"`
			Content string          `json:"content"`
		} `json:"added_tokens"`
		Model struct {
			Vocab map[string]json.RawMessage `json:"vocab"`
		} `json:"model"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	for _, t := range file.Added {
		if t.Content == token {
			return t.ID, nil
		}
	}
	if id, ok := file.Model.Vocab[token]; ok {
		return id, nil
	}
	return nil, fmt.Errorf("tokenizer.json has no token %s, the end of text", token)
}

func writeJSON(dir, name string, fields any) error {
	return create(filepath.Join(dir, name), func(out io.Writer) error {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false) // <|endoftext|> stays readable
		e.SetIndent("", "  ")
		return e.Encode(fields)
	})
}

// copyFile copies a regular file, through links: the Hub's cache has links.
func copyFile(to, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", from)
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return create(to, func(out io.Writer) error {
		_, err := io.Copy(out, in)
		return err
	})
}

func writeFile(dir, name string, text []byte) error {
	return create(filepath.Join(dir, name), func(out io.Writer) error {
		_, err := out.Write(text)
		return err
	})
}

// create writes a new file durably.
func create(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Sync(), f.Close())
}
