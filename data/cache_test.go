package data

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// someTexts are n different documents, one of them empty.
func someTexts(n int) []string {
	texts := make([]string, n)
	for i := range n - 1 {
		texts[i] = strings.Repeat(fmt.Sprint("the ", i, " in her\x00é"), i%13+1)
	}
	return texts
}

// cacheFiles lists the names in a cache directory.
func cacheFiles(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestASecondRunTakesItsTokensFromTheCache(t *testing.T) {
	docs := documentsOf(t, 5, someTexts(30)...)
	s := Settings{SequenceLength: 8, CacheDir: t.TempDir()}
	p := newPairs()
	first := mustPrepare(t, s, docs, p)
	if first.Stats.Cached || p.calls.Load() != 30 {
		t.Errorf("the first run: cached %v, %d documents encoded", first.Stats.Cached, p.calls.Load())
	}
	second := mustPrepare(t, s, docs, p)
	if !second.Stats.Cached || p.calls.Load() != 30 {
		t.Errorf("the second run: cached %v, %d documents encoded", second.Stats.Cached, p.calls.Load())
	}
	if first.Fingerprint != second.Fingerprint || first.MaxID != second.MaxID {
		t.Error("the two runs differ")
	}
	// Another split, seed and length use the same tokens, but are other data.
	docs[0].heldOut, s.SequenceLength = true, 9
	third := mustPrepare(t, s, docs, p)
	if !third.Stats.Cached || third.Fingerprint == first.Fingerprint {
		t.Errorf("another split: cached %v, fingerprint %s", third.Stats.Cached, third.Fingerprint)
	}
	if got := cacheFiles(t, s.CacheDir); len(got) != 1 || !strings.HasSuffix(got[0], ".tokens") {
		t.Errorf("the cache holds %q", got)
	}
}

func TestAnotherTextOrTokenizerMakesAnotherTokenFile(t *testing.T) {
	s := Settings{SequenceLength: 2, CacheDir: t.TempDir()}
	other := newPairs()
	other.list = other.list[1:]
	for what, d := range map[string]*Data{
		"a text":             mustPrepare(t, s, documentsOf(t, 1, "the one", "the two"), newPairs()),
		"another text":       mustPrepare(t, s, documentsOf(t, 1, "the one", "the six"), newPairs()),
		"the texts' borders": mustPrepare(t, s, documentsOf(t, 1, "the onet", "he two"), newPairs()),
		"another tokenizer":  mustPrepare(t, s, documentsOf(t, 1, "the one", "the two"), other),
	} {
		if d.Stats.Cached {
			t.Errorf("%s was found in the cache", what)
		}
	}
}

func TestADamagedTokenFileIsMadeAnewAndSaidSo(t *testing.T) {
	docs := documentsOf(t, 5, someTexts(30)...)
	s := Settings{SequenceLength: 8, CacheDir: t.TempDir()}
	want := read(mustPrepare(t, s, docs, newPairs()).Train, 0)
	path := filepath.Join(s.CacheDir, cacheFiles(t, s.CacheDir)[0])
	for name, damage := range map[string]func() error{
		"cut":     func() error { return os.Truncate(path, 500) },
		"empty":   func() error { return os.Truncate(path, 0) },
		"changed": func() error { return overwrite(path, 300) },
	} {
		t.Run(name, func(t *testing.T) {
			// A mapped file must not change under its reader: take it away first.
			b, err := os.ReadFile(path)
			must(t, err)
			must(t, os.Remove(path))
			must(t, os.WriteFile(path, b, 0o644))
			must(t, damage())
			l := new(lines)
			d, err := prepareWith(t.Context(), s, docs, newPairs(), l)
			must(t, err)
			defer d.Close()
			if d.Stats.Cached || !strings.Contains(l.String(), path+": damaged token file") || !strings.Contains(l.String(), "made anew") {
				t.Errorf("cached %v, said %q", d.Stats.Cached, l)
			}
			if got := read(d.Train, 0); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Error("the new file gives other packs")
			}
		})
	}
}

// overwrite flips a byte of a file.
func overwrite(path string, at int) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[at] ^= 0x55
	return os.WriteFile(path, b, 0o644)
}

