//go:build cgo && amd64

package cpu

// #include "isa.h"
import "C"

// Detect is the highest level that this CPU and operating system support.
func Detect() ISA { return ISA(C.gk_isa_detect()) }
