// The gradients of attention, in bf16, in three passes; attention.cuh says what they rest on.
#include "attention.cuh"

// Arguments of the backward, here and in attention_f32.cu.
struct AttentionBackwardArgs {
  const bf16 *q, *k, *v;
  const int *start;
  const bf16 *out;
  const float *lse;
  const bf16 *dout;
  float *d;
  float *sums; // of DK and DV by parts of the query heads, or 0
  bf16 *dq, *dk, *dv;
  i64 rows; // of all sequences
  int seq_len, heads, kv_heads;
  int parts, per; // of a key-value head's query heads, and how many a part has
  float scale;
};

constexpr int D_THREADS = 256, SUM_THREADS = 256;

// ---- D, the sum of DOut·Out of a row and head
//
// D/8 lanes a row and head. It moves 4·D bytes and does 2·D FLOPs for each: memory is the limit.
template <int D> __device__ __forceinline__ void backward_d(const AttentionBackwardArgs &a) {
  constexpr int ACROSS = D / 8;
  const i64 n = a.rows * a.heads, i = (i64(blockIdx.x) * D_THREADS + threadIdx.x) / ACROSS;
  float sum = 0, x[8], y[8];
  if (i < n) {
    load(x, a.out, i * ACROSS + threadIdx.x % ACROSS);
    load(y, a.dout, i * ACROSS + threadIdx.x % ACROSS);
#pragma unroll
    for (int j = 0; j < 8; j++) sum += x[j] * y[j];
  }
  sum = group_sum<ACROSS>(sum);
  if (i < n && threadIdx.x % ACROSS == 0) a.d[i] = sum;
}

// ---- DK and DV, by blocks of keys
//
// A block takes 64 keys of one key-value head and goes over query heads of it in order, and in each over the
// queries that may see one of the keys, 64 at a time. A warp has 16·M keys and half of each tile of queries; the
// halves' sums are added at the end, in order. Blocks of 128 keys would leave half an L4 idle: a model of 1.5B has
// two key-value heads.
//
// Where even so there would be few blocks (device.AttentionParts), a block has only some of the query heads, a
// part, and leaves its sums in fp32 to the kernel below.
//
// Scores are computed transposed, keys by queries: so they are left operands of DV += Pᵀ·DOut and
// DK += DSᵀ·Q as they are. FLOPs: 8·D a score, four products; with the pass for DQ seven, where five would do
// if one pass could add to DQ in whatever order its blocks come, that is, with atomics. Bytes: K, V, DK and DV
// once, with parts K and V once a part and 8 bytes of sums for each number of DK and DV and part; Q and DOut once
// a block, from L2: 128 FLOPs a byte.
//
// Shared memory 768·D + 1024 bytes (49 KB, 97 KB): keys and values stay there and are read again for each
// tile of queries, as a warp's sums alone take M·D registers a lane. With the 1 KB that the system takes of each
// block, two of D=64 are just the 100 KB of an L4's multiprocessor; so starts are read from L1. Registers at most
// 255: two blocks of 4 warps for D=64, one of 8 for D=128.
template <int D> __device__ __forceinline__ void backward_kv(const AttentionBackwardArgs &a) {
  constexpr int M = tall<D>, HALF = threads<D> / 2; // threads that share half of a tile of queries
  extern __shared__ __align__(1024) uint4 shared[];
  const u32 keys = shared_address(shared), values = keys + tile_bytes<D>, stages = values + tile_bytes<D>;
  float *const numbers = reinterpret_cast<float *>(shared) + 6 * tile_bytes<D> / 4; // of two stages: LSE, D
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = threadIdx.x / HALF;
  const int group = a.heads / a.kv_heads, block = blockIdx.z * TILE;
  const int kv_head = blockIdx.x / a.parts, first_head = kv_head * group + blockIdx.x % a.parts * a.per;
  const int end_head = min(first_head + a.per, (kv_head + 1) * group);
  const int first = blockIdx.y * a.seq_len, q_stride = a.heads * D, kv_stride = a.kv_heads * D;
  copy_tile<D, TILE>(keys, a.k + i64(first + block) * kv_stride + kv_head * D, kv_stride, a.seq_len - block);
  copy_tile<D, TILE>(values, a.v + i64(first + block) * kv_stride + kv_head * D, kv_stride, a.seq_len - block);

  auto fetch = [&](int stage, int head, int tile) {
    const int row = first + tile * TILE;
    const int present = a.seq_len - tile * TILE;
    const u32 to = stages + stage * 2 * tile_bytes<D>;
    copy_tile<D, TILE>(to, a.q + i64(row) * q_stride + head * D, q_stride, present);
    copy_tile<D, TILE>(to + tile_bytes<D>, a.dout + i64(row) * q_stride + head * D, q_stride, present);
    const int what = threadIdx.x / TILE, r = threadIdx.x % TILE;
    if (what < 2) {
      const i64 at = i64(row + (r < present ? r : 0)) * a.heads + head;
      copy_4(shared_address(numbers + (stage * 2 + what) * TILE + r), (what == 0 ? a.lse : a.d) + at, r < present);
    }
    commit();
  };

  // The walk: query heads in order, in each the tiles of queries that see a key. Tiles are looked at 32 at a
  // time, which gives a bit each, and the loads of four of them are under way at once. It begins behind the last tile
  // of the head before the first.
  const int last_tile = (a.seq_len - 1) / TILE;
  int head = first_head - 1, base = last_tile, tile = last_tile + 1;
  u32 bits = 0;
  auto next = [&]() { // moves head and tile on; false at the end
    while (bits == 0) {
      base += 32;
      if (base > last_tile) {
        base = block / TILE;
        if (++head == end_head) return false;
      }
#pragma unroll 1
      for (int b = 0; b < 32 && base + b <= last_tile; b += 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int r = (base + b + i) * TILE + lane;
          const bool one = r < a.seq_len && a.start[first + r] < block + TILE;
          const bool other = r + 32 < a.seq_len && a.start[first + r + 32] < block + TILE;
          bits |= u32(__any_sync(0xffffffffu, one || other) != 0) << (b + i);
        }
      }
    }
    const int b = __ffs(bits) - 1;
    bits &= bits - 1;
    tile = base + b;
    return true;
  };

  float dk[M][D / 8][4] = {}, dv[M][D / 8][4] = {};
  const float scale = a.scale * LOG2E;
  const int row = warp % (HALF / 32) * (16 * M); // of the warp's keys in their tile
  for (int stage = 1;; stage ^= 1) { // in the first turn nothing but the first tile of queries is fetched
    const int query = tile * TILE + half * 32; // the warp's first
    wait_but<0>();
    __syncthreads();
    const bool more = next();
    if (more) fetch(stage ^ 1, head, tile);
    if (query < a.seq_len && query + 31 >= block + row) {
      const u32 tiles = stages + stage * 2 * tile_bytes<D>;
      const u32 queries = tiles + lane_columns<D>(), query_rows = tiles + lane_rows<D>();
      const u32 own = here(keys + lane_rows<D>() + row * (2 * D));
      const float *lse = numbers + stage * 2 * TILE + half * 32, *d = lse + TILE;
      float p[M][4][4] = {}, ds[M][4][4] = {};
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        u32 x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) left<D>(x[m], own, 16 * m, i);
#pragma unroll
        for (int n = 0; n < 2; n++) {
          u32 b[4];
          right<D>(b, queries, half * 32 + 16 * n, i);
#pragma unroll
          for (int m = 0; m < M; m++) {
            multiply_add(p[m][2 * n], x[m], b[0], b[1]);
            multiply_add(p[m][2 * n + 1], x[m], b[2], b[3]);
          }
        }
      }
      u32 seen = 0; // a bit for each score
