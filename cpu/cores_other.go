//go:build !linux

package cpu

// Bind leaves the process's threads free: only Linux can bind them.
func Bind(part, parts, threads int) (bound bool, err error) { return false, nil }
