// Package mutate plants mistakes in kernels that were compiled to PTX, one at a time, so that it can be seen
// whether tests notice. It knows the text of PTX as NVRTC writes it, an instruction a line, and neither what
// a kernel is for nor how a mistake is looked for.
//
// A mutant differs from its kernel in one instruction. What cannot matter is left out by rule, and the rules
// stand beside the changes that they restrict (rules.go).
package mutate
