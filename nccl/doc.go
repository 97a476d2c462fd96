// Package nccl is collective.Comm over NVIDIA's NCCL, which it opens at run time
// as package cuda opens the driver: nothing of NVIDIA's is needed where it is
// built, and what it calls through is a table of functions (table.h), which a
// simulator may fill as well.
//
// Open finds and opens the library. Library.Connect joins a rank's groups, each
// by a communicator of its own, so that a gather and a reduction may run at the
// same time. What Bind returns are operations that start themselves
// (cuda.Native) on the stream they are launched on, in place on the tensors. Each
// communicator has a watchdog: it finds errors that NCCL tells of later, and
// collectives that wait for longer than the deadline, ends the communicator, and
// lets the streams say which collective it was.
//
// It knows groups of ranks, memory and NCCL. It must not know models, plans,
// meshes, kernels or how processes are started.
//
// # Sums
//
// Package collective sums in the order of ranks, in fp32, and rounds once. NCCL
// does not: its order is that of the ring or tree which it has chosen, another
// one for each part of a tensor, and what travels between two ranks is rounded to
// the tensor's type at each hop, in bf16 too. So sums differ from those of the
// other transports within the rounding of n-1 additions in the tensor's type. All
// ranks get the same bits from an all-reduce, and the same bits again in the next
// run where machines, NCCL and its choice (NCCL_ALGO, NCCL_PROTO) stay the same.
// Gradients in fp32 lose nothing that matters; in bf16 they lose a bit or two.
// The simulator (cuda/sim) sums in the order of ranks.
//
// # What a caller must know
//
//   - All ranks start the collectives of their communicators in one order: the
//     thread of a device waits in each until NCCL has taken it. On the GPU they
//     keep it where the process has the variables of Settings.Environment.
//   - A communicator is used on one stream at a time, and not in lists of
//     operations that become graphs (LaunchAll), which refuse it: its watchdog
//     does not see it there, and NCCL lets nobody leave a communicator that a
//     graph has.
//   - Abort ends the waits of this rank alone: NCCL tells others nothing, or an
//     error of the network later. They end by their own deadline, or are told by
//     who started them. NCCL may also not get done with an abort where others
//     have not aborted: Close says so after the deadline, and the process ends.
//   - NCCL lets no two threads call it for one communicator, not even to ask for
//     errors: the watchdog asks when the device's thread does not.
//   - One process a GPU is what NCCL's authors advise.
package nccl
