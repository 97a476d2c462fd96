package record

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// describe fills what Linux tells under /proc and in /etc/os-release.
func (h *Host) describe() {
	h.OS = ValueOf(readWith("/etc/os-release", osName))
	h.CPU = ValueOf(readWith("/proc/cpuinfo", cpuModel))
	h.Cores = ValueOf(readWith("/proc/cpuinfo", cpuCores))
	h.Memory = ValueOf(readWith("/proc/meminfo", memoryTotal))
}

// readWith reads a file and parses it.
func readWith[T any](path string, parse func(text string) (T, bool)) (value T, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return value, err
	}
	value, ok := parse(string(text))
	if !ok {
		return value, fmt.Errorf("%s does not say", path)
	}
	return value, nil
}

// osName returns PRETTY_NAME of os-release(5).
func osName(text string) (string, bool) {
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(name, `"'`), true
		}
	}
	return "", false
}

// cpuModel returns the first "model name" of /proc/cpuinfo. ARM kernels have
// none.
func cpuModel(text string) (string, bool) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}

// cpuCores counts the distinct pairs of socket and core in /proc/cpuinfo.
func cpuCores(text string) (int, bool) {
	type core struct{ socket, core string }
	cores := map[core]bool{}
	var socket string
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "physical id":
			socket = strings.TrimSpace(value)
		case "core id":
			cores[core{socket, strings.TrimSpace(value)}] = true
		}
	}
	return len(cores), len(cores) > 0
}

// memoryTotal returns MemTotal of /proc/meminfo in bytes.
func memoryTotal(text string) (int64, bool) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "MemTotal:" && fields[2] == "kB" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}
