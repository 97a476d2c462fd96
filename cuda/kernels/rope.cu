// QKNormRoPE and its backward. A head is a few neighbouring lanes': each has a pack of the lower half and
// the pack of the upper half that it is rotated with, so that a rotation needs no other lane.
#include "common.cuh"

struct QKNormRoPEArgs {
  const void *q;
  const void *k;
  const void *q_weight; // or 0, with k_weight: no norm
  const void *k_weight;
  const int *pos;
  const float *cos;
  const float *sin;
  void *q_out;
  void *k_out;
  float *q_rstd; // with q_weight
  float *k_rstd;
  i64 rows;
  int heads;
  int kv_heads;
  int head_size;
  int positions;
  u32 lanes; // of a head: a power of two up to 32
  u32 vector; // all addresses are aligned to 16 bytes, and half a head is a whole multiple of them
  float eps;
  float sign; // −1 rotates back
};

struct QKNormRoPEBackwardArgs {
  const void *dq_out;
  const void *dk_out;
  const void *q;
  const void *k;
  const void *q_weight;
  const void *k_weight;
  const float *q_rstd;
  const float *k_rstd;
  const int *pos;
  const float *cos;
  const float *sin;
  float *sums; // of each part, for the query heads and for the key-value heads
  void *dq;
  void *dk;
  void *dq_weight;
  void *dk_weight;
  i64 rows;
  int heads;
  int kv_heads;
  int head_size;
  int positions;
  int parts;
  u32 lanes;
  u32 vector;
  u32 accumulate; // add to dq_weight and dk_weight
  u32 q_wide;     // dq_weight is fp32, whatever the rest is
  u32 k_wide;
};

// Head is which head a thread has a part of.
struct Head {
  u32 row;
  bool active, query;
  i64 index; // of the row's query heads or key-value heads

  // Heads are numbered row by row, query heads before key-value heads.
  template <typename Args> __device__ __forceinline__ Head(const Args &a) {
    u32 per = a.heads + a.kv_heads, item = blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
    row = item / per;
    u32 head = item % per;
    active = row < a.rows;
    query = head < a.heads;
    index = query ? i64(row) * a.heads + head : i64(row) * a.kv_heads + (head - a.heads);
  }
};

// lanes_sum adds the numbers of the lanes of a head, as a butterfly. All lanes of the warp call it.
__device__ __forceinline__ float lanes_sum(float x, u32 lanes) {
  for (u32 d = lanes / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}

// Halves are a pack of a head's lower half and its partner of the upper half.
template <int N> struct Halves {
  float low[N], high[N];

  template <typename T> __device__ __forceinline__ void read(const T *head, int half, int i) {
    load(low, head, i);
    load(high, head + half, i);
  }

  template <typename T> __device__ __forceinline__ void write(T *head, int half, int i) const {
    store(head, i, low);
    store(head + half, i, high);
  }

  __device__ __forceinline__ float dot(const Halves &y) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < N; k++) sum += low[k] * y.low[k] + high[k] * y.high[k];
    return sum;
  }

  __device__ __forceinline__ void scale(float by, const Halves &y) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      low[k] *= by * y.low[k];
      high[k] *= by * y.high[k];
    }
  }

  // rotate turns by the angles of one position, whose tables' rows cos and sin are.
  __device__ __forceinline__ void rotate(const float *cos, const float *sin, float sign, int i) {
    float c[N], s[N];
    load(c, cos, i);
    load(s, sin, i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      float x = low[k], y = high[k], t = sign * s[k];
      low[k] = x * c[k] - y * t;
      high[k] = y * c[k] + x * t;
    }
  }
};

// Reads Q and K, writes as much, and the tables once for all heads of a row; 6 FLOPs a number without
// norms, 10 with: bound by memory. A head is read twice where there is a norm, the second time from L1.
template <typename T, int N> __device__ __forceinline__ void rope(const QKNormRoPEArgs &a) {
  Head head(a);
  int half = a.head_size / 2, lane = threadIdx.x % a.lanes, packs = head.active ? half / N : 0;
  const T *x = static_cast<const T *>(head.query ? a.q : a.k) + head.index * a.head_size;
  T *out = static_cast<T *>(head.query ? a.q_out : a.k_out) + head.index * a.head_size;
  const T *weight = static_cast<const T *>(head.query ? a.q_weight : a.k_weight);
  float rstd = 1;
  if (a.q_weight != nullptr) {
    float squares = 0;
    for (int i = lane; i < packs; i += a.lanes) {
      Halves<N> h;
      h.read(x, half, i);
      squares += h.dot(h);
    }
    rstd = 1.0f / sqrtf(lanes_sum(squares, a.lanes) / float(a.head_size) + a.eps);
    if (head.active && lane == 0) (head.query ? a.q_rstd : a.k_rstd)[head.index] = rstd;
  }
  if (!head.active) return;
  i64 angles = i64(in_range(a.pos[head.row], a.positions)) * half;
  for (int i = lane; i < packs; i += a.lanes) {
    Halves<N> h;
    h.read(x, half, i);
    if (a.q_weight != nullptr) {
      Halves<N> w;
      w.read(weight, half, i);
      h.scale(rstd, w);
    }
    h.rotate(a.cos + angles, a.sin + angles, a.sign, i);
    h.write(out, half, i);
  }
}

