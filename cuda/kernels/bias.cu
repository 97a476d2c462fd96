// The gradient of a bias: sums over columns.
#include "common.cuh"

struct BiasBackwardArgs {
  const void *dout;
  void *dbias;
  i64 rows;
  u32 width;
  u32 vector; // rows are aligned to 16 bytes
  u32 accumulate;
};

constexpr int ACROSS = 8, DOWN = 32; // threads of a block

// Reads rows·width numbers, one addition each: bound by memory. A block of 8 × 32 threads has 8 packs of
// columns and all rows: a row's 8 packs are 128 bytes, so that no sector is read in part, and few columns
// (a model with 2 key-value heads has 256) still give several blocks. A thread adds every 32nd row in order,
// 4 of them under way; then the 32 sums of a column are added in order by one thread. So the order depends
// on the number of rows alone.
template <typename T, typename D, int N> __device__ __forceinline__ void bias_backward(const BiasBackwardArgs &a) {
  __shared__ float sums[DOWN][ACROSS * N];
  int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
  i64 packs = a.width / N, pack = i64(blockIdx.x) * ACROSS + across;
  float sum[N] = {};
  if (pack < packs) {
#pragma unroll 4
    for (i64 row = down; row < a.rows; row += DOWN) {
      float x[N];
      load(x, static_cast<const T *>(a.dout), row * packs + pack);
#pragma unroll
      for (int k = 0; k < N; k++) sum[k] += x[k];
    }
  }
#pragma unroll
  for (int k = 0; k < N; k++) sums[down][across * N + k] = sum[k];
  __syncthreads();
  u32 column = blockIdx.x * ACROSS * N + threadIdx.x;
  if (threadIdx.x >= ACROSS * N || column >= a.width) return;
  D *out = static_cast<D *>(a.dbias) + column;
  float total = a.accumulate ? to_float(*out) : 0.0f;
#pragma unroll
  for (int d = 0; d < DOWN; d++) total += sums[d][threadIdx.x];
  *out = from_float<D>(total);
}

#define KERNEL(T, D, type)                                                                                   \
  extern "C" __global__ void __launch_bounds__(ACROSS *DOWN) bias_backward_##type(const BiasBackwardArgs a) { \
    if (a.vector)                                                                                            \
      bias_backward<T, D, full<T>>(a);                                                                       \
    else                                                                                                     \
      bias_backward<T, D, 1>(a);                                                                             \
  }

KERNEL(float, float, f32)
KERNEL(bf16, bf16, bf16)
KERNEL(bf16, float, bf16_f32)
