package cpu

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/device"
)

// Options say how a device computes.
type Options struct {
	// Threads of each operation; 0: one for each core that Go may use.
	Threads int
	// ISA names the level of the kernels; empty: the best that the machine has.
	ISA string
	// Window holds the device's Shared memory, where other processes are to read it; nil: memory of its own.
	Window *device.Window
}

// New returns a Device on this machine. Each of its streams has a pool of threads of its own, so that
// operations of two streams run side by side. It fails where the level is unknown or more than the
// machine has, or the number of threads is negative; a stream whose pool cannot be had fails itself.
func New(o Options) (device.Device, error) {
	level := Detect()
	if o.ISA != "" {
		asked, err := ParseISA(o.ISA)
		if err != nil {
			return nil, err
		}
		if asked > level {
			return nil, fmt.Errorf("cpu: instruction set %v is asked for, this machine has %v", asked, level)
		}
		level = asked
	}
	if o.Threads < 0 {
		return nil, fmt.Errorf("cpu: %d threads, want 0 (all cores) or more", o.Threads)
	}
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	return newDevice(device.Info{Name: modelName(), Kind: "cpu", Threads: o.Threads, Memory: memoryLimit()}, level, o.Window), nil
}

// host returns a Device of the host's memory, or of the window's where there is one.
func host(w *device.Window, info device.Info, open func(string) (device.Executor, error)) device.Device {
	if w != nil {
		return device.NewHostIn(w, info, open)
	}
	return device.NewHost(info, open)
}

// modelName is the processor's name as the kernel gives it.
func modelName() string {
	info, _ := os.ReadFile("/proc/cpuinfo") // absent outside of Linux
	for line := range bytes.Lines(info) {
		if name, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// memoryLimit is the machine's memory in bytes or the limit of the control group, whichever is lower;
// 0 where neither can be read.
func memoryLimit() int64 {
	var least int64
	take := func(n int64) {
		if n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	info, _ := os.ReadFile("/proc/meminfo")
	for line := range bytes.Lines(info) {
		if f := strings.Fields(string(line)); len(f) > 1 && f[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			take(kib << 10)
		}
	}
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, _ := os.ReadFile(file)
		n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max" is no limit
		take(n)
	}
	return least
}
