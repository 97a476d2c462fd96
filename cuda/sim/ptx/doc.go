// Package ptx executes kernels that were compiled to PTX, on any machine: a warp
// at a time, with shared memory, barriers, shuffles, matrix instructions and
// asynchronous copies, and finds what a kernel does wrong. It knows the
// instruction set, and neither a driver nor what a kernel is for.
package ptx
