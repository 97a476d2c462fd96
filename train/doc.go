// Package train is one rank's run: the loop over steps with its schedule and
// accumulation, evaluation on held-out text, generation, and the metrics that
// the run leaves behind.
//
// It knows when what happens and what is reported. It must not know how a step
// is laid out in memory (fsdp), which device computes, or how processes are
// started.
package train
