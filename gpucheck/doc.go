// Package gpucheck holds a machine's GPUs against all that the project claims of
// them, and writes down what it saw: what is found there, each kernel against its
// reference and its limit, products, graphs, collectives, whole training steps,
// memory, and the speed of training beside PyTorch's.
//
// A check is made of parts. Each says ok, failed or not run, with the reason and
// the seconds that it took. What a machine lacks, such as PyTorch or a second GPU,
// makes its part not run, and that never counts as passed. A Runner starts every
// part as a process of its own: after a fault on a device nothing more can be done
// in its process, and the other parts are to be seen all the same.
//
// Shares are of limits that the same part has measured on the same GPU: the
// bandwidth of a copy that is larger than the caches, and a large product of
// cuBLAS. A figure of a data sheet stands in a column of its own and says so.
//
// It takes GPUs, NCCL and sizes from who calls it, so tests run all of it on the
// simulator, in small; it chooses no device. The kernels' cases are those of the
// tests, so a test binary runs them: what makes random operations, keeps memory
// under guard and derives bounds is test code, needs a testing.TB, and has no place in
// the program that trains. For the bundle that binary is built once and lies beside
// the program (see Tools), so it needs no Go there.
package gpucheck
