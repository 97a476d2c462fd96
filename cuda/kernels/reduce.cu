// Sums over sources, sums of squares, and the search for what is not finite.
#include "common.cuh"

struct ReduceSumArgs {
  const void *srcs[64];
  void *dst;
  i64 n;
  u32 count;
  u32 vector; // all addresses are aligned to 16 bytes
};

struct SumSquaresArgs {
  const void *x;
  double *out;
  i64 n;
  u32 vector;
};

struct CheckFiniteArgs {
  const void *x;
  int *flag;
  i64 n;
  u32 vector;
};

// sum_sources adds N elements at index i of all sources, in order: plain fp32 additions, so the bits are
// those of the contract. Four sources are under way at once.
template <typename T, typename D, int N> __device__ __forceinline__ void sum_sources(const ReduceSumArgs &a, i64 i) {
  float sum[N];
  load(sum, static_cast<const T *>(a.srcs[0]), i);
#pragma unroll 4
  for (u32 s = 1; s < a.count; s++) {
    float x[N];
    load(x, static_cast<const T *>(a.srcs[s]), i);
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] += x[k];
  }
  store(static_cast<D *>(a.dst), i, sum);
}

// Moves count numbers of T and one of D an element, count−1 FLOPs: bound by memory. A thread has one pack
// of 16 bytes of each source and no other work; one of the sources may be dst, as it reads all of them
// before it writes. Where packs cannot be, a warp reads single elements side by side.
template <typename T, typename D> __device__ __forceinline__ void reduce_sum(const ReduceSumArgs &a) {
  constexpr int N = full<T>;
  i64 first = i64(blockIdx.x) * blockDim.x * N;
  if (a.vector && first + i64(blockDim.x) * N <= a.n) {
    sum_sources<T, D, N>(a, first / N + threadIdx.x);
    return;
  }
#pragma unroll 1
  for (int k = 0; k < N; k++) {
    i64 i = first + k * blockDim.x + threadIdx.x;
    if (i < a.n) sum_sources<T, D, 1>(a, i);
  }
}

// load_or_zero reads N elements from index i·N on; those from n on are zero.
template <typename T, int N>
__device__ __forceinline__ void load_or_zero(float (&to)[N], const T *p, i64 i, i64 n, u32 vector) {
  if (vector && (i + 1) * N <= n) {
    load(to, p, i);
    return;
  }
#pragma unroll
  for (int k = 0; k < N; k++) to[k] = i * N + k < n ? to_float(p[i * N + k]) : 0.0f;
}

constexpr int NORM_BLOCK = 1024; // device.NormBlock
constexpr int PARTIALS = 16;     // interleaved sums of one

// Reads n numbers; one multiplication and one addition in float64 an element, as one fused instruction: a
// product of two fp32 numbers is exact in float64, so fusing changes no bit. A square is never negative and
// what lies behind the end counts as zero, which changes no bit either.
//
// A norm block belongs to 16/N neighbouring lanes, N being the elements of 16 bytes; each keeps N of the 16
// interleaved sums in registers. The lanes then add all 16 in order, the running sum going from lane to
// lane. One thread adds the norm blocks' sums in order, while the other warps read on.
//
// One thread block does all of it: the chain over norm blocks needs their sums in memory, and the operation
// has no operand for them. So a single multiprocessor reads: by estimate 50 to 100 GB/s; on an L4, which has
// two lanes for float64 and needs two such instructions an element, 2·10⁹ elements a second.
template <typename T> __device__ __forceinline__ void sum_squares(const SumSquaresArgs &a) {
  constexpr int N = full<T>, LANES = PARTIALS / N, TILE = 1024 / LANES;
  __shared__ double sums[2][TILE];
  int lane = threadIdx.x % LANES, mine = threadIdx.x / LANES, leader = threadIdx.x % 32 / LANES * LANES;
  i64 blocks = (a.n + NORM_BLOCK - 1) / NORM_BLOCK;
  double total = 0;
  int turn = 0;
  for (i64 tile = 0; tile < blocks; tile += TILE, turn ^= 1) {
    double part[N];
#pragma unroll
    for (int k = 0; k < N; k++) part[k] = 0;
    i64 at = (tile + mine) * (NORM_BLOCK / N) + lane;
    if (tile + mine < blocks) {
#pragma unroll 4
      for (int j = 0; j < NORM_BLOCK / PARTIALS; j++) {
        float x[N];
        load_or_zero<T, N>(x, static_cast<const T *>(a.x), at + j * LANES, a.n, a.vector);
#pragma unroll
        for (int k = 0; k < N; k++) part[k] = fma(double(x[k]), double(x[k]), part[k]);
      }
    }
    double block = 0;
#pragma unroll
    for (int l = 0; l < LANES; l++) {
      double through = block;
#pragma unroll
      for (int k = 0; k < N; k++) through += part[k];
      block = __shfl_sync(0xffffffffu, through, leader + l);
    }
    if (lane == 0) sums[turn][mine] = block;
    __syncthreads();
    if (threadIdx.x == 0) {
      int n = int(min(i64(TILE), blocks - tile));
      for (int b = 0; b < n; b++) total += sums[turn][b];
    }
  }
  if (threadIdx.x == 0) *a.out = total;
}

// not_finite looks at exponents only: 16 bytes of T at once.
template <typename T> __device__ __forceinline__ bool not_finite(u32 word) {
  constexpr u32 E = sizeof(T) == 4 ? 0x7f800000u : 0x7f80u;
  return (word & E) == E || (sizeof(T) == 2 && (word & E << 16) == E << 16);
}

// Reads n numbers and does nothing else. Before it, check_finite_begin clears the flag. Whoever finds
// something sets one bit of it, which gives the same in any order.
template <typename T> __device__ __forceinline__ void check_finite(const CheckFiniteArgs &a) {
  constexpr int N = full<T>;
  i64 first = i64(blockIdx.x) * blockDim.x * N;
  bool found = false;
  if (a.vector && first + i64(blockDim.x) * N <= a.n) {
    Words x = static_cast<const Words *>(a.x)[first / N + threadIdx.x];
#pragma unroll
    for (int k = 0; k < 4; k++) found |= not_finite<T>(x.w[k]);
  } else {
#pragma unroll 1
    for (int k = 0; k < N; k++) {
      i64 i = first + k * blockDim.x + threadIdx.x;
      if (i < a.n) found |= not_finite<T>(__float_as_uint(to_float(static_cast<const T *>(a.x)[i])));
    }
  }
  if (found) atomicOr(a.flag, 1);
}

#define KERNELS(T, type)                                                                                   \
  extern "C" __global__ void __launch_bounds__(1024) sum_squares_##type(const SumSquaresArgs a) {          \
    sum_squares<T>(a);                                                                                     \
  }                                                                                                        \
  extern "C" __global__ void __launch_bounds__(256) check_finite_##type(const CheckFiniteArgs a) {         \
    check_finite<T>(a);                                                                                    \
  }

KERNELS(float, f32)
KERNELS(bf16, bf16)

extern "C" __global__ void __launch_bounds__(1) check_finite_begin(const CheckFiniteArgs a) { *a.flag = 0; }

extern "C" __global__ void __launch_bounds__(256) reduce_sum_f32(const ReduceSumArgs a) {
  reduce_sum<float, float>(a);
}
extern "C" __global__ void __launch_bounds__(256) reduce_sum_bf16(const ReduceSumArgs a) {
  reduce_sum<bf16, bf16>(a);
}
extern "C" __global__ void __launch_bounds__(256) reduce_sum_bf16_f32(const ReduceSumArgs a) {
  reduce_sum<bf16, float>(a);
}
