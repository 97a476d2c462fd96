// Package record owns the run directory and the run's record: where each file
// of a run lies, and how it is written so that a reader never sees half of it.
//
//	config.yaml       the configuration as resolved
//	run.json          the record: what ran, where, on what data, how it ended (Run)
//	attempts.json     its attempts and nodes, while several processes run (Attempt)
//	result.json       the last report, with Ray Train's keys (Result)
//	progress.csv      every report, a line each (Progress)
//	events.out.*      the same for TensorBoard (Events)
//	logs/             what the processes said, and where ranks stood when a run failed (Flight)
//	evidence/         files that back a figure of the record, where there are any
//	model/            the weights, as a Hugging Face directory
//	trace.json        what ranks did over some steps, where it was asked for (Trace)
//
// A value that is not known is recorded as not known, with the reason, and is
// never a guess (Value). Every format of ours carries its number; a newer one is
// refused by name.
//
// The package must not know tensors, models or clusters: who knows a figure
// hands it over. It imports nothing of ours.
package record

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Dir is a run directory. Its files may be written from several goroutines, each
// file by one.
type Dir struct{ path string }

// Create makes the directory of a new run, its parents too. An existing
// directory that is not empty is refused by name; an empty one is taken, once.
// A place that cannot be written, or whose disk is full, gives one error before
// anything else is done there.
func Create(path string) (*Dir, error) {
	d := &Dir{path: path}
	if err := d.create(); err != nil {
		return nil, fmt.Errorf("run directory %s: %w", path, explain(err))
	}
	return d, nil
}

func (d *Dir) create() (err error) {
	entries, err := os.ReadDir(d.path)
	switch {
	case err == nil && len(entries) > 0:
		return errTaken
	case errors.Is(err, os.ErrNotExist):
		if err := os.MkdirAll(d.path, 0o777); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	// Making logs is also the lock: of two processes that found the directory
	// empty, one gets it.
	if err := os.Mkdir(d.LogsDir(), 0o777); err != nil {
		if errors.Is(err, os.ErrExist) {
			return errTaken
		}
		return err
	}
	defer func() {
		if err != nil { // leave the directory as empty as it was
			os.Remove(d.LogsDir())
		}
	}()
	return probe(d.path)
}

var errTaken = errors.New("it exists and is not empty: choose another name (a run cannot be resumed yet), or remove it")

// probe writes and removes a small file, to find a full disk before an hour of
// training does.
func probe(dir string) error {
	path := filepath.Join(dir, ".probe")
	err := WriteFileAtomic(path, make([]byte, 64<<10), 0o600)
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// Open returns the directory of an existing run, which must have a record.
func Open(path string) (*Dir, error) {
	d := &Dir{path: path}
	if _, err := os.Stat(d.RunFile()); err != nil {
		return nil, fmt.Errorf("run directory %s: it has no record: %w", path, err)
	}
	return d, nil
}

// NextNumbered makes a new empty directory parent/prefix-NNNN with the number
// after the highest that is there, beginning with 0001, and returns its path.
// Several processes may ask at once: each gets its own.
func NextNumbered(parent, prefix string) (string, error) {
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return "", fmt.Errorf("run directory %s: %w", parent, explain(err))
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return "", fmt.Errorf("run directory %s: %w", parent, err)
	}
	next := 1
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), prefix+"-")
		if n, err := strconv.Atoi(digits); ok && err == nil && n >= next {
			next = n + 1
		}
	}
	for {
		path := filepath.Join(parent, fmt.Sprintf("%s-%04d", prefix, next))
		err := os.Mkdir(path, 0o777)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("run directory %s: %w", path, explain(err))
		}
		next++
	}
}

// Path returns the directory's path, as it was given.
func (d *Dir) Path() string { return d.path }

// ConfigFile returns the path of the resolved configuration.
func (d *Dir) ConfigFile() string { return filepath.Join(d.path, "config.yaml") }

// RunFile returns the path of the run's record.
func (d *Dir) RunFile() string { return filepath.Join(d.path, "run.json") }

// AttemptsFile returns the path of the launcher's part of the record.
func (d *Dir) AttemptsFile() string { return filepath.Join(d.path, "attempts.json") }

// ResultFile returns the path of the last report.
func (d *Dir) ResultFile() string { return filepath.Join(d.path, "result.json") }

// ProgressFile returns the path of the table of all reports.
func (d *Dir) ProgressFile() string { return filepath.Join(d.path, "progress.csv") }

// LogsDir returns the path of the directory of logs.
func (d *Dir) LogsDir() string { return filepath.Join(d.path, "logs") }

// EvidenceDir returns the path of the directory of files that back figures. Create
// does not make it: who has such files does (MakeEvidence).
func (d *Dir) EvidenceDir() string { return filepath.Join(d.path, "evidence") }

// MakeEvidence makes EvidenceDir. Where nothing is put there, Conclude removes it.
func (d *Dir) MakeEvidence() error {
	if err := os.Mkdir(d.EvidenceDir(), 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("run directory %s: %w", d.path, explain(err))
	}
	return nil
}

// ModelDir returns the path for the weights. Create does not make it: it appears
// when there are weights.
func (d *Dir) ModelDir() string { return filepath.Join(d.path, "model") }

// WriteConfig writes config.yaml and returns its hash, for the record.
func (d *Dir) WriteConfig(text []byte) (hash string, err error) {
	if err := WriteFileAtomic(d.ConfigFile(), text, 0o666); err != nil {
		return "", err
	}
	return Hash(text), nil
}

// Hash returns the name by which the record knows a content: "sha256:" and the
// digest in hexadecimal.
func Hash(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }
