// Package launcher runs the processes of one training run and sees to it that
// they end together. It knows processes, nodes and messages; it knows no
// tensors, no model and no collective, and imports of the project only record.
//
// The launcher (Run) is one process a run. It starts an agent on each node
// through a Placer. An agent (RunAgent) starts the node's ranks, watches them
// and relays for them. A rank (Join) is one process with one device. Agents
// reach the launcher by gRPC under TLS; ranks reach their agent by a socket that
// they inherit, so nobody else can speak on it.
//
// The start has two phases: all agents register, then each rank gets one Start.
// From then on everybody beats: whoever has not been heard for seven tenths of
// the deadline counts as lost, the rest of the deadline is for ending. A failure
// of any process ends all. What caused it is the first failure that was not
// itself a consequence: a rank that ended because of another says so by exit
// code 6, and a rank that lost a peer (5) or waited for one in vain (4) waits for a
// better reason to turn up.
//
// On Linux a process also dies with its parent, by a signal that the kernel
// sends, so that nothing outlives kill -9 of any one of them. Elsewhere closed
// sockets and missing beats do the same more slowly.
package launcher
