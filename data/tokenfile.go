package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// The token file, all numbers little-endian:
//
//	header   128 bytes, see header.append
//	tokens   tokens × width bytes: the documents one after another, each its
//	         tokens and one end-of-text
//	padding  zeros to a multiple of 8
//	index    for each document three uint64: tokens with end-of-text; bytes
//	         that the tokens before end-of-text decode to; bytes of the first of
//	         them
//
// The file is found by its key and checked as a whole when it is opened: that
// costs less than hashing the text, which is done on the same occasion.
const (
	tokenMagic  = "GOFSDPTK"
	tokenFormat = 1
	headerSize  = 128
	indexEntry  = 24
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the first part of a token file.
type header struct {
	width     uint32   // bytes of a token: 2 or 4
	documents uint64   // entries of the index
	tokens    uint64   // of all documents, end-of-texts included
	maxID     uint32   // greatest token id that occurs
	endOfText uint32   // id after each document
	key       [32]byte // what the file was made from
	tokensSum uint32   // crc32c of the tokens and the padding
	indexSum  uint32   // crc32c of the index
}

// errDamaged marks a token file that does not hold what it should.
var errDamaged = errors.New("damaged token file")

// errNewer marks a token file of a later format.
var errNewer = errors.New("token file of a newer format")

// append adds the header's 128 bytes to b.
func (h header) append(b []byte) []byte {
	at := len(b)
	le := binary.LittleEndian
	b = append(b, tokenMagic...)
	b = le.AppendUint32(b, tokenFormat)
	b = le.AppendUint32(b, h.width)
	b = le.AppendUint64(b, h.documents)
	b = le.AppendUint64(b, h.tokens)
	b = le.AppendUint32(b, h.maxID)
	b = le.AppendUint32(b, h.endOfText)
	b = append(b, h.key[:]...)
	b = le.AppendUint32(b, h.tokensSum)
	b = le.AppendUint32(b, h.indexSum)
	b = append(b, make([]byte, at+headerSize-4-len(b))...)
	return le.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// readHeader reads the header of a file of size bytes and checks it against
// that size.
func readHeader(b []byte, size int64) (header, error) {
	le := binary.LittleEndian
	if len(b) < headerSize || string(b[:8]) != tokenMagic {
		return header{}, fmt.Errorf("%w: it does not begin with a header", errDamaged)
	}
	if format := le.Uint32(b[8:]); format > tokenFormat {
		return header{}, fmt.Errorf("%w: format %d, this program reads format %d", errNewer, format, tokenFormat)
	}
	if got, want := crc32.Checksum(b[:headerSize-4], castagnoli), le.Uint32(b[headerSize-4:]); got != want {
		return header{}, fmt.Errorf("%w: the header's checksum is %08x, expected %08x", errDamaged, got, want)
	}
	h := header{
		width:     le.Uint32(b[12:]),
		documents: le.Uint64(b[16:]),
		tokens:    le.Uint64(b[24:]),
		maxID:     le.Uint32(b[32:]),
		endOfText: le.Uint32(b[36:]),
		key:       [32]byte(b[40:]),
		tokensSum: le.Uint32(b[72:]),
		indexSum:  le.Uint32(b[76:]),
	}
	switch {
	case h.width != 2 && h.width != 4:
		return header{}, fmt.Errorf("%w: tokens of %d bytes", errDamaged, h.width)
	case h.maxID > math.MaxInt32 || h.endOfText > h.maxID || h.width == 2 && h.maxID > math.MaxUint16:
		return header{}, fmt.Errorf("%w: token ids up to %d, end-of-text %d, in %d bytes", errDamaged, h.maxID, h.endOfText, h.width)
	case h.documents > uint64(size)/indexEntry || h.tokens > uint64(size)/uint64(h.width) || h.size() != size:
		return header{}, fmt.Errorf("%w: %d bytes, not what %d tokens of %d documents take", errDamaged, size, h.tokens, h.documents)
	case h.documents > math.MaxInt32:
		return header{}, fmt.Errorf("%w: %d documents", errDamaged, h.documents)
	}
	return h, nil
}

// indexAt is the offset of the index.
func (h header) indexAt() int64 {
	return (headerSize + int64(h.tokens)*int64(h.width) + 7) &^ 7
}

// size is the length of the whole file.
func (h header) size() int64 { return h.indexAt() + int64(h.documents)*indexEntry }

// tokenFile is an open token file. It is read-only and safe for concurrent use
// until it is closed.
type tokenFile struct {
	header
	mapped []byte
	ids    []byte  // the tokens within mapped
	starts []int64 // start of each document in tokens, and the end of the last
	bytes  []int64 // decoded bytes of each document
	first  []int64 // decoded bytes of each document's first token
}

// openTokenFile maps the file at path and checks it whole: that its key is the
// wanted one, its sizes agree and its checksums are right. A missing file gives
// an error that is fs.ErrNotExist.
func openTokenFile(path string, key [32]byte) (*tokenFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < headerSize {
		return nil, fmt.Errorf("%s: %w: %d bytes are less than a header", path, errDamaged, info.Size())
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot be mapped: %w", path, err)
	}
	t, err := parseTokenFile(mapped)
	if err == nil && t.key != key {
		err = fmt.Errorf("%w: its key is %x", errDamaged, t.key[:8])
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), unix.Munmap(mapped))
	}
	return t, nil
}

