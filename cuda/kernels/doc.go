// Package kernels holds the CUDA sources of the operations, the PTX that was
// made of them, and how an operation becomes launches of them: entry point,
// grid, and the bytes of its arguments. It is plain Go and knows no driver, so
// that whatever can execute PTX can run it.
package kernels
