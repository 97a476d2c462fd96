package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
)

// rows are what training steps learn: each has a token more than a sequence.
// Inputs are all but its last, targets all but its first.
type rows struct {
	tokens []int32
	length int // of a row
}

// row returns the i-th; after the last comes the first.
func (r rows) row(i int) []int32 {
	at := i % (len(r.tokens) / r.length) * r.length
	return r.tokens[at : at+r.length]
}

// randomRows are n rows for sequences of that many tokens.
func randomRows(n, seqLen, vocab int) rows {
	r := rows{make([]int32, n*(seqLen+1)), seqLen + 1}
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range r.tokens {
		r.tokens[i] = int32(rng.IntN(vocab))
	}
	return r
}

// readRows reads a file of int32, little-endian, that is nothing but rows.
func readRows(path string, seqLen, vocab int) (rows, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return rows{}, err
	}
	r := rows{make([]int32, len(text)/4), seqLen + 1}
	if len(text) == 0 || len(text)%(4*r.length) != 0 {
		return rows{}, fmt.Errorf("%s has %d bytes, which are no rows of %d tokens of 4 bytes each", path, len(text), r.length)
	}
	for i := range r.tokens {
		r.tokens[i] = int32(binary.LittleEndian.Uint32(text[4*i:]))
		if t := r.tokens[i]; t < 0 || int(t) >= vocab {
			return rows{}, fmt.Errorf("%s: row %d has token %d at %d, but the model's vocabulary has %d", path, i/r.length, t, i%r.length, vocab)
		}
	}
	return r, nil
}
