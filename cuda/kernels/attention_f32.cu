// Causal attention of packed documents and its gradients, in fp32, for heads of 64 and 128 numbers. Plain
// and in one order: fp32 is for comparing, and its speed does not matter. attention.cu has what is fast.
//
// One warp computes one row of a result for one head, with D/32 neighbouring numbers a lane, and goes over
// the other rows one by one. Each score is a warp's sum, so it costs more shuffles than
// FLOPs; the bytes, two rows of D a score, come from L1 and L2.
#include "common.cuh"

// Arguments as in attention.cu. Both head sizes share each kernel.
struct AttentionArgs {
  const float *q, *k, *v;
  const int *start;
  float *out;
  float *lse;
  i64 rows; // of all sequences
  int seq_len, heads, kv_heads;
  float scale;
};

struct AttentionBackwardArgs {
  const float *q, *k, *v;
  const int *start;
  const float *out;
  const float *lse;
  const float *dout;
  float *d;
  float *sums; // absent
  float *dq, *dk, *dv;
  i64 rows; // of all sequences
  int seq_len, heads, kv_heads;
  int parts, per; // 1, and all query heads of a key-value head
  float scale;
};

constexpr int THREADS = 128;

// Row is a lane's part of a row of one head.
template <int D> struct Row {
  float x[D / 32];

  __device__ __forceinline__ Row() : x{} {}
  __device__ __forceinline__ explicit Row(const float *row) { load(x, row, threadIdx.x % 32); }

  __device__ __forceinline__ void write(float *row) const { store(row, threadIdx.x % 32, x); }
  __device__ __forceinline__ void add(float factor, const Row &y) {
#pragma unroll
    for (int i = 0; i < D / 32; i++) x[i] += factor * y.x[i];
  }
  __device__ __forceinline__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < D / 32; i++) x[i] *= factor;
  }
};

// dot returns the product of two whole rows to all lanes.
template <int D> __device__ __forceinline__ float dot(const Row<D> &a, const Row<D> &b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < D / 32; i++) sum += a.x[i] * b.x[i];
  return warp_sum(sum);
}

// Place is the row and head of a warp's result, of rows × heads.
struct Place {
  i64 row, first; // of all rows; the first of row's sequence
  int head;
  bool there;

  __device__ __forceinline__ Place(i64 rows, int seq_len, int heads) {
    const i64 i = i64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    row = i / heads;
    head = int(i % heads);
    first = row / seq_len * seq_len;
    there = row < rows;
  }
};

template <int D> __device__ __forceinline__ void forward(const AttentionArgs &a) {
  const Place p(a.rows, a.seq_len, a.heads);
  if (!p.there) return;
  const int kv_head = p.head / (a.heads / a.kv_heads), at = int(p.row - p.first);
  const i64 here = p.row * a.heads + p.head;
  const Row<D> q(a.q + here * D);
  Row<D> out;
  float most = nothing(), sum = 0;
  for (int j = in_range(a.start[p.row], at + 1); j <= at; j++) {
    const i64 other = ((p.first + j) * a.kv_heads + kv_head) * D;
    const float score = a.scale * dot(q, Row<D>(a.k + other));
    if (score == nothing()) continue; // an overflow, of which e^(−∞ − −∞) would be no number
    if (score > most) {
      const float shrink = expf(most - score);
      sum *= shrink;
      out.scale(shrink);
      most = score;
    }
    const float e = expf(score - most);
    sum += e;
    out.add(e, Row<D>(a.v + other));
  }
  out.scale(1 / sum);
  out.write(a.out + here * D);
  if (threadIdx.x % 32 == 0) a.lse[here] = most + logf(sum);
}

template <int D> __device__ __forceinline__ void backward_d(const AttentionBackwardArgs &a) {
  const Place p(a.rows, a.seq_len, a.heads);
  if (!p.there) return;
  const i64 here = p.row * a.heads + p.head;
  const float d = dot(Row<D>(a.dout + here * D), Row<D>(a.out + here * D));
  if (threadIdx.x % 32 == 0) a.d[here] = d;
}

template <int D> __device__ __forceinline__ void backward_q(const AttentionBackwardArgs &a) {
  const Place p(a.rows, a.seq_len, a.heads);
  if (!p.there) return;
  const int kv_head = p.head / (a.heads / a.kv_heads), at = int(p.row - p.first);
  const i64 here = p.row * a.heads + p.head;
  const Row<D> q(a.q + here * D), dout(a.dout + here * D);
  const float lse = a.lse[here], d = a.d[here];
  Row<D> dq;
  for (int j = in_range(a.start[p.row], at + 1); j <= at; j++) {
    const i64 other = ((p.first + j) * a.kv_heads + kv_head) * D;
    const Row<D> k(a.k + other), v(a.v + other);
    dq.add(expf(a.scale * dot(q, k) - lse) * (dot(dout, v) - d), k);
  }
  dq.scale(a.scale);
  dq.write(a.dq + here * D);
}

template <int D> __device__ __forceinline__ void backward_kv(const AttentionBackwardArgs &a) {
  const Place p(a.rows, a.seq_len, a.kv_heads);
  if (!p.there) return;
  const int group = a.heads / a.kv_heads, at = int(p.row - p.first);
  const i64 here = (p.row * a.kv_heads + p.head) * D;
  const Row<D> k(a.k + here), v(a.v + here);
  Row<D> dk, dv;
  for (int head = p.head * group; head < (p.head + 1) * group; head++) {
    for (int i = at; i < a.seq_len; i++) {
      if (a.start[p.first + i] > at) continue;
      const i64 other = (p.first + i) * a.heads + head;
      const Row<D> q(a.q + other * D), dout(a.dout + other * D);
      const float e = expf(a.scale * dot(q, k) - a.lse[other]);
      dv.add(e, dout);
      dk.add(e * (dot(dout, v) - a.d[other]), q);
    }
  }
  dk.scale(a.scale);
  dk.write(a.dk + here);
  dv.write(a.dv + here);
}

#define KERNELS(D)                                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS, 4)                                                  \
  attention_h##D##_f32(const AttentionArgs a) { forward<D>(a); }                                           \
  extern "C" __global__ void __launch_bounds__(THREADS, 4)                                                  \
  attention_backward_d_h##D##_f32(const AttentionBackwardArgs a) { backward_d<D>(a); }                     \
  extern "C" __global__ void __launch_bounds__(THREADS, 4)                                                  \
  attention_backward_q_h##D##_f32(const AttentionBackwardArgs a) { backward_q<D>(a); }                     \
  extern "C" __global__ void __launch_bounds__(THREADS, 4)                                                  \
  attention_backward_kv_h##D##_f32(const AttentionBackwardArgs a) { backward_kv<D>(a); }

KERNELS(64)
KERNELS(128)
