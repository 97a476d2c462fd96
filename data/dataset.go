package data

import (
	"fmt"
	"slices"
	"sort"
	"sync"
)

// Masked is the target of a position that predicts nothing.
const Masked = -1

// Pack is one sequence of S positions. Its slices have length S and belong to
// the caller; they may be parts of a micro-batch.
type Pack struct {
	IDs     []int32 // token ids
	Targets []int32 // the id that follows in the same document, or Masked
	Start   []int32 // where in this pack the position's document begins; 0 when it began before
	Pos     []int32 // position id: index − Start
}

// NewPack returns a pack of length positions.
func NewPack(length int) Pack {
	all := make([]int32, 4*length)
	part := func(i int) []int32 { return all[i*length : (i+1)*length : (i+1)*length] }
	return Pack{part(0), part(1), part(2), part(3)}
}

// Pad fills the positions from at on: each holds id, is masked and is a document
// of its own. A whole pack so filled adds nothing to loss and gradient.
func (p Pack) Pad(at int, id int32) {
	for i := at; i < len(p.IDs); i++ {
		p.IDs[i], p.Targets[i], p.Start[i], p.Pos[i] = id, Masked, int32(i), 0
	}
}

// Dataset is one split of a corpus as packs. All its methods may be called
// concurrently.
//
// The stream of an epoch is the split's documents one after another, each its
// tokens and one end-of-text. Pack k of the stream is its positions
// [k·S, (k+1)·S). A training set puts the documents and then the packs into an
// order of the epoch's own, and leaves out the tail that fills no pack: other
// tokens each epoch. A held-out set keeps the natural order and pads the last
// pack, so that every target is there exactly once.
type Dataset struct {
	file    *tokenFile
	docs    []int32 // of file, in natural order
	length  int
	seed    uint64
	shuffle bool
	tokens  int64
	packs   int

	mu     sync.Mutex
	recent []*epoch // the last ones used, latest first
}

// recentEpochs is how many epochs' orders are kept: a step may cross from one to
// the next while another reader still is in the last.
const recentEpochs = 3

// epoch is the order of one epoch.
type epoch struct {
	number int
	docs   []int32 // of the file, in the order of the stream
	starts []int64 // where in the stream each begins, and the stream's end
	packs  []int32 // the stream's pack that stands at each place; nil: as they are
}

// newDataset is a view of the given documents of file.
func newDataset(file *tokenFile, docs []int32, length int, seed uint64, shuffle bool) (*Dataset, error) {
	d := &Dataset{file: file, docs: docs, length: length, seed: seed, shuffle: shuffle}
	for _, doc := range docs {
		d.tokens += file.length(doc)
	}
	packs := d.tokens / int64(length)
	if !shuffle {
		packs = (d.tokens + int64(length) - 1) / int64(length)
	}
	switch {
	case packs == 0:
		return nil, fmt.Errorf("data.sequence_length: the training split has %d tokens, less than one pack of %d; lower data.sequence_length or add text",
			d.tokens, length)
	case packs > 1<<31-1:
		return nil, fmt.Errorf("data.sequence_length: %d packs of %d tokens are more than 2^31-1; raise data.sequence_length", packs, length)
	}
	d.packs = int(packs)
	return d, nil
}

// Documents is the number of documents.
func (d *Dataset) Documents() int { return len(d.docs) }

// Tokens is the number of tokens of all documents, end-of-texts included.
func (d *Dataset) Tokens() int64 { return d.tokens }

// Length is the number of positions of a pack.
func (d *Dataset) Length() int { return d.length }

// Packs is the number of packs of an epoch, which is the same for all epochs.
func (d *Dataset) Packs() int { return d.packs }

// EndOfText is the id that ends each document; it serves to Pad, too.
func (d *Dataset) EndOfText() int32 { return int32(d.file.endOfText) }

// TargetBytes is the number of bytes of text that all targets of a held-out set
// decode to; an end-of-text counts none. The loss summed over all targets,
// divided by this and by ln 2, is bits per byte. The bytes of each document's
// first token are not among them, as nothing predicts it.
func (d *Dataset) TargetBytes() int64 {
	var n int64
	for _, doc := range d.docs {
		n += d.file.bytes[doc] - d.file.first[doc]
	}
	return n
}

// Bytes is the number of bytes that all tokens decode to.
func (d *Dataset) Bytes() int64 {
	var n int64
	for _, doc := range d.docs {
		n += d.file.bytes[doc]
	}
	return n
}

// Valid is the number of targets of a pack that are not masked. It is found from
// the index; no token is read.
func (d *Dataset) Valid(epoch, pack int) int {
	e := d.epoch(epoch)
	from := d.at(e, pack)
	to := min(from+int64(d.length), d.tokens)
	// All positions have a target but the last of each document. The documents
	// that end in (from, to] are those whose successor begins there.
	return int(to-from) - (after(e.starts, to) - after(e.starts, from))
}

// Read fills dst with a pack. It allocates nothing, but where the epoch is not
// among the last ones that were used.
func (d *Dataset) Read(epoch, pack int, dst Pack) {
	if len(dst.IDs) != d.length || len(dst.Targets) != d.length || len(dst.Start) != d.length || len(dst.Pos) != d.length {
		panic(fmt.Sprintf("data: a pack of %d, %d, %d, %d positions was given to a data set of %d",
			len(dst.IDs), len(dst.Targets), len(dst.Start), len(dst.Pos), d.length))
	}
	e := d.epoch(epoch)
	from := d.at(e, pack)
	at := 0
	for j := after(e.starts, from) - 1; at < d.length && j < len(e.docs); j++ {
		doc := e.docs[j]
		skip := max(0, from-e.starts[j])
		n := int(min(d.file.length(doc)-skip, int64(d.length-at)))
		d.file.copy(dst.IDs[at:at+n], doc, skip)
		// The targets are the same tokens one further on, but after the
		// document's last there is none.
		targets := int(min(int64(n), d.file.length(doc)-skip-1))
		d.file.copy(dst.Targets[at:at+targets], doc, skip+1)
		if targets < n {
			dst.Targets[at+targets] = Masked
		}
		for i := range n {
			dst.Start[at+i], dst.Pos[at+i] = int32(at), int32(i)
		}
		at += n
	}
	dst.Pad(at, d.EndOfText())
}

// at is the position in the stream where a pack begins.
func (d *Dataset) at(e *epoch, pack int) int64 {
	if e.packs == nil {
		return int64(pack) * int64(d.length)
	}
	return int64(e.packs[pack]) * int64(d.length)
}

// after is the number of starts that are not after position p.
func after(starts []int64, p int64) int {
	return sort.Search(len(starts), func(i int) bool { return starts[i] > p })
}

// epoch returns the order of an epoch, made where it is not among the last used.
func (d *Dataset) epoch(number int) *epoch {
	if !d.shuffle {
		number = 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.recent, func(e *epoch) bool { return e.number == number })
	if i < 0 {
		if len(d.recent) < recentEpochs {
			d.recent = append(d.recent, nil)
		}
		i = len(d.recent) - 1
		d.recent[i] = d.order(number)
	}
	e := d.recent[i]
	copy(d.recent[1:i+1], d.recent[:i])
	d.recent[0] = e
	return e
}

// order makes the order of an epoch: a function of the documents' natural order,
// the seed, the number and the length alone.
func (d *Dataset) order(number int) *epoch {
	e := &epoch{number: number, docs: d.docs, starts: make([]int64, len(d.docs)+1)}
	if d.shuffle {
		e.docs = slices.Clone(d.docs)
		docs := random{key(d.seed, useDocuments, uint64(number))}
		docs.shuffle(e.docs)
		e.packs = make([]int32, d.packs)
		for i := range e.packs {
			e.packs[i] = int32(i)
		}
		packs := random{key(d.seed, usePacks, uint64(number))}
		packs.shuffle(e.packs)
	}
	for i, doc := range e.docs {
		e.starts[i+1] = e.starts[i] + d.file.length(doc)
	}
	return e
}
