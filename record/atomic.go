package record

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WriteFileAtomic writes data to path so that a reader, and a machine after a
// power cut, finds the old file or the new one and never a part: a temporary
// file beside it, fsync, rename, fsync of the directory. perm is as for
// os.WriteFile, but an existing file's own is not kept. An error leaves the old
// file and nothing else.
func WriteFileAtomic(path string, data []byte, perm fs.FileMode) error {
	if err := writeFileAtomic(path, data, perm); err != nil {
		return fmt.Errorf("writing %s: %w", path, explain(err))
	}
	return nil
}

func writeFileAtomic(path string, data []byte, perm fs.FileMode) error {
	file, err := createTemporary(path, perm)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name())
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

// createTemporary creates a hidden file beside path. A crash leaves it; nothing
// reads it.
func createTemporary(path string, perm fs.FileMode) (*os.File, error) {
	for {
		name := fmt.Sprintf(".%s.partial-%08x", filepath.Base(path), rand.Uint32())
		file, err := os.OpenFile(filepath.Join(filepath.Dir(path), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
		if !errors.Is(err, os.ErrExist) {
			return file, err
		}
	}
}

// syncDirectory makes a rename inside dir durable. File systems that cannot
// sync a directory say so by EINVAL or ENOTSUP; they have no better way.
func syncDirectory(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}

// explain adds the remedy to what a user can do something about.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: free some space or choose another place", err)
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EROFS), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: choose a place that can be written", err)
	}
	return err
}
