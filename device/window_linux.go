package device

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NewWindowFile makes a file of memory that has no path, so that nothing is left
// of it when the last process that has it ends, however it ends. The kernel never
// lets it shrink: a peer that reads it cannot be made to fault. The name is for
// messages and /proc.
func NewWindowFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("device: memory file %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return nil, errors.Join(fmt.Errorf("device: sealing memory file %s: %w", name, err), f.Close())
	}
	return f, nil
}

// windowSize returns the size of a file that can never shrink.
func windowSize(f *os.File) (size int64, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("device: window %s: %w", f.Name(), err)
	}
	var seals int
	var st unix.Stat_t
	var sealErr, statErr error
	err = conn.Control(func(fd uintptr) {
		seals, sealErr = unix.FcntlInt(fd, unix.F_GET_SEALS, 0)
		statErr = unix.Fstat(int(fd), &st)
	})
	if err = errors.Join(err, sealErr, statErr); err != nil {
		return 0, fmt.Errorf("device: window %s is no memory file: %w", f.Name(), err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return 0, fmt.Errorf("device: window %s could shrink under its readers; make it with NewWindowFile", f.Name())
	}
	return st.Size, nil
}

// punch gives a range's memory back; the file keeps its size.
func punch(f *os.File, off, size int64) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("device: freeing memory of window %s: %w", f.Name(), err)
	}
	var punchErr error
	err = conn.Control(func(fd uintptr) {
		punchErr = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, size)
	})
	if err = errors.Join(err, punchErr); err != nil {
		return fmt.Errorf("device: freeing memory of window %s: %w", f.Name(), err)
	}
	return nil
}
