package cpu

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Bind gives the part-th of parts processes, of some computing threads each,
// cores of its own among those that this process may use: all its threads now,
// and those that they start. It leaves them free, and returns false, where the
// processes do not take all the cores: then the kernel has a choice, and another
// program may have made the same one.
//
// Ranks that are free to wander lose a few percent, as two of them meet on a core
// now and then while the other is idle.
func Bind(part, parts, threads int) (bound bool, err error) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return false, fmt.Errorf("cpu: the cores that this process may use: %w", err)
	}
	if parts < 2 || parts*threads != may.Count() {
		return false, nil
	}
	var own unix.CPUSet
	for core, nth := 0, 0; nth < (part+1)*threads; core++ {
		if may.IsSet(core) {
			if nth >= part*threads {
				own.Set(core)
			}
			nth++
		}
	}
	// A thread that is started while these are bound comes from one that is not yet;
	// so until a look finds nothing new.
	done := map[int]bool{}
	for fresh := true; fresh; {
		fresh = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return false, fmt.Errorf("cpu: this process's threads: %w", err)
		}
		for _, t := range tasks {
			id, err := strconv.Atoi(t.Name())
			if err != nil || done[id] {
				continue
			}
			if err := unix.SchedSetaffinity(id, &own); err != nil && !errors.Is(err, unix.ESRCH) {
				return false, fmt.Errorf("cpu: binding thread %d to its cores: %w", id, err)
			}
			done[id], fresh = true, true
		}
	}
	return true, nil
}