#pragma unroll
      for (int j = 0; j < 8; j++) { // the lane's queries
        const int q = query + j / 2 * 8 + lane % 4 * 2 + j % 2, from = q < a.seq_len ? a.start[first + q] : a.seq_len;
#pragma unroll
        for (int i = 0; i < 2 * M; i++) { // its keys
          const int key = block + row + lane / 4 + 8 * i;
          if (from <= key && key <= q) seen |= 1u << (8 * i + j);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float less = lse[8 * n + lane % 4 * 2 + e] * LOG2E;
#pragma unroll
          for (int i = 0; i < 2 * M; i++) {
            float &x = p[i / 2][n][i % 2 * 2 + e];
            x = seen >> (8 * i + 2 * n + e) & 1 ? power_of_2(fmaf(x, scale, -less)) : 0.0f;
          }
        }
      }
#pragma unroll
      for (int n = 0; n < 2; n++) {
        u32 x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) as_left(x[m], p[m][2 * n], p[m][2 * n + 1]);
        add_product<D, M>(dv, x, query_rows + tile_bytes<D>, half * 32 + 16 * n);
      }
#pragma unroll 2 // all four would cost spills
      for (int i = 0; i < D / 16; i++) {
        u32 x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) left<D>(x[m], own + tile_bytes<D>, 16 * m, i);
