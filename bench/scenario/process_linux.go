package scenario

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// newMark returns an environment variable that only a process and what it starts
// will have. Process groups are not enough: torchrun and Ray give their workers
// groups of their own.
func newMark() string {
	return fmt.Sprintf("GOFSDP_BENCH_RUN=%016x%016x", rand.Uint64(), rand.Uint64())
}

// sweep kills what is left of a process group and all processes with the mark,
// and waits until they are gone. A zombie has no environment any more, so one
// that nobody waits for holds up nothing.
func sweep(group int, mark string) error {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		syscall.Kill(-group, syscall.SIGKILL) // it may be gone
		left := marked(mark)
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		if time.Since(began) > grace {
			return fmt.Errorf("processes %v cannot be killed; they still use this machine", left)
		}
	}
}

// marked returns the processes that have mark in their environment.
func marked(mark string) (pids []int) {
	paths, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is right
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil { // it has ended, or is another user's
			continue
		}
		for v := range bytes.SplitSeq(text, []byte{0}) {
			if string(v) == mark {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// sacrifice makes a process, and what it will start, the first to be killed when
// memory runs out. Where that cannot be said nothing happens.
func sacrifice(pid int) {
	os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0)
}

// memoryKills returns how often the kernel has killed a process for its memory
// since it was started.
func memoryKills() int {
	text, _ := os.ReadFile("/proc/vmstat") // without it nobody can know
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ := strconv.Atoi(strings.TrimSpace(n))
			return kills
		}
	}
	return 0
}
