// Package cpu is device.Device on the host. Streams are goroutines; operations are C kernels, called
// through cgo, that share the rows, columns or heads of an operation among a pool of threads.
//
// Kernels are written for four levels of instruction set (ISA), of which one is chosen at run time.
// What is not a matrix product is written once, over vectors of sixteen floats, and compiled for each
// level. In fp32 all levels and all numbers of threads give the same bits: sums have one order, which
// depends on shapes alone, and a fused multiply-add is one at every level. In bf16 a tensor is widened
// exactly as it is read, computed with in fp32, and rounded once as it is written; only matrix
// products use the dot-product instruction where there is one, and differ in bits from levels without.
//
// The kernels trust sizes, which an operation's Check has seen. What they index by (token ids, targets,
// positions, starts) is checked at each launch; a wrong number becomes the stream's error, a
// device.IndexError. Not-a-numbers are never lost on the way from an input to what depends on it.
//
// Without cgo, or on another architecture, the same API runs the operations' references in Go.
//
// The package knows the operations of package device and this machine. It must not know models, ranks,
// plans or files, and no file of it may ask the Go compiler or cgo for flags that a plain build lacks.
package cpu
