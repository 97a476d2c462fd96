package bench

import (
	"fmt"
	"os"
	"strings"
)

// forgetPeak makes peakMemory begin again (proc_pid_clear_refs(5) of Linux's manual).
func forgetPeak() error { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// peakMemory returns the greatest resident memory of this process since
// forgetPeak, in bytes: VmHWM.
func peakMemory() (int64, error) {
	const path = "/proc/self/status"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var kib int64
	_, line, _ := strings.Cut(string(text), "\nVmHWM:")
	if _, err := fmt.Sscanf(line, "%d kB", &kib); err != nil {
		return 0, fmt.Errorf("%s: VmHWM: %w", path, err)
	}
	return kib << 10, nil
}
