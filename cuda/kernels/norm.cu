// AddRMSNorm and its backward. A row is some warps' of one block: as few as can keep it in registers, so
// that narrow rows do not wait for each other, and wide ones are read once.
#include "common.cuh"

struct AddRMSNormArgs {
  const void *x;
  const void *residual; // or 0
  const void *weight;
  void *sum; // with residual
  void *out;
  float *rstd;
  i64 rows;
  i64 dim;
  float eps;
  u32 warps;  // of a row: 1, 2, 4 or 8
  u32 vector; // all addresses are aligned to 16 bytes, and rows are whole multiples of them
};

struct AddRMSNormBackwardArgs {
  const void *dout;
  const void *dsum; // or 0
  const void *sum;
  const void *weight;
  const float *rstd;
  void *dx;
  void *dweight;
  i64 rows;
  i64 dim;
  u32 warps;
  u32 vector;
  u32 accumulate; // add to dweight
  u32 wide;       // dweight is fp32, whatever the rest is
};

constexpr int WARPS = 8; // of a block

// Place is where a thread is: some warps of a block share a row.
struct Place {
  i64 row;
  int thread, threads; // of the row
  int first;           // warp of the row

  __device__ __forceinline__ Place(u32 warps) {
    int warp = threadIdx.x / 32;
    row = i64(blockIdx.x) * (WARPS / warps) + warp / warps;
    first = warp / warps * warps;
    thread = threadIdx.x - first * 32;
    threads = warps * 32;
  }
};

// row_sum adds the numbers of a row's threads: within warps, then warp by warp in order. All threads of the
// block call it, once.
__device__ __forceinline__ float row_sum(float x, const Place &at, u32 warps) {
  __shared__ float partial[WARPS];
  x = warp_sum(x);
  if (warps == 1) return x;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  x = partial[at.first];
  u32 w = 1;
  do x += partial[at.first + w];
  while (++w < warps);
  return x;
}

// add reads a pack of the sum, or computes and stores it.
template <typename T, int N> __device__ __forceinline__ void add(float (&x)[N], const AddRMSNormArgs &a, i64 i) {
  load(x, static_cast<const T *>(a.x), i);
  if (a.residual == nullptr) return;
  float residual[N];
  load(residual, static_cast<const T *>(a.residual), i);
#pragma unroll
  for (int k = 0; k < N; k++) x[k] = stored<T>(x[k] + residual[k]);
  store(static_cast<T *>(a.sum), i, x);
}

// Reads X and Residual, writes Sum and Out, Dim numbers each a row, and 4 bytes; 5 FLOPs a number: bound by
// memory. KEEP packs of a thread stay in registers; a row that is longer than that is read again, of Sum or
// X where it is the input.
template <typename T, int N> __device__ __forceinline__ void norm(const AddRMSNormArgs &a) {
  constexpr int KEEP = 4;
  Place at(a.warps);
  bool active = at.row < a.rows;
  int packs = active ? int(a.dim) / N : 0;
  i64 base = at.row * (a.dim / N);
  float kept[KEEP][N], squares = 0;
#pragma unroll
  for (int j = 0; j < KEEP; j++) {
    int i = at.thread + j * at.threads;
    if (i >= packs) continue;
    add<T, N>(kept[j], a, base + i);
#pragma unroll
    for (int k = 0; k < N; k++) squares += kept[j][k] * kept[j][k];
  }
  for (int i = at.thread + KEEP * at.threads; i < packs; i += at.threads) {
    float x[N];
    add<T, N>(x, a, base + i);
#pragma unroll
    for (int k = 0; k < N; k++) squares += x[k] * x[k];
  }
  float rstd = 1.0f / sqrtf(row_sum(squares, at, a.warps) / float(a.dim) + a.eps);
  if (!active) return;
  if (at.thread == 0) a.rstd[at.row] = rstd;

  const T *weights = static_cast<const T *>(a.weight);
#pragma unroll
  for (int j = 0; j < KEEP; j++) {
    int i = at.thread + j * at.threads;
    if (i >= packs) continue;
    float weight[N];
    load(weight, weights, i);
#pragma unroll
    for (int k = 0; k < N; k++) kept[j][k] *= rstd * weight[k];
    store(static_cast<T *>(a.out), base + i, kept[j]);
  }
  const T *again = static_cast<const T *>(a.residual != nullptr ? a.sum : a.x);
  for (int i = at.thread + KEEP * at.threads; i < packs; i += at.threads) {
    float x[N], weight[N];
    load(x, again, base + i);
    load(weight, weights, i);
#pragma unroll
    for (int k = 0; k < N; k++) x[k] *= rstd * weight[k];
    store(static_cast<T *>(a.out), base + i, x);
  }
}

