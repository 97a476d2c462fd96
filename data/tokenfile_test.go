package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files of this package anew")

const golden1 = "testdata/format1.tokens"

// goldenTexts are what the golden token file was made from.
var goldenTexts = []string{"the hermit", "", "é", "in\x00her"}

// tokenFileOf makes a token file and returns its path and key.
func tokenFileOf(t testing.TB, p *pairs, texts ...string) (string, [32]byte) {
	t.Helper()
	b, err := newBuilder(documentsOf(t, 1, texts...), p, p.fingerprint(), new(lines).log)
	must(t, err)
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	must(t, err)
	must(t, b.write(t.Context(), f, b.key()))
	must(t, f.Close())
	return path, b.key()
}

// text decodes a document of a token file without its end-of-text.
func text(f *tokenFile, p *pairs, doc int32) string {
	ids := make([]int32, f.length(doc))
	f.copy(ids, doc, 0)
	var b []byte
	for _, id := range ids[:len(ids)-1] {
		b = append(b, p.TokenBytes(id)...)
	}
	if ids[len(ids)-1] != pairsEnd {
		b = append(b, "(no end-of-text)"...)
	}
	return string(b)
}

func TestATokenFileHoldsTheDocuments(t *testing.T) {
	for name, extra := range map[string]int{"in two bytes a token": 0, "in four bytes a token": 1 << 16} {
		t.Run(name, func(t *testing.T) {
			p := newPairs()
			p.extra = extra
			path, key := tokenFileOf(t, p, goldenTexts...)
			f, err := openTokenFile(path, key)
			must(t, err)
			defer f.close()
			first := []int64{2, 0, 2, 2}
			for i, want := range goldenTexts {
				if got := text(f, p, int32(i)); got != want || f.bytes[i] != int64(len(want)) || f.first[i] != first[i] {
					t.Errorf("document %d is %q of %d bytes, the first %d; want %q, %d", i, got, f.bytes[i], f.first[i], want, first[i])
				}
			}
			if f.maxID != 261 || f.endOfText != pairsEnd {
				t.Errorf("ids up to %d, end-of-text %d", f.maxID, f.endOfText)
			}
		})
	}
}

// Replay: go test ./data -run Golden -rewrite, only when format is raised.
func TestTheGoldenTokenFileStaysReadableAndIsStillWritten(t *testing.T) {
	path, key := tokenFileOf(t, newPairs(), goldenTexts...)
	if *rewrite {
		b, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(golden1, b, 0o644))
	}
	f, err := openTokenFile(golden1, key)
	must(t, err)
	defer f.close()
	for i, want := range goldenTexts {
		if got := text(f, newPairs(), int32(i)); got != want {
			t.Errorf("document %d is %q, want %q", i, got, want)
		}
	}
	if fresh, err := os.ReadFile(path); err != nil || !bytes.Equal(fresh, f.mapped) {
		t.Errorf("a new file differs from the golden one (%v)", err)
	}
}

func TestEveryDamagedBitIsNoticed(t *testing.T) {
	path, _ := tokenFileOf(t, newPairs(), goldenTexts...)
	whole, err := os.ReadFile(path)
	must(t, err)
	for at := range whole {
		for bit := range 8 {
			b := bytes.Clone(whole)
			b[at] ^= 1 << bit
			if _, err := parseTokenFile(b); !errors.Is(err, errDamaged) && !errors.Is(err, errNewer) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, at, err)
			}
		}
	}
	for n := range whole {
		if _, err := parseTokenFile(whole[:n:n]); !errors.Is(err, errDamaged) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := parseTokenFile(append(bytes.Clone(whole), 0)); !errors.Is(err, errDamaged) {
		t.Fatalf("one byte more: %v", err)
	}
}

func TestOpeningATokenFileNamesWhatIsWrong(t *testing.T) {
	path, key := tokenFileOf(t, newPairs(), goldenTexts...)
	_, err := openTokenFile(path, [32]byte{1})
	wantError(t, err, path, "damaged", "its key is")
	_, err = openTokenFile(path+".none", key)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file gives %v", err)
	}
	must(t, os.Truncate(path, 5))
	_, err = openTokenFile(path, key)
	wantError(t, err, path, "5 bytes are less than a header")
}

func TestANewerFormatIsRefusedByName(t *testing.T) {
	b := header{width: 2, key: [32]byte{}}.append(nil)
	binary.LittleEndian.PutUint32(b[8:], 2)
	_, err := readHeader(b, headerSize)
	wantError(t, err, "newer format: format 2, this program reads format 1")
}

func FuzzTokenFile(f *testing.F) {
	whole, err := os.ReadFile(golden1)
	must(f, err)
	f.Add(whole, true)
	f.Add(whole[:headerSize], true)
	f.Add(header{width: 4, documents: 1 << 60, tokens: 1 << 62}.append(nil), false)
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		// With the checksums mended the checks behind them are reached.
		if mend && len(b) >= headerSize {
			b = bytes.Clone(b)
			mendSums(b)
		}
		parsed, err := parseTokenFile(b)
		if err != nil {
			return
		}
		// What was accepted can be read as a whole.
		for doc := range parsed.documents {
			parsed.copy(make([]int32, parsed.length(int32(doc))), int32(doc), 0)
		}
		if !mend && !bytes.Equal(parsed.header.append(nil)[:80], b[:80]) {
			t.Errorf("the header is not what was read: %+v", parsed.header)
		}
	})
}

// mendSums makes the checksums of a token file right where its sizes allow.
func mendSums(b []byte) {
	le := binary.LittleEndian
	sum := func() { le.PutUint32(b[headerSize-4:], crc32.Checksum(b[:headerSize-4], castagnoli)) }
	sum()
	h, err := readHeader(b, int64(len(b)))
	if err != nil {
		return
	}
	le.PutUint32(b[72:], crc32.Checksum(b[headerSize:h.indexAt()], castagnoli))
	le.PutUint32(b[76:], crc32.Checksum(b[h.indexAt():], castagnoli))
	sum()
}
