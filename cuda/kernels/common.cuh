// What the kernels share: bf16, packs of 16 bytes, sums in a fixed order, and the instructions that have no
// name in CUDA C++. It includes nothing, so NVRTC needs no headers.
//
// Rules of all kernels: read and write bf16, compute in fp32, round once, to nearest even. No atomics on
// floating-point numbers: every sum has one order, so the same input gives the same bytes.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// bf16 is the upper half of an fp32 number.
struct bf16 {
  unsigned short bits;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

// from_float rounds to nearest even.
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

// two_bf16 rounds two numbers and packs them, the first in the lower half.
__device__ __forceinline__ u32 two_bf16(float low, float high) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

// Words are the 16 bytes that a thread moves at once.
struct alignas(16) Words {
  u32 w[4];
};

// Pack is N numbers of type T, side by side, moved by as few accesses as their size allows.
template <typename T, int N> struct alignas(N * sizeof(T) > 16 ? 16 : N * sizeof(T)) Pack {
  T v[N];
};

// full<T> is how many T 16 bytes hold.
template <typename T> constexpr int full = 16 / int(sizeof(T));

// load reads N numbers at index i·N of p, which is aligned to so many bytes, or to 16 where they are more.
template <int N> __device__ __forceinline__ void load(float (&to)[N], const float *p, i64 i) {
  Pack<float, N> x = reinterpret_cast<const Pack<float, N> *>(p)[i];
#pragma unroll
  for (int k = 0; k < N; k++) to[k] = x.v[k];
}

template <int N> __device__ __forceinline__ void load(float (&to)[N], const bf16 *p, i64 i) {
  if constexpr (N % 2 == 0) {
    Pack<u32, N / 2> x = reinterpret_cast<const Pack<u32, N / 2> *>(p)[i];
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
      to[2 * k] = __uint_as_float(x.v[k] << 16);
      to[2 * k + 1] = __uint_as_float(x.v[k] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; k++) to[k] = to_float(p[i * N + k]);
  }
}

// store writes N numbers at index i·N of p, rounded.
template <int N> __device__ __forceinline__ void store(float *p, i64 i, const float (&from)[N]) {
  Pack<float, N> x;
#pragma unroll
  for (int k = 0; k < N; k++) x.v[k] = from[k];
  reinterpret_cast<Pack<float, N> *>(p)[i] = x;
}

template <int N> __device__ __forceinline__ void store(bf16 *p, i64 i, const float (&from)[N]) {
  if constexpr (N % 2 == 0) {
    Pack<u32, N / 2> x;
#pragma unroll
    for (int k = 0; k < N / 2; k++) x.v[k] = two_bf16(from[2 * k], from[2 * k + 1]);
    reinterpret_cast<Pack<u32, N / 2> *>(p)[i] = x;
  } else {
#pragma unroll
    for (int k = 0; k < N; k++) p[i * N + k] = from_float<bf16>(from[k]);
  }
}

// stored returns x as it is read back after a store in T.
template <typename T> __device__ __forceinline__ float stored(float x) { return to_float(from_float<T>(x)); }

// each calls body.at<W>(i) for all packs i of W elements, out of n: a thread has N elements, at once where
// vector says that 16 bytes may be moved at once, one after the other at a grid's end or where not. Threads
// of a warp are side by side either way. The grid has a thread for each N elements.
template <int N, typename Body> __device__ __forceinline__ void each(i64 n, u32 vector, const Body &body) {
  i64 first = i64(blockIdx.x) * blockDim.x * N;
  if (vector && first + i64(blockDim.x) * N <= n) {
    body.template at<N>(first / N + threadIdx.x);
    return;
  }
  for (int k = 0; k < N; k++) {
    i64 i = first + k * blockDim.x + threadIdx.x;
    if (i < n) body.template at<1>(i);
  }
}

// group_sum adds the numbers of N neighbouring lanes, a power of two from lane·N on, in the order of a
// butterfly; all get the sum. All lanes of the warp call it.
template <int N> __device__ __forceinline__ float group_sum(float x) {
#pragma unroll
  for (int d = N / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}

__device__ __forceinline__ float warp_sum(float x) { return group_sum<32>(x); }

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
  return x;
}

// block_sum adds the numbers of a block of WARPS warps: within warps, then warp by warp in order; all get
// the sum. partial has WARPS floats of shared memory. All threads call it; it ends with a barrier, so that
// partial may be used again.
template <int WARPS> __device__ __forceinline__ float block_sum(float x, float *partial) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += partial[w];
  __syncthreads();
  return sum;
}

