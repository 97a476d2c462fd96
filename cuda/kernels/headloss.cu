// Cross-entropy of rows of logits, and its gradient in their place.
#include "common.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32;

struct HeadLossArgs {
  void *logits;
  const int *targets;
  const float *scale; // one number in memory; absent without backward
  float *loss;
  u32 vocab;
  u32 vector;   // rows are aligned to 16 bytes
  u32 backward; // logits become their gradient
};

constexpr float LOG2E = 1.44269504f, LN2 = 0.693147181f, LOWEST = -3.402823466e38f;

// exp2_of is 2^x, to 2 units in the last place; what is below the normal numbers becomes 0.
__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Softmax is the largest of some x, and Σ e^(x − most).
struct Softmax {
  float most, sum;

  // shift makes the sum relative to a larger most.
  __device__ __forceinline__ void shift(float larger) {
    sum *= exp2_of((most - larger) * LOG2E);
    most = larger;
  }
};

__device__ __forceinline__ Softmax merged(Softmax a, Softmax b) {
  float most = fmaxf(a.most, b.most);
  a.shift(most);
  b.shift(most);
  return {most, a.sum + b.sum};
}

// block_softmax merges those of all threads: a butterfly in each warp, then warp by warp; all get it.
__device__ __forceinline__ Softmax block_softmax(Softmax s, Softmax *partial) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2)
    s = merged(s, {__shfl_xor_sync(0xffffffffu, s.most, d), __shfl_xor_sync(0xffffffffu, s.sum, d)});
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = s;
  __syncthreads();
  s = partial[0];
  for (int w = 1; w < WARPS; w++) s = merged(s, partial[w]);
  return s;
}

// observe takes U·N logits into a thread's softmax, packs i, i+THREADS and on; all are under way at once.
template <int U, typename T, int N> __device__ __forceinline__ void observe(Softmax &s, const T *x, int i) {
  float v[U][N];
#pragma unroll
  for (int u = 0; u < U; u++) load(v[u], x, i + u * THREADS);
  float most = s.most;
#pragma unroll
  for (int u = 0; u < U; u++)
#pragma unroll
    for (int k = 0; k < N; k++) most = fmaxf(most, v[u][k]);
  s.shift(most);
#pragma unroll
  for (int u = 0; u < U; u++)
#pragma unroll
    for (int k = 0; k < N; k++) s.sum += exp2_of((v[u][k] - most) * LOG2E);
}

// Row is what a row's gradient needs.
struct Row {
  float most, log2_sum, scale;
  int target;
};

// differentiate replaces U·N logits by their gradient, packs i, i−THREADS and on.
template <int U, typename T, int N> __device__ __forceinline__ void differentiate(const Row &r, T *x, int i) {
  float v[U][N];
#pragma unroll
  for (int u = 0; u < U; u++) load(v[u], x, i - u * THREADS);
#pragma unroll
  for (int u = 0; u < U; u++) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      float p = exp2_of(fmaf(v[u][k] - r.most, LOG2E, -r.log2_sum));
      v[u][k] = ((i - u * THREADS) * N + k == r.target ? p - 1.0f : p) * r.scale;
    }
    store(x, i - u * THREADS, v[u]);
  }
}

// Forward reads the logits once: 2 bytes an element in bf16. Backward reads them twice and writes them once:
// 6 bytes, 4 where L2 serves the second reading; it goes from the row's end to its start, as the end is what
// caches still hold. 19 instructions of PTX an element; an H200 has time for about 36: bound by memory.
//
// A block has a row, as 151,936 logits do not fit into shared memory. One reading is enough for maximum and
// sum: a thread keeps the largest that it has seen and its sum relative to that. The largest starts from the
// lowest finite number, as −∞ − −∞ is no number. fmaxf drops a NaN; the sum keeps it. Differences to the
// largest are taken before they are scaled, so that large logits lose no digits.
template <typename T, int N> __device__ __forceinline__ void head_loss(const HeadLossArgs &a) {
  constexpr int U = 4;
  __shared__ Softmax partial[WARPS];
  T *x = static_cast<T *>(a.logits) + i64(blockIdx.x) * a.vocab;
  int target = in_range(int(u32(a.targets[blockIdx.x]) + 1), int(a.vocab + 1)) - 1; // −1 is in range
  int packs = a.vocab / N;
  if (target < 0) {
    if (threadIdx.x == 0) a.loss[blockIdx.x] = 0;
    if (a.backward) {
      float zeros[N] = {};
#pragma unroll 1
      for (int i = threadIdx.x; i < packs; i += THREADS) store(x, i, zeros);
    }
    return;
  }
  float at_target = to_float(x[target]);
  Softmax s = {LOWEST, 0};
  int i = threadIdx.x;
  for (; i + (U - 1) * THREADS < packs; i += U * THREADS) observe<U, T, N>(s, x, i);
#pragma unroll 1 // three turns at most
  for (; i < packs; i += THREADS) observe<1, T, N>(s, x, i);
  s = block_softmax(s, partial); // its barrier: all have read what is overwritten below
  Row row = {s.most, log2f(s.sum), 0, target};
  if (threadIdx.x == 0) a.loss[blockIdx.x] = (s.most - at_target) + row.log2_sum * LN2;
  if (!a.backward) return;
  row.scale = *a.scale;
  i = packs - 1 - threadIdx.x;
  for (; i - (U - 1) * THREADS >= 0; i -= U * THREADS) differentiate<U, T, N>(row, x, i);
#pragma unroll 1
  for (; i >= 0; i -= THREADS) differentiate<1, T, N>(row, x, i);
}

#define KERNELS(T, type)                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS, 2) head_loss_##type(const HeadLossArgs a) {   \
    BODY(head_loss, full<T>, T)                                                                       \
  }

KERNELS(float, f32)
KERNELS(bf16, bf16)
