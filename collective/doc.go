// Package collective is the communication seam: what ranks do together over one
// axis of the mesh (all-gather, reduce-scatter, all-reduce, broadcast, barrier),
// and the transports of hosts.
//
// A collective is a value, as an operation of package device is. A Comm turns
// it into operations for a stream, so that it runs asynchronously and in the
// order of the stream; sums are done by device.ReduceSum, sources in rank order,
// so that every transport gives the same bits.
//
// A World says which ranks form which groups and which of them share memory;
// Connect joins a rank's groups, each by the transports that it needs: within a
// node shared memory, beyond it TCP, and both for a group with several ranks on
// each of several nodes.
//
// The package knows groups of ranks and memory. It must not know models, plans,
// meshes, kernels or how processes are started.
package collective
