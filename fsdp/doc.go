// Package fsdp turns a model into a plan and runs it: flat units, the plan of a
// step as a value, and the engine that executes the plan on a device.
//
// A pure function makes a Plan from a model's shape, a batch and a precision:
// every buffer with its size and place, and every operation in its order. The
// Plan is verified when built, printed by the command line, and bound to memory
// once by an Engine, so that the step loop allocates nothing. A Flight remembers
// what an engine ran last, by the plan's names.
//
// The package knows units, buffers and the order of work. It must not know
// CUDA, tokens' meaning, files or processes.
package fsdp
