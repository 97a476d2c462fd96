// Package scenario compares programs that do the same work: it runs them in
// turns, and judges them by the ratios within a turn.
//
// It knows what a scenario file says, how a program is told its work and how it
// reports what it measured, and how ratios come of that. It must not know what
// any of the programs is made of: gofsdp is measured as every other one is, by
// a command.
package scenario
