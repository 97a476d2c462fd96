// Package checkpoint moves weights between files and engines. Its Hugging Face
// part reads and writes directories that transformers reads and writes:
// config.json, model.safetensors (or shards with an index), tokenizer.json.
//
// It knows parameters by their names and shapes, and layouts of units. It must
// not know training, data or devices, and trusts no file.
package checkpoint
