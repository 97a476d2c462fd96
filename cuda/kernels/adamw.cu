// AdamW over a range of parameters.
#include "common.cuh"

struct AdamWArgs {
  float *param;
  float *m;
  float *v;
  const void *grad;
  const float *hyper; // as device.Hyper... count
  bf16 *copy;         // absent: 0
  u64 seed;
  i64 index; // of the first element, for its random number
  i64 n;
  float one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay;
  u32 stochastic;
  u32 vector; // all addresses are aligned to packs of four
};

// What hyper holds, by index (device.HyperLR and on).
enum { LR, GRAD_SCALE, BIAS1, BIAS2, STEP };

// mix is splitmix64's finaliser, as package device has it.
__device__ __forceinline__ u64 mix(u64 z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

// stochastic_bf16 rounds up with a probability of the distance from the lower neighbour: 16 random bits are
// added to those that bf16 has no room for. What is not finite is rounded to nearest.
__device__ __forceinline__ bf16 stochastic_bf16(float x, u64 random) {
  u32 b = __float_as_uint(x);
  if ((b & 0x7f800000u) == 0x7f800000u) return from_float<bf16>(x);
  bf16 y;
  y.bits = (b + u32(random & 0xffff)) >> 16;
  return y;
}

// gradient reads N numbers at index i·N of p, at once.
template <typename T, int N> __device__ __forceinline__ void gradient(float (&to)[N], const void *p, i64 i) {
  Pack<T, N> x = static_cast<const Pack<T, N> *>(p)[i];
#pragma unroll
  for (int k = 0; k < N; k++) to[k] = to_float(x.v[k]);
}

// update computes N elements at index i·N, in the order of operations of device.AdamW.
template <typename T, int N> __device__ __forceinline__ void update(const AdamWArgs &a, i64 i) {
  float p[N], m[N], v[N], g[N];
  load(p, a.param, i);
  load(m, a.m, i);
  load(v, a.v, i);
  gradient<T>(g, a.grad, i);
  float lr = a.hyper[LR], grad_scale = a.hyper[GRAD_SCALE], bias2 = a.hyper[BIAS2];
  float rate = lr * a.hyper[BIAS1], decay = 1.0f - lr * a.weight_decay;
#pragma unroll
  for (int k = 0; k < N; k++) {
    float x = g[k] * grad_scale;
    m[k] += a.one_minus_beta1 * (x - m[k]);
    v[k] = a.beta2 * v[k] + a.one_minus_beta2 * x * x;
    p[k] = p[k] * decay - rate * m[k] / (sqrtf(v[k]) * bias2 + a.eps);
  }
  store(a.param, i, p);
  store(a.m, i, m);
  store(a.v, i, v);
  if (!a.copy) return;
  Pack<bf16, N> copy;
  u64 key = mix(mix(a.seed) + u64(a.hyper[STEP]));
#pragma unroll
  for (int k = 0; k < N; k++)
    copy.v[k] = a.stochastic ? stochastic_bf16(p[k], mix(key + u64(a.index + i * N + k))) : from_float<bf16>(p[k]);
  reinterpret_cast<Pack<bf16, N> *>(a.copy)[i] = copy;
}

// Moves, with a bf16 copy, 30 bytes an element with gradients in fp32 and 28 in bf16, for 12 FLOPs: bound by
// memory. Division and square root are correctly rounded and the random numbers are whole splitmix64: 57
// instructions of PTX an element, 38 without them; an H200 has time for about 170 while it moves them.
//
// A thread has four elements: 16 bytes of what is fp32 and 8 of what is bf16, so that a warp's access is
// always of neighbouring bytes. With eight, each access of fp32 would leave out every second 16 bytes.
template <typename T> __device__ __forceinline__ void adam_w(const AdamWArgs &a) {
  constexpr int N = 4;
  i64 first = i64(blockIdx.x) * blockDim.x * N;
  if (a.vector && first + i64(blockDim.x) * N <= a.n) {
    update<T, N>(a, first / N + threadIdx.x);
    return;
  }
#pragma unroll 1
  for (int k = 0; k < N; k++) {
    i64 i = first + k * blockDim.x + threadIdx.x;
    if (i < a.n) update<T, 1>(a, i);
  }
}

extern "C" __global__ void __launch_bounds__(256, 5) adam_w_f32(const AdamWArgs a) { adam_w<float>(a); }
extern "C" __global__ void __launch_bounds__(256, 5) adam_w_bf16(const AdamWArgs a) { adam_w<bf16>(a); }
