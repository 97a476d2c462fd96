package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Vacant returns an error where Create would refuse path because of what is
// there. It makes nothing, so it may be asked long before.
func Vacant(path string) error {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case err == nil:
		err = errTaken
	}
	return fmt.Errorf("run directory %s: %w", path, explain(err))
}

// CheckSpace returns an error where the disk that holds path, which need not
// exist yet, has fewer than bytes free.
func CheckSpace(path string, bytes int64) error {
	at, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("run directory %s: %w", path, err)
	}
	var fs unix.Statfs_t
	for {
		if err = unix.Statfs(at, &fs); !errors.Is(err, unix.ENOENT) || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	if err != nil {
		return fmt.Errorf("run directory %s: free space of %s: %w", path, at, err)
	}
	if free := int64(fs.Bavail) * int64(fs.Bsize); free < bytes {
		return fmt.Errorf("run directory %s: the run will write at least %d bytes and the disk has %d free: free some, or name another run.storage_path", path, bytes, free)
	}
	return nil
}
