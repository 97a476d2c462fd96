// Package data turns text into packs: fixed-length sequences of token ids with
// their targets and document boundaries.
//
// The way of a text is: Settings name files; each file is a document; a corpus
// is the list of documents, each checked and hashed; a part of the documents is
// held out; all documents are tokenised once into a token file, which is mapped
// into memory and found again by its content; a Dataset is the view of one split
// that cuts packs; a Sampler says which packs a training step takes.
//
// Everything after the tokeniser is a pure function of (text, tokenizer, seed,
// epoch, sequence length), so that a run can be stopped, resumed and compared.
//
// The package knows tokenizers and files. It must not know devices, models,
// ranks or the optimizer: whoever trains divides a step's packs among ranks.
package data