// parseTokenFile reads and checks a whole token file. The result keeps b.
func parseTokenFile(b []byte) (*tokenFile, error) {
	h, err := readHeader(b, int64(len(b)))
	if err != nil {
		return nil, err
	}
	t := &tokenFile{header: h, mapped: b, ids: b[headerSize : headerSize+int64(h.tokens)*int64(h.width)]}
	index := b[h.indexAt():]
	if got := crc32.Checksum(index, castagnoli); got != h.indexSum {
		return nil, fmt.Errorf("%w: the index's checksum is %08x, expected %08x", errDamaged, got, h.indexSum)
	}
	if got := crc32.Checksum(b[headerSize:h.indexAt()], castagnoli); got != h.tokensSum {
		return nil, fmt.Errorf("%w: the tokens' checksum is %08x, expected %08x", errDamaged, got, h.tokensSum)
	}
	n := int(h.documents)
	t.starts, t.bytes, t.first = make([]int64, n+1), make([]int64, n), make([]int64, n)
	for i := range n {
		e := index[i*indexEntry:]
		count := binary.LittleEndian.Uint64(e)
		t.bytes[i] = int64(binary.LittleEndian.Uint64(e[8:]))
		t.first[i] = int64(binary.LittleEndian.Uint64(e[16:]))
		if count == 0 || count > h.tokens-uint64(t.starts[i]) {
			return nil, fmt.Errorf("%w: document %d has %d tokens", errDamaged, i, count)
		}
		t.starts[i+1] = t.starts[i] + int64(count)
	}
	if t.starts[n] != int64(h.tokens) {
		return nil, fmt.Errorf("%w: the documents have %d tokens, the header says %d", errDamaged, t.starts[n], h.tokens)
	}
	return t, nil
}

// length is the number of tokens of document doc, end-of-text included.
func (t *tokenFile) length(doc int32) int64 { return t.starts[doc+1] - t.starts[doc] }

// copy fills dst with the tokens of document doc from its token at.
func (t *tokenFile) copy(dst []int32, doc int32, at int64) {
	from := t.starts[doc] + at
	if t.width == 2 {
		src := t.ids[2*from : 2*(from+int64(len(dst)))]
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint16(src[2*i:]))
		}
		return
	}
	src := t.ids[4*from : 4*(from+int64(len(dst)))]
	for i := range dst {
		dst[i] = int32(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// close unmaps the file. Nothing may read from it afterwards.
func (t *tokenFile) close() error {
	if t.mapped == nil {
		return nil
	}
	err := unix.Munmap(t.mapped)
	t.mapped, t.ids = nil, nil
	return err
}