// block_max is block_sum's sister.
template <int WARPS> __device__ __forceinline__ float block_max(float x, float *partial) {
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float most = partial[0];
#pragma unroll
  for (int w = 1; w < WARPS; w++) most = fmaxf(most, partial[w]);
  __syncthreads();
  return most;
}

// columns_sum adds what the threads of a block of WARPS warps have of N columns each, where ACROSS neighbouring
// lanes have neighbouring columns: within warps, then warp by warp in order. Thread i of the first ACROSS·N gets
// column i's sum. All threads call it, once.
template <int WARPS, int ACROSS, int N> __device__ __forceinline__ float columns_sum(float (&sum)[N]) {
  __shared__ float partial[WARPS][ACROSS * N];
  static_assert(ACROSS * N <= WARPS * 32, "each column has a thread");
#pragma unroll
  for (int k = 0; k < N; k++) {
#pragma unroll
    for (int d = 16; d >= ACROSS; d /= 2) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], d);
    if (threadIdx.x % 32 < ACROSS) partial[threadIdx.x / 32][threadIdx.x % ACROSS * N + k] = sum[k];
  }
  __syncthreads();
  float total = 0;
  if (threadIdx.x < ACROSS * N) {
#pragma unroll
    for (int w = 0; w < WARPS; w++) total += partial[w][threadIdx.x];
  }
  return total;
}

// put writes x, or what is there and x, to index i.
template <typename T> __device__ __forceinline__ void put(void *to, i64 i, float x, u32 accumulate) {
  T *at = static_cast<T *>(to) + i;
  *at = from_float<T>(accumulate ? to_float(*at) + x : x);
}

// nothing is −∞, the greatest of no scores; its power is 0.
__device__ __forceinline__ float nothing() { return __uint_as_float(0xff800000u); }

// in_range stops the kernel where an index that comes from data is outside of [0,n): the driver reports an
// illegal instruction, which is better than a read of somebody else's memory.
__device__ __forceinline__ int in_range(int i, int n) {
  if (u32(i) >= u32(n)) __trap();
  return i;
}

// BODY calls body for packs of N numbers where a.vector says that they may be moved at once, or else for single
// ones. What follows N are body's template arguments before it.
#define BODY(body, N, ...) \
  if (a.vector) \
    body<__VA_ARGS__, N>(a); \
  else \
    body<__VA_ARGS__, 1>(a);

// ---- asynchronous copies and tensor cores

// shared_address is p as the instructions below want it; p points to shared memory.
__device__ __forceinline__ u32 shared_address(const void *p) { return u32(__cvta_generic_to_shared(p)); }

// copy_16 starts a copy of 16 bytes from global memory to shared memory, around L1; both are aligned to 16.
// With present false nothing is read, and zeros are written.
__device__ __forceinline__ void copy_16(u32 to, const void *from, bool present = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0) : "memory");
}

// commit closes the group of copies that this thread has started since the last.
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// wait_but returns when all of this thread's groups but the youngest N have arrived. What other threads
// have copied is there after a barrier.
template <int N> __device__ __forceinline__ void wait_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// load_matrices reads four 8×8 matrices of 16-bit numbers; lane l gives the address of row l%8 of matrix
// l/8, and holds of matrix i in to[i] the two numbers at row l/4, columns 2·(l%4) and on.
__device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// load_matrices_transposed does so with each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// multiply_add computes c += a·b of one warp: a is 16×16 by rows, b 16×8 by columns, both bf16, c 16×8 in
// fp32 (PTX ISA, "Matrix Fragments for mma.m16n8k16").
__device__ __forceinline__ void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
