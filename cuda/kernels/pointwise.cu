// SwiGLU and its backward, element by element.
#include "common.cuh"

struct SwiGLUArgs {
  const void *gate;
  const void *up;
  void *out;
  i64 n;
  u32 vector; // all addresses are aligned to 16 bytes
};

struct SwiGLUBackwardArgs {
  const void *gate;
  const void *up;
  const void *dout;
  void *dgate;
  void *dup;
  i64 n;
  u32 vector;
};

// sigmoid is 1/(1+e^−x): right to a few roundings for fp32. For bf16 it is what the special function unit
// gives, in 4 instructions for some 20: with those, a GPU whose memory moves 4 TB/s would wait for its
// arithmetic. It is off by a relative 2⁻²² or so, and by |x|·2⁻²⁴ where x is negative and large.
template <typename T> __device__ __forceinline__ float sigmoid(float x);
template <> __device__ __forceinline__ float sigmoid<float>(float x) { return 1.0f / (1.0f + expf(-x)); }
template <> __device__ __forceinline__ float sigmoid<bf16>(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + y));
  return y;
}

// Moves 3 numbers an element, 6 FLOPs: bound by memory. A thread has one pack of each operand, so that a
// full multiprocessor has 64 KB under way, and no loop.
template <typename T> struct SwiGLU {
  const SwiGLUArgs &a;

  template <int N> __device__ __forceinline__ void at(i64 i) const {
    float gate[N], up[N];
    load(gate, static_cast<const T *>(a.gate), i);
    load(up, static_cast<const T *>(a.up), i);
#pragma unroll
    for (int k = 0; k < N; k++) gate[k] = gate[k] * sigmoid<T>(gate[k]) * up[k];
    store(static_cast<T *>(a.out), i, gate);
  }
};

// Moves 5 numbers an element, 10 FLOPs. Operands may be written in place, as a thread reads all of an
// element before it writes.
template <typename T> struct SwiGLUBackward {
  const SwiGLUBackwardArgs &a;

  template <int N> __device__ __forceinline__ void at(i64 i) const {
    float gate[N], up[N], dout[N];
    load(gate, static_cast<const T *>(a.gate), i);
    load(up, static_cast<const T *>(a.up), i);
    load(dout, static_cast<const T *>(a.dout), i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      float g = gate[k], s = sigmoid<T>(g);
      gate[k] = dout[k] * up[k] * s * (1.0f + g * (1.0f - s));
      up[k] = dout[k] * g * s;
    }
    store(static_cast<T *>(a.dgate), i, gate);
    store(static_cast<T *>(a.dup), i, up);
  }
};

#define KERNELS(T, type)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 6) swi_glu_##type(const SwiGLUArgs a) {                    \
    each<full<T>>(a.n, a.vector, SwiGLU<T>{a});                                                                   \
  }                                                                                                         \
  extern "C" __global__ void __launch_bounds__(256, 6) swi_glu_backward_##type(const SwiGLUBackwardArgs a) {   \
    each<full<T>>(a.n, a.vector, SwiGLUBackward<T>{a});                                                           \
  }

KERNELS(float, f32)
KERNELS(bf16, bf16)
