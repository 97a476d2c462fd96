package data

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// cache is a directory of token files and trained tokenizers, each named by a
// hash of what it was made from. Nothing is ever removed from it: it may be
// emptied by hand whenever no run uses it.
type cache struct {
	dir string
	log func(format string, args ...any)
}

// newCache uses dir, or gofsdp in the user's cache directory.
func newCache(dir string, log func(string, ...any)) (cache, error) {
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return cache{}, fmt.Errorf("data.cache_dir: no directory for token files: %w; set data.cache_dir", err)
		}
		dir = filepath.Join(user, "gofsdp")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return cache{}, fmt.Errorf("data.cache_dir: %w; set data.cache_dir to a directory that can be written", err)
	}
	return cache{dir, log}, nil
}

// key is the key of the token file: a hash of its format, the tokenizer and
// the documents' contents in order. Names and places of files have no part in it.
func (b *builder) key() [32]byte {
	h := sha256.New()
	fmt.Fprintf(h, "gofsdp tokens %d\n", tokenFormat)
	h.Write(b.fingerprint[:])
	h.Write(binary.LittleEndian.AppendUint32(nil, uint32(b.endOfText)))
	for i := range b.docs {
		h.Write(b.docs[i].hash[:])
	}
	return [32]byte(h.Sum(nil))
}

// tokens opens the token file of b's documents, or makes it. found tells that it
// was there. A damaged file is made anew. Of several processes that want the
// same file one makes it while the others wait.
func (c cache) tokens(ctx context.Context, b *builder) (t *tokenFile, found bool, err error) {
	key := b.key()
	path := filepath.Join(c.dir, fmt.Sprintf("%x.tokens", key))
	if t, err = c.open(path, key); t != nil || err != nil {
		return t, t != nil, err
	}
	unlock, err := c.lock(ctx, path)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	// Another process may have made it in the meantime.
	if t, err = openTokenFile(path, key); err == nil {
		return t, true, nil
	}
	if err := c.create(path, func(f *os.File) error { return b.write(ctx, f, key) }); err != nil {
		return nil, false, err
	}
	t, err = openTokenFile(path, key)
	return t, false, err
}

// open returns nothing where the file has to be made.
func (c cache) open(path string, key [32]byte) (*tokenFile, error) {
	t, err := openTokenFile(path, key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, errDamaged):
		c.log("%v; it is made anew", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("data.cache_dir: %w; remove it or set another data.cache_dir", err)
	}
	return t, nil
}

// create makes the file at path: write fills another beside it, which is then
// renamed, so that it is there whole or not at all, also after a crash.
func (c cache) create(path string, write func(*os.File) error) (err error) {
	f, err := os.CreateTemp(c.dir, filepath.Base(path)+partial)
	if err != nil {
		return fmt.Errorf("data.cache_dir: %w; set data.cache_dir to a directory that can be written", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return cacheFull(err)
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return cacheFull(err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("data.cache_dir: %w", err)
	}
	return syncDir(c.dir)
}

// partial ends the names of files that are being written.
const partial = ".partial-*"

// cacheFull adds the remedy to an error of a full disk.
func cacheFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("data.cache_dir: %w; token files take 2 bytes a token, 4 where the vocabulary is above 65,536: make room or set another data.cache_dir", err)
	}
	return err
}

// lock waits until this process alone may make the file at path, and removes
// what a killed maker of it left. Where the file system knows no locks nobody
// waits: all make the same file and the last rename wins.
func (c cache) lock(ctx context.Context, path string) (unlock func(), err error) {
	name := path + ".lock"
	for said := false; ; {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("data.cache_dir: %w; set data.cache_dir to a directory that can be written", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil && sameFile(f, name):
			left, _ := filepath.Glob(path + partial)
			for _, p := range left {
				os.Remove(p)
			}
			return func() { os.Remove(name); f.Close() }, nil
		case err == nil, errors.Is(err, unix.EINTR):
			// The last holder removed the file that is now locked: once more.
		case !errors.Is(err, unix.EWOULDBLOCK):
			return func() { f.Close() }, nil
		case !said:
			c.log("another process is making %s; waiting for it", path)
			said = true
		}
		f.Close()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// sameFile tells whether name still leads to f.
func sameFile(f *os.File, name string) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(name)
	return err == nil && os.SameFile(held, named)
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
