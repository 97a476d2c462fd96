//go:build !linux

package launcher

import (
	"syscall"
)

func childAttributes(leader bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: leader}
}

// endGroupOf does nothing: only Linux can look at a child that has ended and
// leave it unreaped. Here the group is ended by its closed sockets.
func endGroupOf(int) {}