#pragma unroll
        for (int n = 0; n < 2; n++) {
          u32 b[4];
          right<D>(b, queries + tile_bytes<D>, half * 32 + 16 * n, i);
#pragma unroll
          for (int m = 0; m < M; m++) {
            multiply_add(ds[m][2 * n], x[m], b[0], b[1]);
            multiply_add(ds[m][2 * n + 1], x[m], b[2], b[3]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float less = d[8 * n + lane % 4 * 2 + e];
#pragma unroll
          for (int i = 0; i < 2 * M; i++) {
            float &x = ds[i / 2][n][i % 2 * 2 + e];
            x = p[i / 2][n][i % 2 * 2 + e] * (x - less);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < 2; n++) {
        u32 x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) as_left(x[m], ds[m][2 * n], ds[m][2 * n + 1]);
        add_product<D, M>(dk, x, query_rows, half * 32 + 16 * n);
      }
    }
    if (!more) break;
  }

  // The second half gives its DK away and takes the first half's DV.
  float *const sums = reinterpret_cast<float *>(shared);
  const int thread = threadIdx.x % HALF;
  __syncthreads();
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        sums[(((half * M + m) * (D / 8) + n) * 4 + e) * HALF + thread] = half ? dk[m][n][e] : dv[m][n][e];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float other = sums[((((1 - half) * M + m) * (D / 8) + n) * 4 + e) * HALF + thread];
        dk[m][n][e] = half ? other + dv[m][n][e] : dk[m][n][e] + other;
      }
    }
  }
  const u32 of = here(blockIdx.x); // asked again, not kept
  const i64 to = i64(first + block + row) * kv_stride + of / a.parts * D;
  const int present = a.seq_len - block - row;
  if (a.sums != nullptr) { // whole sectors of 32 bytes, as four lanes have eight neighbouring numbers
    float *const part_sums = a.sums + (of % a.parts * 2 + half) * (a.rows * kv_stride) + to;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int r = 16 * m + lane / 4 + 4 * e;
        if (r >= present) continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
          const float two[2] = {dk[m][n][e], dk[m][n][e + 1]};
          store(part_sums + i64(r) * kv_stride + 8 * n, lane % 4, two);
        }
      }
    }
    return;
  }
  const float last_scale = half ? 1.0f : a.scale;
#pragma unroll
  for (int m = 0; m < M; m++) {
    write_rows<D>((half ? a.dv : a.dk) + to + i64(16 * m) * kv_stride, kv_stride, present - 16 * m, dk[m], last_scale, last_scale,
                  shared + 4 * tile_bytes<D> / 16 + (warp * M + m) * (16 * D / 8));
  }
}

// backward_sum adds the parts' sums in order: a thread has four numbers of DK or DV. It reads 4 bytes for each and
// part, which L2 may still hold, and writes 2: bound by memory.
template <int D> __device__ __forceinline__ void backward_sum(const AttentionBackwardArgs &a) {
  const i64 n = a.rows * a.kv_heads * (D / 4), i = i64(blockIdx.x) * SUM_THREADS + threadIdx.x;
  if (i >= n) return;
  float sum[4] = {};
#pragma unroll 4
  for (int part = 0; part < a.parts; part++) {
    float x[4];
    load(x, a.sums, (part * 2 + i64(blockIdx.y)) * n + i);
#pragma unroll
    for (int k = 0; k < 4; k++) sum[k] += x[k];
  }
  const float scale = blockIdx.y == 0 ? a.scale : 1.0f;
#pragma unroll
  for (int k = 0; k < 4; k++) sum[k] *= scale;
  store(blockIdx.y == 0 ? a.dk : a.dv, i, sum);
}

