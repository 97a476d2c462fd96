// Package sim stands in for NVIDIA's driver, cuBLAS and NCCL on machines without a
// GPU. It fills the tables that packages cuda and nccl call through (cuda/table.h,
// cuda/blas.h, nccl/table.h) with functions of its own: devices with their memory,
// contexts by thread, streams that run at the same time, events, graphs, kernels,
// which package ptx executes, matrix products, which package cpu computes, and
// collectives of ranks in one process or several (type NCCL). A call with wrong arguments, in the
// wrong order or on the wrong thread gets the library's own result, and what work
// did wrong behind the host's back is kept as a Fault.
//
// It knows NVIDIA's interfaces and no models, and of operations the product alone
// that it asks of package cpu. It is for tests, and is there under the build tag
// sim, with cgo, on Linux:
//
//	go test -tags sim ./cuda/...
//
// Where it is stricter than a driver, on purpose:
//   - cuMemFree waits for nothing, so work that is still queued is found to use
//     freed memory; a driver happens to wait, and promises it nowhere;
//   - stream 0 is refused: its order against other streams is nobody's intent here;
//   - bytes that nobody has written may not be copied to the host: reported, not refused;
//   - memory of another device may not be used by kernels: no peer access;
//   - a workspace of cuBLAS's is live device memory of one handle alone, of 16 KiB at
//     least, and operands are not in it; a result lies apart from its factors;
//   - two products of one handle may not run at once, as those of two graphs could;
//   - cuBLASLt has an algorithm for a result, factors and a bias at multiples of 16 bytes
//     alone, none without being asked for one, and takes one for the product that it was
//     asked for; of its attributes there are those that package cuda sets;
//   - a product without a workspace, or in a mode or a reduction scheme in which sums of
//     bf16 may be rounded on the way, is reported: its numbers could differ from run to run;
//   - cuBLAS takes no context by itself: one must be current, that of the handle.
//
// Products are made in fp32, in one order for each element, alpha, beta and a bias come
// last, and the result is rounded once.
//
// The order of things is real: every operation of a stream is a goroutine that
// waits for the one before, after a pause drawn from the machine's seed. So a wait
// that is missing between two streams shows, and go test -race reports it: what
// is ordered for the device is ordered for Go.
//
// What is refused by name, as CUDA_ERROR_NOT_SUPPORTED: the legacy and the
// per-thread stream, external event nodes, events between processes, launches
// with "extra", and the registers of a kernel, which only a compiler knows.
//
// Results are those of the CUDA driver API reference. What it leaves open was
// decided here, and a real device has yet to be asked: 401 for a capture that
// begins twice or ends without having begun; 905 for a wait on an event of a
// capture that has ended; 900 for copies of pageable memory and for destroying
// a stream, while it captures; 1 for a block of more threads than the kernel's
// launch bounds; 209 for PTX of a newer architecture. Of cuBLAS: 13 for a product in
// a stream that is none, in another context, in a capture that has become invalid or
// after a fault; 14 for destroying a handle while capturing; of cuBLASLt 7 for a handle
// that is no description (it would read whatever is there), for an operand that is not
// aligned as was preferred, and for a product of nothing; 15 where it has no algorithm.
package sim
