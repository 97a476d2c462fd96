package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// file is a file that was chosen, not yet read.
type file struct {
	// name is what the file is sorted and called by: its path as the settings
	// lead to it, for gosource relative to GOROOT/src.
	name string
	path string
	size int64
}

// listFiles returns the chosen files of all sources, each once, sorted by name.
// Whole files, which are documents, are cut at s.MaxBytes. All paths that lead nowhere are reported at once.
func listFiles(ctx context.Context, s Settings) ([]file, error) {
	var files []file
	var errs []error
	for _, p := range s.Path {
		found, err := listSource(ctx, p, s.include())
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("data.path: %q: no file matches %s; name other files or extend data.include", p, s.patterns())
		}
		errs = append(errs, err)
		files = append(files, found...)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	slices.SortStableFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	files = slices.CompactFunc(files, func(a, b file) bool { return a.path == b.path })
	if s.Format == FormatJSONL {
		return files, nil
	}
	return firstBytes(files, s)
}

// firstBytes takes files in order while they fit into s.MaxBytes.
func firstBytes(files []file, s Settings) ([]file, error) {
	var total int64
	for i, f := range files {
		if s.MaxBytes > 0 && total+f.size > s.MaxBytes {
			if files = files[:i]; total == 0 {
				return nil, fmt.Errorf("data.max_bytes: %d is less than the first file, %s of %d bytes; raise it or set 0 for all",
					s.MaxBytes, f.name, f.size)
			}
			break
		}
		total += f.size
	}
	if total == 0 {
		return nil, emptyCorpus(len(files), s)
	}
	return files, nil
}

func emptyCorpus(files int, s Settings) error {
	return fmt.Errorf("data.path: the corpus is empty: no text in %s (files without any: %d); name other files or extend data.include",
		strings.Join(s.Path, " "), files)
}

// listSource lists one entry of Settings.Path.
func listSource(ctx context.Context, p string, include []string) ([]file, error) {
	if p == GoSource {
		return listGoSource(ctx)
	}
	paths := []string{filepath.Clean(p)}
	if _, err := os.Lstat(p); err != nil {
		if !hasMeta(p) {
			return nil, fmt.Errorf("data.path: %w; name an existing directory, file or pattern", err)
		}
		if paths, err = filepath.Glob(p); err != nil {
			return nil, fmt.Errorf("data.path: %q: %w", p, err)
		}
		if len(paths) == 0 {
			return nil, fmt.Errorf("data.path: the pattern %q matches nothing", p)
		}
	}
	w := walker{ctx: ctx, include: include, seen: map[string]bool{}}
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			w.fail(err)
		case info.IsDir():
			w.directory(path)
		case info.Mode().IsRegular():
			w.files = append(w.files, file{path, path, info.Size()})
		default:
			w.fail(fmt.Errorf("%s is not a regular file (%s)", path, info.Mode().Type()))
		}
	}
	return w.files, errors.Join(w.errs...)
}

// walker collects the files below directories. Symbolic links are followed; a
// directory that is reached a second time, as in a loop of links, is passed
// over. Names that begin with a dot are passed over.
type walker struct {
	ctx     context.Context
	include []string
	skip    func(path, name string) bool
	seen    map[string]bool
	files   []file
	errs    []error
}

func (w *walker) fail(err error) {
	w.errs = append(w.errs, fmt.Errorf("data.path: cannot read: %w", err))
}

func (w *walker) directory(dir string) {
	if err := w.ctx.Err(); err != nil {
		if len(w.errs) == 0 {
			w.fail(err)
		}
		return
	}
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		w.fail(err)
		return
	}
	if w.seen[real] {
		return
	}
	w.seen[real] = true
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.fail(err)
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			w.entry(filepath.Join(dir, e.Name()), e)
		}
	}
}

func (w *walker) entry(path string, e fs.DirEntry) {
	chosen := slices.ContainsFunc(w.include, func(pattern string) bool {
		ok, _ := filepath.Match(pattern, e.Name())
		return ok
	})
	link := e.Type()&fs.ModeSymlink != 0
	if !chosen && !link && !e.IsDir() {
		return
	}
	info, err := os.Stat(path)
	switch {
	case err != nil && !chosen:
		// A dangling link that no pattern asked for.
	case err != nil:
		w.fail(err)
	case info.IsDir():
		if w.skip == nil || !w.skip(path, e.Name()) {
			w.directory(path)
		}
	case chosen && info.Mode().IsRegular():
		w.files = append(w.files, file{path, path, info.Size()})
	}
}

// listGoSource lists the .go files of Go's standard library by their paths below
// GOROOT/src: without the commands, vendored packages and test data, which are
// not the library, so that one version of Go gives one corpus on every machine.
func listGoSource(ctx context.Context) ([]file, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("data.path: %s: go env GOROOT: %w; install Go and put it on PATH, or name text of your own", GoSource, err)
	}
	src := filepath.Join(strings.TrimSpace(string(out)), "src")
	w := walker{ctx: ctx, include: []string{"*.go"}, seen: map[string]bool{}}
	w.skip = func(path, name string) bool {
		return name == "testdata" || name == "vendor" || path == filepath.Join(src, "cmd")
	}
	w.directory(src)
	for i := range w.files {
		rel, err := filepath.Rel(src, w.files[i].path)
		if err != nil {
			w.fail(err)
		}
		w.files[i].name = filepath.ToSlash(rel)
	}
	if err := errors.Join(w.errs...); err != nil {
		return nil, fmt.Errorf("%s: the sources of Go are not whole: %w; install Go with its sources, or name text of your own", GoSource, err)
	}
	return w.files, nil
}
