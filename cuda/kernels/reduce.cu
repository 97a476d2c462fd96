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
  double *parts; // of each norm block
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

// Moves count numbers of T and one of D an element, count−1 FLOPs: bound by memory. A thread has 16 bytes of the
// wider operand, so that a warp's access is always of neighbouring bytes, and no other work; one of the sources may be dst, as it reads all of them
// before it writes. Where packs cannot be, a warp reads single elements side by side.
template <typename T, typename D> __device__ __forceinline__ void reduce_sum(const ReduceSumArgs &a) {
  constexpr int N = full<D>; // D is T or wider
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

// Reads n numbers and writes 8 bytes for each 1,024 of them; one multiplication and one addition in float64
// an element, as one fused instruction: a product of two fp32 numbers is exact in float64, so fusing changes
// no bit. A square is never negative and what lies behind the end counts as zero, which changes no bit
// either. Memory is the limit, but on GPUs with two lanes for float64 a multiprocessor: two such instructions
// an element (the conversion is one) let an L4 add 118·10⁹ elements a second, 473 GB of fp32, for which its
// memory is too slow, or 237 GB of bf16, for which it is not.
//
// A norm block belongs to 16/N neighbouring lanes, N being the elements of 16 bytes; each keeps N of the 16
// interleaved sums in registers. The lanes then add all 16 in order, the running sum going from lane to lane.
template <typename T> __device__ __forceinline__ void sum_squares(const SumSquaresArgs &a) {
  constexpr int N = full<T>, LANES = PARTIALS / N;
  int lane = threadIdx.x % LANES, leader = threadIdx.x % 32 / LANES * LANES;
  i64 block = (i64(blockIdx.x) * blockDim.x + threadIdx.x) / LANES;
  bool there = block * NORM_BLOCK < a.n;
  double part[N];
#pragma unroll
  for (int k = 0; k < N; k++) part[k] = 0;
  if (there) {
    i64 at = block * (NORM_BLOCK / N) + lane;
#pragma unroll 4
    for (int j = 0; j < NORM_BLOCK / PARTIALS; j++) {
      float x[N];
      load_or_zero<T, N>(x, static_cast<const T *>(a.x), at + j * LANES, a.n, a.vector);
#pragma unroll
      for (int k = 0; k < N; k++) part[k] = fma(double(x[k]), double(x[k]), part[k]);
    }
  }
  double sum = 0;
#pragma unroll
  for (int l = 0; l < LANES; l++) {
    double through = sum;
#pragma unroll
    for (int k = 0; k < N; k++) through += part[k];
    sum = __shfl_sync(0xffffffffu, through, leader + l);
  }
  if (there && lane == 0) a.parts[block] = sum;
}

// together adds each lane's N numbers to total as one addition after the other would, in whatever order they stand,
// if it can, and says whether it could. All lanes have the same total; no number is negative.
//
// As long as sums stay below the next power of two, their last place has one value: an addition moves the sum by
// the number, rounded to whole such steps. That does not depend on the sum, unless the number is halfway between
// two: then the even sum is taken. So where no number is halfway and the end is below the power of two, the steps of
// all numbers may be counted at once and added up, as integers; a step is a step of the sum's bits.
template <int N> __device__ __forceinline__ bool together(double &total, const double (&x)[N]) {
  const u64 was = __double_as_longlong(total), one = 1;
  const int exponent = int(was >> 52);
  bool good = was != 0; // and then far above the least numbers, as a sum of squares of fp32 numbers is
  u64 steps = 0;
#pragma unroll
  for (int k = 0; k < N; k++) {
    const u64 bits = __double_as_longlong(x[k]), sum = __double_as_longlong(total + x[k]);
    good = good && int(sum >> 52) == exponent; // steps cannot add up to more than 64 bits hold
    steps += sum - was;
    const int lost = exponent - int(bits >> 52); // places that the sum has no room for
    const u64 rest = (bits | one << 52) & ((one << (lost & 63)) - 1);
    good = good && !(lost > 0 && lost <= 53 && rest == one << (lost - 1));
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) steps += __shfl_xor_sync(0xffffffffu, steps, d);
  const u64 now = was + steps;
  if (!__all_sync(0xffffffffu, good && int(now >> 52) == exponent)) return false;
  total = __longlong_as_double(now);
  return true;
}

// sum_parts adds the norm blocks' sums in their order: a chain, for which an L4 would take about 40 clocks an
// addition, 20 ms for 10⁹ elements. One warp takes 256 sums together where it can, else 32, else one after the
// other: that is once for each power of two that the sum passes, and for about one in n of the n-th 256 sums. It
// reads 8 bytes a sum.
__device__ __forceinline__ void sum_parts(const SumSquaresArgs &a) {
  constexpr int N = 8;
  const i64 blocks = (a.n + NORM_BLOCK - 1) / NORM_BLOCK;
  double total = 0, next[N];
  auto fetch = [&](i64 first) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const i64 i = first + k * 32 + threadIdx.x;
      next[k] = i < blocks ? a.parts[i] : 0.0;
    }
  };
  fetch(0);
  for (i64 first = 0; first < blocks; first += N * 32) {
    double x[N];
#pragma unroll
    for (int k = 0; k < N; k++) x[k] = next[k];
    fetch(first + N * 32);
    if (together(total, x)) continue;
#pragma unroll
    for (int k = 0; k < N; k++) {
      const double some[1] = {x[k]};
      if (together(total, some)) continue;
#pragma unroll 8
      for (int lane = 0; lane < 32; lane++) total += __shfl_sync(0xffffffffu, x[k], lane);
    }
  }
  if (threadIdx.x == 0) *a.out = total;
}

// not_finite looks at exponents only: 16 bytes of T at once.
template <typename T> __device__ __forceinline__ bool not_finite(u32 word) {
  constexpr u32 E = sizeof(T) == 4 ? 0x7f800000u : 0x7f80u;
  return (word & E) == E || (sizeof(T) == 2 && (word & E << 16) == E << 16);
}

// Reads n numbers and does nothing else. Before it, check_finite_begin clears the flag. A block that finds
// something sets one bit of it, which gives the same in any order; one access a block, as all of a vector may be
// NaN, and the flag in the host's memory.
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
  if (__syncthreads_or(found) && threadIdx.x == 0) atomicOr(a.flag, 1);
}

#define KERNELS(T, type)                                                                                   \
  extern "C" __global__ void __launch_bounds__(128, 6) sum_squares_##type(const SumSquaresArgs a) {        \
    sum_squares<T>(a);                                                                                     \
  }                                                                                                        \
  extern "C" __global__ void __launch_bounds__(256, 6) check_finite_##type(const CheckFiniteArgs a) {         \
    check_finite<T>(a);                                                                                    \
  }

KERNELS(float, f32)
KERNELS(bf16, bf16)

extern "C" __global__ void __launch_bounds__(32, 1) sum_squares_end(const SumSquaresArgs a) { sum_parts(a); }

extern "C" __global__ void __launch_bounds__(1, 1) check_finite_begin(const CheckFiniteArgs a) { *a.flag = 0; }

extern "C" __global__ void __launch_bounds__(256, 6) reduce_sum_f32(const ReduceSumArgs a) {
  reduce_sum<float, float>(a);
}
extern "C" __global__ void __launch_bounds__(256, 6) reduce_sum_bf16(const ReduceSumArgs a) {
  reduce_sum<bf16, bf16>(a);
}
extern "C" __global__ void __launch_bounds__(256, 6) reduce_sum_bf16_f32(const ReduceSumArgs a) {
  reduce_sum<bf16, float>(a);
}
