package launcher

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func childAttributes(leader bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: leader, Pdeathsig: syscall.SIGKILL}
}

// endGroupOf waits until a leader has ended, and kills what is left of its
// group while nobody has reaped it, as its number cannot be another's yet.
func endGroupOf(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	unix.Kill(-pid, unix.SIGKILL)
}

// newMemory returns an empty file that is in no file system: whoever maps it
// sets its size.
func newMemory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making shared memory: memfd_create: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// hasMemory says whether ranks of a node can share memory.
const hasMemory = true
