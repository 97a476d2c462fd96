package launcher

import (
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