func TestOfManyThatWantATokenFileOneMakesIt(t *testing.T) {
	docs := documentsOf(t, 5, someTexts(40)...)
	s := Settings{SequenceLength: 8, CacheDir: t.TempDir()}
	p := newPairs()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			d, err := prepareWith(t.Context(), s, docs, p, new(lines))
			if err != nil {
				t.Error(err)
				return
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := p.calls.Load(); n != 40 {
		t.Errorf("%d documents were encoded, want 40", n)
	}
	if got := cacheFiles(t, s.CacheDir); len(got) != 1 {
		t.Errorf("left in the cache: %q", got)
	}
}

func TestATokenFileIsTheSameForAnyNumberOfCores(t *testing.T) {
	docs := documentsOf(t, 5, someTexts(60)...)
	var files []string
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, cores := range []int{1, 2, 7} {
		runtime.GOMAXPROCS(cores)
		s := Settings{SequenceLength: 8, CacheDir: t.TempDir()}
		mustPrepare(t, s, docs, newPairs())
		b, err := os.ReadFile(filepath.Join(s.CacheDir, cacheFiles(t, s.CacheDir)[0]))
		must(t, err)
		files = append(files, string(b))
	}
	if files[0] != files[1] || files[0] != files[2] {
		t.Error("the files differ")
	}
}

func TestAStoppedRunLeavesNothingInTheCache(t *testing.T) {
	docs := documentsOf(t, 5, someTexts(60)...)
	s := Settings{SequenceLength: 8, CacheDir: t.TempDir()}
	ctx, cancel := context.WithCancel(t.Context())
	p := newPairs()
	p.gate = func() {
		if p.calls.Load() >= 20 {
			cancel()
		}
	}
	_, err := prepareWith(ctx, s, docs, p, new(lines))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run gives %v", err)
	}
	if got := cacheFiles(t, s.CacheDir); len(got) != 0 {
		t.Errorf("left in the cache: %q", got)
	}
}

func TestWhatAKilledRunLeftIsRemoved(t *testing.T) {
	docs := documentsOf(t, 1, someTexts(3)...)
	dir := t.TempDir()
	b, err := newBuilder(docs, newPairs(), [32]byte{}, new(lines).log)
	must(t, err)
	c, err := newCache(dir, new(lines).log)
	must(t, err)
	name := fmt.Sprintf("%x.tokens", b.key())
	for _, left := range []string{name + ".partial-123", name + ".lock", "other.tokens.partial-1"} {
		must(t, os.WriteFile(filepath.Join(dir, left), nil, 0o644))
	}
	f, _, err := c.tokens(t.Context(), b)
	must(t, err)
	defer f.close()
	if got, want := cacheFiles(t, dir), []string{name, "other.tokens.partial-1"}; !slices.Equal(got, want) {
		t.Errorf("the cache holds %q, want %q", got, want)
	}
}

func TestAWaitingRunSaysSoAndCanBeStopped(t *testing.T) {
	docs := documentsOf(t, 1, someTexts(3)...)
	dir := t.TempDir()
	l := new(lines)
	ctx, cancel := context.WithCancel(t.Context())
	c, err := newCache(dir, func(format string, args ...any) { l.log(format, args...); cancel() })
	must(t, err)
	b, err := newBuilder(docs, newPairs(), [32]byte{}, c.log)
	must(t, err)
	held, err := os.Create(filepath.Join(dir, fmt.Sprintf("%x.tokens.lock", b.key())))
	must(t, err)
	defer held.Close()
	must(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	_, _, err = c.tokens(ctx, b)
	if !errors.Is(err, context.Canceled) || !strings.Contains(l.String(), "another process is making") {
		t.Errorf("got %v, said %q", err, l)
	}
}

func TestACacheThatCannotBeWrittenIsRefusedWithARemedy(t *testing.T) {
	docs := documentsOf(t, 1, "one", "two")
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	_, err := prepareWith(t.Context(), Settings{SequenceLength: 2, CacheDir: filepath.Join(file, "cache")}, docs, newPairs(), new(lines))
	wantError(t, err, "data.cache_dir", file, "set data.cache_dir to a directory that can be written")
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	_, err = prepareWith(t.Context(), Settings{SequenceLength: 2}, docs, newPairs(), new(lines))
	wantError(t, err, "data.cache_dir: no directory for token files", "set data.cache_dir")
	wantError(t, cacheFull(fmt.Errorf("write: %w", unix.ENOSPC)), "data.cache_dir", "make room")
}

func TestATokenizerThatDoesNotFitIsRefused(t *testing.T) {
	docs := documentsOf(t, 1, "the one", "the two")
	s := Settings{SequenceLength: 2, CacheDir: t.TempDir()}
	c, err := newCache(s.CacheDir, new(lines).log)
	must(t, err)
	_, err = prepare(t.Context(), s, docs, endless{newPairs()}, [32]byte{}, c)
	wantError(t, err, "data.tokenizer: it has no end-of-text token", "added_tokens")
	_, err = prepare(t.Context(), s, docs, narrow{newPairs()}, [32]byte{}, c)
	wantError(t, err, "data.tokenizer: it gives id 257", "outside its vocabulary of 257")
	if got := cacheFiles(t, s.CacheDir); len(got) != 0 {
		t.Errorf("left in the cache: %q", got)
	}
}

// endless has no end-of-text; narrow gives ids outside its vocabulary.
type (
	endless struct{ *pairs }
	narrow  struct{ *pairs }
)

func (endless) EndOfText() (int32, bool) { return 0, false }
func (narrow) VocabSize() int            { return pairsEnd + 1 }

func TestALongTokenisationTellsItsProgress(t *testing.T) {
	l := new(lines)
	m := newMeter([]document{{file: file{size: 300e6}}, {file: file{size: 100e6}}}, l.log)
	m.add(300e6)
	m.last, m.start = m.last.Add(-meterEvery), m.start.Add(-1000*time.Second)
	m.add(100e6)
	m.add(0)
	if got, want := l.String(), "tokenised 400 of 400 MB, 0.4 MB/s"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}
