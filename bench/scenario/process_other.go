//go:build !linux

package scenario

import "syscall"

// newMark returns an environment variable of no use here.
func newMark() string { return "GOFSDP_BENCH_RUN=1" }

// sweep kills what is left of a process group.
func sweep(group int, _ string) error {
	syscall.Kill(-group, syscall.SIGKILL) // it may be gone
	return nil
}

func sacrifice(int) {}

func memoryKills() int { return 0 }
