// Package witness reaches the driver by gorgonia.org/cu, a binding that others have written, so that what
// our own layer says of a device is not told by that layer alone: its facts, allocations, copies, events
// and launches must agree with ours, on the simulated driver and on a real one.
//
// It knows the driver by that binding, our kernels, and operations; what it has of package cuda is the
// loader. Its tests hold the one against the other. It is there under the tags cu and sim:
//
//	make witness
//
// It is a module of its own. The binding drags in a module graph of its time, a hundred modules of which it
// uses two; it asks for NVIDIA's cuda.h when it is compiled and for a libcuda when it is linked, and it ends
// any program that it is linked into on a machine without a driver. None of that is for the product's module.
//
// So that one test binary can stand before either driver, what it is linked with is a static libcuda.a of
// our own (libcuda.sh): every function of cuda.h, which jumps through a slot. Simulate fills the slots with
// the simulator's functions, Open with a real driver's. A slot that is empty answers CUDA_ERROR_NOT_SUPPORTED
// and is named by Missed; that of cuInit answers success, since the binding calls it before anything else of
// the program runs.
//
// What the binding has no call for is not witnessed: pinned memory, stream capture and graphs. One call of that
// kind is made beside it, through the same slots: kernels must be let have more than 48 KiB of shared memory.
package witness
