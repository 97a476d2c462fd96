// Operations that move or fill memory: Cast, Copy, Fill, Embed. All are bound by memory; a thread has 16 bytes of
// the wider operand, so that a warp's access is always of neighbouring bytes.
#include "common.cuh"

struct CastArgs {
  const void *src;
  void *dst;
  i64 n;
  u32 vector; // both addresses are aligned to 16 bytes
};

struct CopyArgs {
  const void *src;
  void *dst;
  i64 n;
  u32 vector;
};

struct FillArgs {
  void *dst;
  i64 n;
  u32 bits; // of one element; of bf16 the lower half
  u32 vector;
};

struct EmbedArgs {
  const void *table;
  const int *ids;
  void *out;
  i64 rows;
  i64 dim;
  int vocab;
  u32 vector; // rows are whole multiples of 16 bytes, too
};

// Moves 6 bytes an element, in either direction.
template <typename From, typename To> struct Cast {
  const CastArgs &a;

  template <int N> __device__ __forceinline__ void at(i64 i) const {
    float x[N];
    load(x, static_cast<const From *>(a.src), i);
    store(static_cast<To *>(a.dst), i, x);
  }
};

extern "C" __global__ void __launch_bounds__(256, 6) cast_f32(const CastArgs a) { each<4>(a.n, a.vector, Cast<bf16, float>{a}); }
extern "C" __global__ void __launch_bounds__(256, 6) cast_bf16(const CastArgs a) { each<4>(a.n, a.vector, Cast<float, bf16>{a}); }

// Moves each byte twice. T is any type of the elements' size: bits are copied.
template <typename T> struct Copy {
  const CopyArgs &a;

  template <int N> __device__ __forceinline__ void at(i64 i) const {
    if constexpr (N == 1) {
      static_cast<T *>(a.dst)[i] = static_cast<const T *>(a.src)[i];
    } else {
      static_cast<Words *>(a.dst)[i] = static_cast<const Words *>(a.src)[i];
    }
  }
};

template <typename T> struct Fill {
  const FillArgs &a;

  template <int N> __device__ __forceinline__ void at(i64 i) const {
    if constexpr (N == 1) {
      static_cast<T *>(a.dst)[i] = T(a.bits);
    } else {
      u32 w = sizeof(T) == 2 ? a.bits | a.bits << 16 : a.bits;
      static_cast<Words *>(a.dst)[i] = Words{{w, w, w, w}};
    }
  }
};

// Reads and writes each row's bytes once, by one warp a row: rows of the table are far apart, and a warp
// finds out with one read which one is its own.
template <typename T> __device__ __forceinline__ void embed(const EmbedArgs &a) {
  i64 row = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= a.rows) return;
  i64 from = in_range(a.ids[row], a.vocab) * a.dim, to = row * a.dim;
  const T *table = static_cast<const T *>(a.table) + from;
  T *out = static_cast<T *>(a.out) + to;
  if (a.vector) {
    const Words *source = reinterpret_cast<const Words *>(table);
    Words *target = reinterpret_cast<Words *>(out);
    i64 n = a.dim / full<T>;
#pragma unroll 4
    for (i64 i = threadIdx.x % 32; i < n; i += 32) target[i] = source[i];
  } else {
    for (i64 i = threadIdx.x % 32; i < a.dim; i += 32) out[i] = table[i];
  }
}

#define KERNELS(T, type)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 6) copy_##type(const CopyArgs a) {                         \
    each<full<T>>(a.n, a.vector, Copy<T>{a});                                                               \
  }                                                                                                         \
  extern "C" __global__ void __launch_bounds__(256, 6) fill_##type(const FillArgs a) {                         \
    each<full<T>>(a.n, a.vector, Fill<T>{a});                                                               \
  }                                                                                                         \
  extern "C" __global__ void __launch_bounds__(256, 6) embed_##type(const EmbedArgs a) { embed<T>(a); }

KERNELS(u32, f32)
KERNELS(unsigned short, bf16)
