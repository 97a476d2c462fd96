package safetensors

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// createTemporary creates a file beside path whose name no reader looks for. A
// crash leaves it; nothing reads it and it is safe to delete.
func createTemporary(path string) (*os.File, error) {
	for {
		name := fmt.Sprintf(".%s.partial-%08x", filepath.Base(path), rand.Uint32())
		file, err := os.OpenFile(filepath.Join(filepath.Dir(path), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, os.ErrExist) {
			return file, err
		}
	}
}

// writeAtomic writes data to path: durable and complete, or not at all.
func writeAtomic(path string, data []byte) error {
	file, err := createTemporary(path)
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
		return explain(err)
	}
	return syncDirectory(filepath.Dir(path))
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

// enoughSpace refuses a file of size bytes that dir's disk has no room for, so
// that it fails before an hour of writing and not after. Where the file system
// does not tell, writing will.
func enoughSpace(dir string, size int64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil || disk.Blocks == 0 {
		return nil
	}
	block := uint64(disk.Bsize)
	if need := (uint64(size) + block - 1) / block; need > disk.Bavail {
		return fmt.Errorf("the disk has %d MiB free and the file takes %d MiB: free some space or choose another place",
			disk.Bavail*block>>20, size>>20)
	}
	return nil
}

// explain adds the remedy where the disk is full.
func explain(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: free some space or choose another place", err)
	}
	return err
}
