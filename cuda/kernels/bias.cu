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

constexpr int ACROSS = 2, WARPS = 32, DOWN = WARPS * 32 / ACROSS; // threads of a block

// Reads rows·width numbers, one addition each: bound by memory, if enough of it is under way. Biases are narrow
// (those of keys and values of a model with 2 key-value heads have 128 or 256 columns), so a block has 32 bytes of
// columns, the least that memory gives at once, and all rows of them: 8 or 16 blocks for such a bias, each with
// 64 KB under way. A thread adds every 512th row in order, 4 of them under way; then lanes and warps add up in
// order. So the order depends on the number of rows alone.
template <typename T, typename D, int N> __device__ __forceinline__ void bias_backward(const BiasBackwardArgs &a) {
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
  float total = columns_sum<WARPS, ACROSS>(sum);
  i64 column = i64(blockIdx.x) * ACROSS * N + threadIdx.x;
  if (threadIdx.x < ACROSS * N && column < a.width) put<D>(a.dbias, column, total, a.accumulate);
}

#define KERNEL(T, D, type)                                                                                       \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) bias_backward_##type(const BiasBackwardArgs a) {   \
    BODY(bias_backward, full<T>, T, D)                                                                           \
  }

KERNEL(float, float, f32)
KERNEL(bf16, bf16, bf16)
KERNEL(bf16, float, bf16_f32)
