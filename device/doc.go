// Package device is the compute seam: what a device is (Device, Stream, Event,
// Buffer), what it can compute (the closed set of operations), and a plain Go
// reference of each operation that defines it.
//
// An operation is a value: a struct of tensors and sizes that is built once
// and launched on a stream as often as wanted. So a recorder, a delay injector
// or a NaN finder is a wrapper around Device and not a change of one. What
// differs from step to step (learning rate, clip factor, token ids) is read
// from memory, so that a launched operation never changes.
//
// NewHost makes a Device of goroutines from anything that executes operations;
// NewReference is one that runs the references. NewRecorder, NewDelayer and
// NewNaNFinder wrap any Device. An Observer is told what a stream begins and
// ends.
//
// The package knows shapes and numbers. It must not know models, ranks, plans,
// files or any particular device: implementations (cpu, cuda) import it, and
// only the command line picks one.
//
// Conventions: tensors are contiguous and row-major; T is the rows of a
// micro-batch, its sequences times the sequence length; an operation reads and
// writes F32 or BF16, computes in fp32 (the reference: in float64) and rounds
// once, to nearest even.
package device
