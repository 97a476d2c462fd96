// Package bench measures a machine and what gofsdp gets out of it: the raw
// peaks, each operation against its limit, the training step, what ranks do
// together by size, and the step by strategy and number of ranks.
//
// Every share is of a limit measured in the same process, just before and just
// after what it is compared with: a machine that others use too, or that
// changes its clock, is slower and faster by the minute, and a share is not. All
// figures are medians over several measurements, with the least and the
// greatest beside them.
//
// The operations are those of a real step: an engine runs on a device that
// times each one as it is launched, and what was launched is then run again by
// itself.
//
// What several ranks do is measured by processes, as they train. A Member is a
// rank's process: it measures its part of all cases, which take turns so that
// what disturbs the machine disturbs all of them, and reports Samples; Results
// puts those of all ranks together, Times without summing them up, for who makes
// ratios of them. Training steps are those of the training loop, from weights and
// over tokens that may be given, so that their losses can be compared. The limit
// of a collective is the time in which the same ranks, all at once, copy between
// buffers larger than the caches the bytes that each must read from others.
//
// A GPU is measured as a CPU is, by what it has: its peak is that of a large product
// of its own library and its bandwidth that of a copy in its own memory (GPU), its
// operations are timed by its own clock, and its memory is what the driver counts.
// What only CPUs have is left out: the time that threads have cores, and the copy
// that is the limit of a collective.
//
// The package may import whatever it measures. It must not choose a device or
// start a process: whoever calls it does. No verdict is built on absolute times.
package bench
