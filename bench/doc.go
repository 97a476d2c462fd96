// Package bench measures a machine and what gofsdp gets out of it: the raw
// peaks, each operation against its limit, and the training step.
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
// The package may import whatever it measures. It must not choose a device:
// whoever calls it opens one. No verdict is built on absolute times.
package bench
