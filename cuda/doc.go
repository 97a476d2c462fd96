// Package cuda is device.Device on NVIDIA GPUs. It opens the driver and cuBLAS
// at run time, so that nothing of NVIDIA's is needed where it is built or where
// there is no GPU, and runs operations as kernels of package kernels, compiled
// by the driver from PTX, and as products of cuBLAS.
//
// It knows operations, and neither models nor ranks. What it calls through is
// tables of functions (table.h, blas.h), which a simulator may fill as well.
//
// Sources.Find says what a machine has, Open takes it, and New makes a device
// of one GPU. A device has one thread, on which the GPU's primary context is
// current: it makes all calls, in the order in which they were asked for, and
// never waits for the GPU in a step; whoever calls Sync waits on a thread of
// their own. An operation becomes calls when it is launched for the first time,
// and again only where it has changed, so a step allocates nothing.
//
// Addresses are numbers here (device.Addr, CUdeviceptr) and never Go pointers.
// Of the memory that a device gives out, the host sees only what is Pinned.
package cuda
