// The gradient of an embedding: rows that share a token are added up.
#include "common.cuh"

struct EmbedBackwardArgs {
  const void *dout;
  const int *ids;
  void *dtable;
  u32 rows, dim, vocab;
  u32 vector; // rows are aligned to 16 bytes
};

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int EACH = 4;              // rows that a thread looks at in one turn
constexpr int TURN = THREADS * EACH; // rows that a block looks at: a bit for each in a warp's registers
static_assert(TURN == 32 * 32, "");

// Moves dout once, and twice a row of dtable for each token that occurs; one addition an element. Beside
// that every block looks at ids until it finds an earlier row of its token, and the first row's blocks at
// all of them: at most rows²·4 bytes for each 2,048 columns of a table in bf16, for each 1,024 of one in fp32,
// from L2. With 8,192 rows that is 270 MB, a tenth of a millisecond on an L4, where dout and dtable take as
// long; it grows with the square, and at 65,536 rows sorting the rows first would be better, for which the
// operation has no memory.
//
// A block has a row and a stretch of columns, a thread 16 bytes of the table's row, so that a warp's accesses are
// of neighbouring bytes. If an earlier row has the same token the block is done: that row's block adds this one as
// well. It searches backwards, so that frequent tokens are done soon. The block of a token's first row adds the
// rows of its token in their order, in fp32 registers, and writes the token's row of dtable, which no other block
// touches: no atomics, and one order.
template <typename T, typename D, int N> __device__ __forceinline__ void embed_backward(const EmbedBackwardArgs &a) {
  __shared__ u32 found[TURN / 32]; // bits: the rows of this turn that have the token
  __shared__ int list[TURN], count;
  int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int id = in_range(a.ids[row], a.vocab);
  for (int from = row; from > 0; from -= TURN) {
    bool earlier = false;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int i = from - 1 - e * THREADS - int(threadIdx.x);
      earlier |= i >= 0 && a.ids[i] == id;
    }
    if (__syncthreads_or(earlier)) return;
  }
  int packs = a.dim / N, pack = blockIdx.y * THREADS + threadIdx.x;
  bool mine = pack < packs;
  const T *dout = static_cast<const T *>(a.dout);
  D *dtable = static_cast<D *>(a.dtable);
  i64 to = i64(id) * packs + pack;
  float sum[N] = {};
  if (mine) load(sum, dtable, to);
  for (int from = row; from < int(a.rows); from += TURN) {
    u32 any = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int word = e * WARPS + warp, i = from + word * 32 + lane;
      u32 same = __ballot_sync(0xffffffffu, i < int(a.rows) && a.ids[i] == id);
      if (lane == 0) found[word] = same;
      any |= same;
    }
    if (!__syncthreads_or(any)) continue;
    if (warp == 0) {
      u32 same = found[lane];
      int end = __popc(same);
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        int before = __shfl_up_sync(0xffffffffu, end, d);
        if (lane >= d) end += before;
      }
      for (int at = end - __popc(same); same; same &= same - 1) list[at++] = from + lane * 32 + __ffs(same) - 1;
      if (lane == 31) count = end;
    }
    __syncthreads();
    if (!mine) continue;
#pragma unroll 4
    for (int j = 0; j < count; j++) {
      float x[N];
      load(x, dout, i64(list[j]) * packs + pack);
#pragma unroll
      for (int k = 0; k < N; k++) sum[k] += x[k];
    }
  }
  if (mine) store(dtable, to, sum);
}

#define KERNEL(T, D, type)                                                                                       \
  extern "C" __global__ void __launch_bounds__(THREADS, 5) embed_backward_##type(const EmbedBackwardArgs a) {   \
    BODY(embed_backward, full<D>, T, D)                                                                          \
  }

KERNEL(float, float, f32)
KERNEL(bf16, bf16, bf16)
KERNEL(bf16, float, bf16_f32)
