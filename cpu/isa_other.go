//go:build !(cgo && amd64)

package cpu

// Detect is Generic: this build has no C kernels.
func Detect() ISA { return Generic }
