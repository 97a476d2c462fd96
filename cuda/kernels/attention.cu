// Causal attention of packed documents, in bf16; attention.cuh says what it rests on.
#include "attention.cuh"

// Arguments of the forward, here and in attention_f32.cu. In a sequence, row r attends to start[r]..r.
struct AttentionArgs {
  const bf16 *q, *k, *v;
  const int *start;
  bf16 *out;
  float *lse;
  i64 rows; // of all sequences
  int seq_len, heads, kv_heads;
  float scale;
};

// A block takes 128 queries of one head and goes over the keys from the least start to the last query, 64 at
// a time; each of its warps has 16·M queries. Queries stay in registers: they come by way of the stage that is
// filled last.
//
// FLOPs: 4·D a score in the tiles that are read, two products: half of SeqLen² scores a head, and the halves
// of tiles that the diagonal cuts off. Bytes: Q, Out and LSE once; K and V once a block, from L2 after the
// first of a group: 128 FLOPs a byte, so that the 121 TFLOP/s of an L4 ask less than 1 TB/s of its L2. Half
// the queries a block would ask for twice that. So tensor cores or shared memory are the limit, and
// what has to stay below is the rest of a tile's instructions (about four for each product, at D=128).
//
// The power of a row's greatest score is computed with one rounding, by which all powers of the row are off alike,
// and the greatest is rounded the same way for a tile that leaves it as it is: its sums are then multiplied by 1.
//
// Shared memory 512·D bytes (32 KB, 64 KB). Registers at most 255: two blocks of 4 warps on a multiprocessor for
// D=64, one of 8 for D=128, whose result alone takes 64.
template <int D> __device__ __forceinline__ void forward(const AttentionArgs &a) {
  constexpr int M = tall<D>;
  extern __shared__ __align__(1024) uint4 shared[];
  const u32 stages = shared_address(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.x, block = (gridDim.z - 1 - blockIdx.z) * ROWS; // the longest first
  const i64 first = i64(blockIdx.y) * a.seq_len;                            // row of the sequence
  const int q_stride = a.heads * D, kv_stride = a.kv_heads * D;
  const bf16 *k = a.k + first * kv_stride + head / (a.heads / a.kv_heads) * D;
  const bf16 *v = a.v + first * kv_stride + head / (a.heads / a.kv_heads) * D;
  const Rows<M> rows(a.start + first, block, a.seq_len);

  auto fetch = [&](int stage, int tile) {
    i64 at = i64(tile) * TILE * kv_stride;
    u32 to = stages + stage * 2 * tile_bytes<D>;
    copy_tile<D, TILE>(to, k + at, kv_stride, a.seq_len - tile * TILE);
    copy_tile<D, TILE>(to + tile_bytes<D>, v + at, kv_stride, a.seq_len - tile * TILE);
    commit();
  };
  int tile = rows.from / TILE, stage = 0;
  const int last = (min(block + ROWS, a.seq_len) - 1) / TILE;
  copy_tile<D, ROWS>(stages + 2 * tile_bytes<D>, a.q + (first + block) * q_stride + head * D, q_stride,
                     a.seq_len - block);
  commit();
  fetch(0, tile);
  wait_but<1>();
  __syncthreads();
  u32 q[D / 16][M][4];
#pragma unroll
  for (int i = 0; i < D / 16; i++) {
#pragma unroll
    for (int m = 0; m < M; m++) left<D>(q[i][m], stages + 2 * tile_bytes<D> + lane_rows<D>(), (warp * M + m) * 16, i);
  }

  float out[M][D / 8][4] = {}, most[2 * M], sum[2 * M] = {};
#pragma unroll
  for (int i = 0; i < 2 * M; i++) most[i] = nothing();
  const float scale = a.scale * LOG2E;
  for (; tile <= last; tile++, stage ^= 1) {
    wait_but<0>();
    __syncthreads();
    if (tile < last) fetch(stage ^ 1, tile + 1);
    const int key = tile * TILE;
    if (!rows.sees(key, TILE)) continue;
    const u32 tiles = stages + stage * 2 * tile_bytes<D>;
    const u32 keys = tiles + lane_columns<D>(), values = tiles + tile_bytes<D> + lane_rows<D>();

    float p[M][TILE / 8][4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
#pragma unroll
      for (int n = 0; n < TILE / 16; n++) {
        u32 b[4];
        right<D>(b, keys, 16 * n, i);
#pragma unroll
        for (int m = 0; m < M; m++) {
          multiply_add(p[m][2 * n], q[i][m], b[0], b[1]);
          multiply_add(p[m][2 * n + 1], q[i][m], b[2], b[3]);
        }
      }
    }
    if (!rows.sees_all(key, TILE)) {
#pragma unroll
      for (int i = 0; i < 2 * M; i++) {
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            if (rows.hides(i, key + 8 * n + lane % 4 * 2 + e)) p[i / 2][n][i % 2 * 2 + e] = nothing();
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
      const int m = i / 2, h = i % 2 * 2;
      float most_now = most[i];
#pragma unroll
      for (int n = 0; n < TILE / 8; n++) most_now = fmaxf(most_now, fmaxf(p[m][n][h], p[m][n][h + 1]));
      most_now = fmaxf(most_now, __shfl_xor_sync(0xffffffffu, most_now, 1));
      most_now = fmaxf(most_now, __shfl_xor_sync(0xffffffffu, most_now, 2));
      // Both are rounded by themselves, or compilers make the product part of a subtraction. A row that has seen
      // no key yet has nothing to subtract.
      const float was = __fmul_rn(most[i], scale), now = __fmul_rn(most_now, scale);
      const float less = now == nothing() ? 0.0f : now;
      const float shrink = power_of_2(was - less);
      most[i] = most_now;
      sum[i] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 8; n++) {
        out[m][n][h] *= shrink;
        out[m][n][h + 1] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < TILE / 8; n++) {
        p[m][n][h] = power_of_2(fmaf(p[m][n][h], scale, -less));
        p[m][n][h + 1] = power_of_2(fmaf(p[m][n][h + 1], scale, -less));
        sum[i] += p[m][n][h] + p[m][n][h + 1];
      }
    }
#pragma unroll
    for (int n = 0; n < TILE / 16; n++) {
      u32 x[M][4];
#pragma unroll
      for (int m = 0; m < M; m++) as_left(x[m], p[m][2 * n], p[m][2 * n + 1]);
      add_product<D, M>(out, x, values, 16 * n);
    }
  }

#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
    if (lane % 4 == 0 && rows.row[i] < a.seq_len) {
      a.lse[(first + rows.row[i]) * a.heads + head] = fmaf(most[i], a.scale, logf(sum[i]));
    }
  }
  __syncthreads(); // all are done with the tiles
#pragma unroll
  for (int m = 0; m < M; m++) {
    const int row = rows.first + 16 * m;
    write_rows<D>(a.out + (first + row) * q_stride + head * D, q_stride, a.seq_len - row, out[m], 1 / sum[2 * m],
                  1 / sum[2 * m + 1], shared + (warp * M + m) * (16 * D / 8));
  }
}

#define KERNELS(D)                                                          \
  extern "C" __global__ void __launch_bounds__(threads<D>, D == 64 ? 2 : 1) \
  attention_h##D##_bf16(const AttentionArgs a) { forward<D>(a); }

KERNELS(64)
KERNELS(128)
