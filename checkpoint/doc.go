// Package checkpoint moves weights between files and engines. Its Hugging Face
// part reads and writes directories that transformers reads and writes:
// config.json, model.safetensors (or shards with an index), and the files of
// the tokenizer and of generation.
//
//	OpenWeights, Weights     weights in: checked against a model.Config, then
//	                         converted to float32 where the caller wants them
//	WriteHuggingFace, Export weights out: a directory that appears whole
//
// It knows parameters by their names and shapes, and layouts of units. It must
// not know training, data or devices, and trusts no file.
package checkpoint