// Reads DQOut, DKOut, Q and K, writes DQ and DK; 20 FLOPs a number: bound by memory. Only with norms;
// without, rope turns back. DX = RStd·(g − X·RStd²·mean(g·X)), where g is the gradient, turned back, times
// the weight. A head is read twice, the second time from L1.
template <typename T, int N> __device__ __forceinline__ void rope_backward(const QKNormRoPEBackwardArgs &a) {
  Head head(a);
  int half = a.head_size / 2, lane = threadIdx.x % a.lanes, packs = head.active ? half / N : 0;
  const T *x = static_cast<const T *>(head.query ? a.q : a.k) + head.index * a.head_size;
  const T *dout = static_cast<const T *>(head.query ? a.dq_out : a.dk_out) + head.index * a.head_size;
  const T *weight = static_cast<const T *>(head.query ? a.q_weight : a.k_weight);
  i64 angles = head.active ? i64(in_range(a.pos[head.row], a.positions)) * half : 0;
  const float *cos = a.cos + angles, *sin = a.sin + angles;
  float dot = 0;
  for (int i = lane; i < packs; i += a.lanes) {
    Halves<N> g, w, h;
    g.read(dout, half, i);
    g.rotate(cos, sin, -1, i);
    w.read(weight, half, i);
    g.scale(1, w);
    h.read(x, half, i);
    dot += g.dot(h);
  }
  float mean = lanes_sum(dot, a.lanes) / float(a.head_size);
  if (!head.active) return;
  float rstd = (head.query ? a.q_rstd : a.k_rstd)[head.index], scale = rstd * rstd * mean;
  T *dx = static_cast<T *>(head.query ? a.dq : a.dk) + head.index * a.head_size;
  for (int i = lane; i < packs; i += a.lanes) {
    Halves<N> g, w, h;
    g.read(dout, half, i);
    g.rotate(cos, sin, -1, i);
    w.read(weight, half, i);
    g.scale(1, w);
    h.read(x, half, i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      g.low[k] = rstd * (g.low[k] - h.low[k] * scale);
      g.high[k] = rstd * (g.high[k] - h.high[k] * scale);
    }
    g.write(dx, half, i);
  }
}

// Gradients of the weights: the sum over rows and heads of DOut, turned back, times X·RStd. Reads what the
// kernel above reads, 14 FLOPs a number: bound by memory. A block takes a pack of both halves, of the query heads
// or of the key-value heads, and one part of them, 8,192 query heads or more: 16 blocks a part for heads of 128
// numbers in bf16, each with 48 KB under way beside the angles. It has half of the sectors that it reads, its
// neighbour the other half, from L2. A thread adds every 512th head of the part, then lanes, then warps add up in
// order. weights_end adds the parts in order.
constexpr int WEIGHT_WARPS = 16;

template <typename T, int N> __device__ __forceinline__ void rope_weights(const QKNormRoPEBackwardArgs &a) {
  bool query = blockIdx.y == 0;
  int half = a.head_size / 2, pack = blockIdx.x;
  u32 heads = query ? a.heads : a.kv_heads, items = u32(a.rows) * heads, each = (items + a.parts - 1) / a.parts;
  u32 first = blockIdx.z * each, end = min(items, first + each);
  const T *x = static_cast<const T *>(query ? a.q : a.k), *dout = static_cast<const T *>(query ? a.dq_out : a.dk_out);
  const float *rstd = query ? a.q_rstd : a.k_rstd;
  float sum[2 * N] = {}; // of the lower half, then of the upper half
#pragma unroll 4
  for (u32 item = first + threadIdx.x; item < end; item += WEIGHT_WARPS * 32) {
    i64 angles = i64(in_range(a.pos[item / heads], a.positions)) * half, at = i64(item) * a.head_size;
    float r = rstd[item];
    Halves<N> d, h;
    d.read(dout + at, half, pack);
    h.read(x + at, half, pack);
    d.rotate(a.cos + angles, a.sin + angles, -1, pack);
#pragma unroll
    for (int k = 0; k < N; k++) {
      sum[k] += d.low[k] * (h.low[k] * r);
      sum[N + k] += d.high[k] * (h.high[k] * r);
    }
  }
  float total = columns_sum<WEIGHT_WARPS, 1>(sum);
  if (threadIdx.x >= 2 * N) return;
  int i = pack * N + threadIdx.x % N + (threadIdx.x < N ? 0 : half);
  a.sums[(blockIdx.z * 2 + blockIdx.y) * a.head_size + i] = total;
}

// Adds the parts' sums, which are few, in order: a thread has a number of one of the two weights.
template <typename T> __device__ __forceinline__ void weights_end(const QKNormRoPEBackwardArgs &a) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, column = i % a.head_size;
  if (i >= 2 * a.head_size) return;
  float total = 0;
#pragma unroll 4
  for (int part = 0; part < a.parts; part++) total += a.sums[part * 2 * a.head_size + i];
  bool query = i < a.head_size;
  void *dweight = query ? a.dq_weight : a.dk_weight;
  if (query ? a.q_wide : a.k_wide)
    put<float>(dweight, column, total, a.accumulate);
  else
    put<T>(dweight, column, total, a.accumulate);
}

#define KERNELS(T, type)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 4) qk_norm_rope_##type(const QKNormRoPEArgs a) {        \
    BODY(rope, full<T>, T)                                                                                           \
  }                                                                                                         \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                      \
      qk_norm_rope_backward_##type(const QKNormRoPEBackwardArgs a) {                                        \
    BODY(rope_backward, full<T>, T)                                                                                  \
  }                                                                                                         \
  extern "C" __global__ void __launch_bounds__(WEIGHT_WARPS * 32, 1)                                        \
      qk_norm_rope_weights_##type(const QKNormRoPEBackwardArgs a) {                                         \
    BODY(rope_weights, full<T>, T)                                                                          \
  }                                                                                                         \
  extern "C" __global__ void __launch_bounds__(128, 6)                                                      \
      qk_norm_rope_weights_end_##type(const QKNormRoPEBackwardArgs a) {                                     \
    weights_end<T>(a);                                                                                      \
  }

KERNELS(float, f32)
KERNELS(bf16, bf16)
