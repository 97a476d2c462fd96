//go:build !linux

package device

func adviseHugePages([]byte) {}