// ---- DQ, by blocks of queries
//
// As the forward, with DOut beside the queries in registers, and half a tile of keys at a time to leave room
// for them. FLOPs: 6·D a score, three products. Bytes as the forward's, and DOut, DQ, LSE and D once.
//
// Shared memory 512·D bytes (32 KB, 64 KB). Registers at most 255: two blocks of 4 warps on a multiprocessor for
// D=64, one of 8 for D=128.
template <int D> __device__ __forceinline__ void backward_q(const AttentionBackwardArgs &a) {
  constexpr int M = tall<D>;
  extern __shared__ __align__(1024) uint4 shared[];
  const u32 stages = shared_address(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.x, block = (gridDim.z - 1 - blockIdx.z) * ROWS; // the longest first
  const i64 first = i64(blockIdx.y) * a.seq_len;
  const int q_stride = a.heads * D, kv_stride = a.kv_heads * D;
  const bf16 *k = a.k + first * kv_stride + head / (a.heads / a.kv_heads) * D;
  const bf16 *v = a.v + first * kv_stride + head / (a.heads / a.kv_heads) * D;
  const i64 at = (first + block) * q_stride + head * D;
  copy_tile<D, ROWS>(stages, a.q + at, q_stride, a.seq_len - block);
  copy_tile<D, ROWS>(stages + 2 * tile_bytes<D>, a.dout + at, q_stride, a.seq_len - block);
  commit();
  const Rows<M> rows(a.start + first, block, a.seq_len);
  float lse[2 * M], d[2 * M];
#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
    const i64 at = (first + min(rows.row[i], a.seq_len - 1)) * a.heads + head;
    lse[i] = a.lse[at] * LOG2E;
    d[i] = a.d[at];
  }
  wait_but<0>();
  __syncthreads();
  u32 q[D / 16][M][4], dout[D / 16][M][4];
#pragma unroll
  for (int i = 0; i < D / 16; i++) {
#pragma unroll
    for (int m = 0; m < M; m++) {
      left<D>(q[i][m], stages + lane_rows<D>(), (warp * M + m) * 16, i);
      left<D>(dout[i][m], stages + 2 * tile_bytes<D> + lane_rows<D>(), (warp * M + m) * 16, i);
    }
  }
  __syncthreads();

  auto fetch = [&](int stage, int tile) {
    i64 at = i64(tile) * TILE * kv_stride;
    u32 to = stages + stage * 2 * tile_bytes<D>;
    copy_tile<D, TILE>(to, k + at, kv_stride, a.seq_len - tile * TILE);
    copy_tile<D, TILE>(to + tile_bytes<D>, v + at, kv_stride, a.seq_len - tile * TILE);
    commit();
  };
  float dq[M][D / 8][4] = {};
  const float scale = a.scale * LOG2E;
  const int last = (min(block + ROWS, a.seq_len) - 1) / TILE;
  int tile = rows.from / TILE, stage = 0;
  fetch(0, tile);
  for (; tile <= last; tile++, stage ^= 1) {
    wait_but<0>();
    __syncthreads();
    if (tile < last) fetch(stage ^ 1, tile + 1);
    const u32 tiles = stages + stage * 2 * tile_bytes<D>;
    const u32 keys = tiles + lane_columns<D>(), values = keys + tile_bytes<D>, key_rows = tiles + lane_rows<D>();
#pragma unroll 1
    for (int half = 0; half < TILE; half += 32) {
      const int key = tile * TILE + half;
      if (!rows.sees(key, 32)) continue;
      float p[M][4][4] = {}, ds[M][4][4] = {};
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
          u32 b[4];
          right<D>(b, keys, half + 16 * n, i);
#pragma unroll
          for (int m = 0; m < M; m++) {
            multiply_add(p[m][2 * n], q[i][m], b[0], b[1]);
            multiply_add(p[m][2 * n + 1], q[i][m], b[2], b[3]);
          }
          right<D>(b, values, half + 16 * n, i);
#pragma unroll
          for (int m = 0; m < M; m++) {
            multiply_add(ds[m][2 * n], dout[i][m], b[0], b[1]);
            multiply_add(ds[m][2 * n + 1], dout[i][m], b[2], b[3]);
          }
        }
      }
      const bool all = rows.sees_all(key, 32);
#pragma unroll
      for (int i = 0; i < 2 * M; i++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const bool hidden = !all && rows.hides(i, key + 8 * n + lane % 4 * 2 + e);
            const float x = hidden ? 0.0f : power_of_2(fmaf(p[i / 2][n][i % 2 * 2 + e], scale, -lse[i]));
            float &y = ds[i / 2][n][i % 2 * 2 + e];
            y = x * (y - d[i]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < 2; n++) {
        u32 x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) as_left(x[m], ds[m][2 * n], ds[m][2 * n + 1]);
        add_product<D, M>(dq, x, key_rows, half + 16 * n);
      }
    }
  }
  __syncthreads(); // all are done with the tiles
#pragma unroll
  for (int m = 0; m < M; m++) {
    const int row = rows.first + 16 * m;
    write_rows<D>(a.dq + (first + row) * q_stride + head * D, q_stride, a.seq_len - row, dq[m], a.scale, a.scale,
                  shared + (warp * M + m) * (16 * D / 8));
  }
}

#define KERNELS(D)                                                                                         \
  extern "C" __global__ void __launch_bounds__(D_THREADS, 6)                                               \
  attention_backward_d_h##D##_bf16(const AttentionBackwardArgs a) { backward_d<D>(a); }                    \
  extern "C" __global__ void __launch_bounds__(threads<D>, D == 64 ? 2 : 1)                                \
  attention_backward_q_h##D##_bf16(const AttentionBackwardArgs a) { backward_q<D>(a); }                    \
  extern "C" __global__ void __launch_bounds__(threads<D>, D == 64 ? 2 : 1)                                \
  attention_backward_kv_h##D##_bf16(const AttentionBackwardArgs a) { backward_kv<D>(a); }                  \
  extern "C" __global__ void __launch_bounds__(SUM_THREADS, 6)                                             \
  attention_backward_sum_h##D##_bf16(const AttentionBackwardArgs a) { backward_sum<D>(a); }

KERNELS(64)
KERNELS(128)
