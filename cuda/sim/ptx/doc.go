// Package ptx executes kernels that were compiled to PTX, on any machine: a warp
// at a time, with shared memory, barriers, shuffles, matrix instructions and
// asynchronous copies, and finds what a kernel does wrong. It knows the
// instruction set, and neither a driver nor what a kernel is for.
//
// Parse reads a module and decodes each instruction once, into a function over
// the 32 lanes of a warp and the registers that it names; registers share slots
// where their lives do not meet, so that a warp stays in the processor's cache.
// Run executes blocks on several goroutines, each the warps of its block in turn.
//
// What PTX leaves undefined is a Fault, where it can be seen: addresses outside
// of what is allocated, reads of what nobody has written, copies that nobody has
// waited for, lanes that do not come to where they are waited for. What depends
// on the order of blocks and warps, and on when copies arrive, shows where
// launches in other orders give other bytes; accesses that no barrier puts in
// order are found in any one order where Launch.Races is set, those of lanes of
// one warp, which here run in step, too. Not seen are the roundings of a
// device's approximations and matrix products, weak memory order, and time.
//
// Names and meanings are those of NVIDIA's "Parallel Thread Execution ISA" 8.2.
package ptx
