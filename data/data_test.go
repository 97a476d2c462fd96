package data

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pairs is a small tokenizer for tests: ids below 256 are bytes, 256 is
// end-of-text, the others stand for the listed pairs of bytes, taken greedily.
type pairs struct {
	list  []string
	extra int          // ids that never occur, to reach a vocabulary of four bytes a token
	calls atomic.Int64 // of Encode
	gate  func()       // called by Encode, when set
}

const pairsEnd = 256

func newPairs() *pairs { return &pairs{list: []string{"th", "he", "in", "er", "é"}} }

func (p *pairs) Encode(dst []int32, text string) []int32 {
	p.calls.Add(1)
	if p.gate != nil {
		p.gate()
	}
next:
	for i := 0; i < len(text); i++ {
		for j, pair := range p.list {
			if strings.HasPrefix(text[i:], pair) {
				dst = append(dst, int32(pairsEnd+1+j))
				i++
				continue next
			}
		}
		dst = append(dst, int32(text[i]))
	}
	return dst
}

func (p *pairs) TokenBytes(id int32) []byte {
	switch {
	case id < pairsEnd:
		return []byte{byte(id)}
	case id == pairsEnd:
		return []byte("<|endoftext|>")
	case int(id) <= pairsEnd+len(p.list):
		return []byte(p.list[id-pairsEnd-1])
	}
	return nil
}

func (p *pairs) VocabSize() int           { return pairsEnd + 1 + len(p.list) + p.extra }
func (p *pairs) EndOfText() (int32, bool) { return pairsEnd, true }

func (p *pairs) fingerprint() [32]byte {
	return sha256.Sum256(fmt.Append(nil, p.list, p.extra))
}

// lines collects what is logged.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) log(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprintf(format, args...))
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

// writeFiles makes files in a new directory, by name.
func writeFiles(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

// settings are the defaults for a test, which reads dir.
func settings(dir string) Settings {
	return Settings{
		Path: []string{dir}, Format: FormatText, Include: []string{"*.txt", "*.go"}, Holdout: 0.2, SequenceLength: 16,
		Tokenizer: TokenizerModel, VocabSize: 300,
	}
}

// documentsOf writes texts to files and scans them. The held-out ones are the
// last n.
func documentsOf(t testing.TB, heldOut int, texts ...string) []document {
	t.Helper()
	files := map[string]string{}
	for i, text := range texts {
		files[fmt.Sprintf("%06d.txt", i)] = text
	}
	found, err := listSource(t.Context(), writeFiles(t, files), []string{"*.txt"})
	must(t, err)
	docs, err := scan(t.Context(), found)
	must(t, err)
	for i := range docs {
		docs[i].heldOut = i >= len(docs)-heldOut
	}
	return docs
}

// prepareWith makes data of documents with a test tokenizer.
func prepareWith(ctx context.Context, s Settings, docs []document, p *pairs, l *lines) (*Data, error) {
	c, err := newCache(s.CacheDir, l.log)
	if err != nil {
		return nil, err
	}
	return prepare(ctx, s, docs, p, p.fingerprint(), c)
}

// mustPrepare is prepareWith in a directory of its own, closed with the test.
func mustPrepare(t testing.TB, s Settings, docs []document, p *pairs) *Data {
	t.Helper()
	if s.CacheDir == "" {
		s.CacheDir = t.TempDir()
	}
	d, err := prepareWith(t.Context(), s, docs, p, new(lines))
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError fails unless err's text has all the parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error lacks %q:\n%v", p, err)
		}
	}
}
