//go:build !linux

package launcher

import (
	"errors"
	"os"
	"syscall"
)

func childAttributes(leader bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: leader}
}

// endGroupOf does nothing: only Linux can look at a child that has ended and
// leave it unreaped. Here the group is ended by its closed sockets.
func endGroupOf(int) {}

// hasMemory says whether ranks of a node can share memory: not without memfds.
const hasMemory = false

func newMemory(string) (*os.File, error) { return nil, errors.ErrUnsupported }