// Slope is what a thread keeps of one pack of a row's backward.
template <typename T, int N> struct Slope {
  float g[N], x[N]; // DOut·Weight, and Sum

  __device__ __forceinline__ float read(const AddRMSNormBackwardArgs &a, i64 base, int i) {
    float weight[N], dot = 0;
    load(g, static_cast<const T *>(a.dout), base + i);
    load(x, static_cast<const T *>(a.sum), base + i);
    load(weight, static_cast<const T *>(a.weight), i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      g[k] *= weight[k];
      dot += g[k] * x[k];
    }
    return dot;
  }

  // write computes DSum + RStd·(g − Sum·scale), with scale = RStd²·mean(g·Sum).
  __device__ __forceinline__ void write(const AddRMSNormBackwardArgs &a, i64 i, float rstd, float scale) {
    float dx[N];
    if (a.dsum != nullptr) {
      load(dx, static_cast<const T *>(a.dsum), i);
    } else {
#pragma unroll
      for (int k = 0; k < N; k++) dx[k] = 0;
    }
#pragma unroll
    for (int k = 0; k < N; k++) dx[k] += rstd * (g[k] - x[k] * scale);
    store(static_cast<T *>(a.dx), i, dx);
  }
};

// Reads DOut, Sum and DSum, writes DX; 8 FLOPs a number: bound by memory. DX may be DOut or DSum, for a
// thread reads what is at an index before it writes there.
template <typename T, int N> __device__ __forceinline__ void norm_backward(const AddRMSNormBackwardArgs &a) {
  constexpr int KEEP = 2;
  Place at(a.warps);
  bool active = at.row < a.rows;
  int packs = active ? int(a.dim) / N : 0;
  i64 base = at.row * (a.dim / N);
  Slope<T, N> kept[KEEP];
  float dot = 0;
#pragma unroll
  for (int j = 0; j < KEEP; j++) {
    int i = at.thread + j * at.threads;
    if (i < packs) dot += kept[j].read(a, base, i);
  }
  for (int i = at.thread + KEEP * at.threads; i < packs; i += at.threads) dot += Slope<T, N>().read(a, base, i);
  float mean = row_sum(dot, at, a.warps) / float(a.dim);
  if (!active) return;

  float rstd = a.rstd[at.row], scale = rstd * rstd * mean;
#pragma unroll
  for (int j = 0; j < KEEP; j++) {
    int i = at.thread + j * at.threads;
    if (i < packs) kept[j].write(a, base + i, rstd, scale);
  }
  for (int i = at.thread + KEEP * at.threads; i < packs; i += at.threads) {
    Slope<T, N> slope;
    slope.read(a, base, i);
    slope.write(a, base + i, rstd, scale);
  }
}

// Reads DOut and Sum, a second time after or before the kernel above (they may be in the L2 cache still);
// 3 FLOPs a number. There is no memory for partial sums and no order among blocks, so a block has 32 bytes
// of columns, the least that memory gives at once, and all rows of them: each thread adds every so many
// rows, then lanes, then warps add up in order. That makes 56 blocks of a model of 896 dimensions and 96 of 1,536,
// each with 64 KB under way in bf16: as much as an L4 and an H200 need to keep their memory busy.
constexpr int COLUMN_WARPS = 16;

template <typename T, int N> __device__ __forceinline__ void norm_weights(const AddRMSNormBackwardArgs &a) {
  constexpr int TILE = 32 / sizeof(T), C = TILE / N; // columns of a block, packs of them
  i64 packs = a.dim / N, pack = i64(blockIdx.x) * C + threadIdx.x % C;
  float sum[N] = {};
  if (pack < packs) {
#pragma unroll 4
    for (i64 r = threadIdx.x / C; r < a.rows; r += COLUMN_WARPS * 32 / C) {
      float dout[N], x[N], rstd = a.rstd[r];
      load(dout, static_cast<const T *>(a.dout), r * packs + pack);
      load(x, static_cast<const T *>(a.sum), r * packs + pack);
#pragma unroll
      for (int k = 0; k < N; k++) sum[k] += dout[k] * (x[k] * rstd);
    }
  }
  float total = columns_sum<COLUMN_WARPS, C>(sum);
  i64 i = i64(blockIdx.x) * TILE + threadIdx.x;
  if (threadIdx.x >= TILE || i >= a.dim) return;
  if (a.wide)
    put<float>(a.dweight, i, total, a.accumulate);
  else
    put<T>(a.dweight, i, total, a.accumulate);
}

#define KERNELS(T, type)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 4) add_rms_norm_##type(const AddRMSNormArgs a) {        \
    BODY(norm, full<T>, T)                                                                                           \
  }                                                                                                         \
  extern "C" __global__ void __launch_bounds__(256, 4)                                                      \
      add_rms_norm_backward_##type(const AddRMSNormBackwardArgs a) {                                        \
    BODY(norm_backward, full<T>, T)                                                                                  \
  }                                                                                                         \
  extern "C" __global__ void __launch_bounds__(COLUMN_WARPS * 32, 2)                                        \
      add_rms_norm_weights_##type(const AddRMSNormBackwardArgs a) {                                         \
    BODY(norm_weights, full<T>, T)                                                                                   \
  }

KERNELS(float, f32)
KERNELS(bf16, bf16)
