// Causal attention of packed documents and its gradients, in bf16, on tensor cores, for heads of 64 and 128
// numbers. attention_f32.cu has the plain kernels in fp32.
//
// The ideas are FlashAttention-2's (Dao, arXiv 2307.08691): scores live in registers, a tile at a time; the
// softmax is computed as the tiles pass, and the gradients compute its probabilities again from LSE.
//
// What all of it shares:
//   - A tile is rows of one head in shared memory, D numbers each. It arrives by cp.async while the tile
//     before it is computed on: there are two stages, and one barrier a tile, which says both that the tile
//     is there and that nobody reads the stage any more that is filled next.
//   - The 16 bytes at column c of row r lie at column c^(r%8): eight rows at one column, which is what
//     ldmatrix reads at once, are then in eight different groups of four banks, and so are the eight
//     neighbours of a row that are written at once.
//   - A product of 16×8 keeps its result such that lane l holds rows l/4 and l/4+8, columns 2·(l%4) and on.
//     Two such results side by side are, rounded to bf16, the left operand of the next product: scores and
//     their gradients never go through memory. Which operand stands left is chosen for that.
//   - Tiles that causality or the documents rule out for the whole block are not read; within a block,
//     warps pass over the tiles that are ruled out for all their own rows.
//   - No atomics: each result is summed by one warp, or by two whose sums are then added in order.
#include "common.cuh"

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

struct AttentionBackwardArgs {
  const bf16 *q, *k, *v;
  const int *start;
  const bf16 *out;
  const float *lse;
  const bf16 *dout;
  float *d;
  bf16 *dq, *dk, *dv;
  i64 rows; // of all sequences
  int seq_len, heads, kv_heads;
  float scale;
};

constexpr int THREADS = 256; // 8 warps
constexpr int ROWS = 128;  // queries of a block that goes over keys: 16 a warp
constexpr int TILE = 64;   // rows of a tile that passes
constexpr float LOG2E = 1.4426950408889634f;

template <int D> constexpr int tile_bytes = TILE * D * 2;

// power_of_2 is 2^x to 22 bits, which is more than bf16 will keep.
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// copy_4 is copy_16's sister for four bytes.
__device__ __forceinline__ void copy_4(u32 to, const void *from, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(present ? 4 : 0)
               : "memory");
}

// chunk is where the 16 bytes at column c (in chunks) of row r begin in a tile.
template <int D> __device__ __forceinline__ u32 chunk(int r, int c) { return u32(r * (2 * D) + ((c ^ (r & 7)) << 4)); }

// copy_tile starts the copies of R rows to a tile; rows at or beyond present become zeros.
template <int D, int R> __device__ __forceinline__ void copy_tile(u32 tile, const bf16 *from, i64 stride, int present) {
  constexpr int ACROSS = D / 8, STEP = THREADS / ACROSS;
  int c = threadIdx.x % ACROSS, r = threadIdx.x / ACROSS;
#pragma unroll
  for (int i = 0; i < R / STEP; i++, r += STEP) {
    bool there = r < present;
    copy_16(tile + chunk<D>(r, c), from + (there ? r : 0) * stride + c * 8, there);
  }
}

// left reads the left operand of a product: 16 rows of a tile from row on, columns 16·k and on.
template <int D> __device__ __forceinline__ void left(u32 (&to)[4], u32 tile, int row, int k) {
  int l = threadIdx.x % 32;
  load_matrices(to, tile + chunk<D>(row + l % 16, 2 * k + l / 16));
}

// right reads two right operands: rows of the tile are columns of the operand, eight each, from row on; its
// rows are the tile's columns 16·k and on. So a·right = a·tileᵀ.
template <int D> __device__ __forceinline__ void right(u32 (&to)[4], u32 tile, int row, int k) {
  int l = threadIdx.x % 32;
  load_matrices(to, tile + chunk<D>(row + l % 8 + l / 16 * 8, 2 * k + l / 8 % 2));
}

// right_rows reads two right operands whose rows are 16 rows of the tile, from row on, and whose columns are
// the tile's columns 16·n and 16·n+8 and on. So a·right_rows = a·tile.
template <int D> __device__ __forceinline__ void right_rows(u32 (&to)[4], u32 tile, int row, int n) {
  int l = threadIdx.x % 32;
  load_matrices_transposed(to, tile + chunk<D>(row + l % 16, 2 * n + l / 16));
}

// as_left makes 16 columns of results, which are two products', a left operand.
__device__ __forceinline__ void as_left(u32 (&to)[4], const float (&a)[4], const float (&b)[4]) {
  to[0] = two_bf16(a[0], a[1]);
  to[1] = two_bf16(a[2], a[3]);
  to[2] = two_bf16(b[0], b[1]);
  to[3] = two_bf16(b[2], b[3]);
}

// add_product adds a·tile to sum: a is 16×16, and the 16 rows of the tile begin at row.
template <int D>
__device__ __forceinline__ void add_product(float (&sum)[D / 8][4], const u32 (&a)[4], u32 tile, int row) {
#pragma unroll
  for (int n = 0; n < D / 16; n++) {
    u32 b[4];
    right_rows<D>(b, tile, row, n);
    multiply_add(sum[2 * n], a, b[0], b[1]);
    multiply_add(sum[2 * n + 1], a, b[2], b[3]);
  }
}

// write_rows rounds 16 rows of results, scaled, and writes those that are present with 16 bytes a lane.
// They pass through the warp's own part of shared memory, which nobody else may be using.
template <int D>
__device__ __forceinline__ void write_rows(bf16 *to, i64 stride, int present, const float (&x)[D / 8][4], float scale0,
                                           float scale1, uint4 *part) {
  int l = threadIdx.x % 32;
  char *p = reinterpret_cast<char *>(part);
#pragma unroll
  for (int n = 0; n < D / 8; n++) {
    *reinterpret_cast<u32 *>(p + chunk<D>(l / 4, n) + l % 4 * 4) = two_bf16(x[n][0] * scale0, x[n][1] * scale0);
    *reinterpret_cast<u32 *>(p + chunk<D>(l / 4 + 8, n) + l % 4 * 4) = two_bf16(x[n][2] * scale1, x[n][3] * scale1);
  }
  __syncwarp();
  constexpr int ACROSS = D / 8;
#pragma unroll
  for (int i = 0; i < ACROSS / 2; i++) {
    int r = i * (32 / ACROSS) + l / ACROSS, c = l % ACROSS;
    if (r >= present) continue;
    *reinterpret_cast<Words *>(to + r * stride + c * 8) = *reinterpret_cast<const Words *>(p + chunk<D>(r, c));
  }
}

// warp_min returns the least of the warp's numbers, to all lanes.
__device__ __forceinline__ int warp_min(int x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = min(x, __shfl_xor_sync(0xffffffffu, x, d));
  return x;
}

// Rows are the 16 query rows of a warp in a block that goes over keys. Lane l has two of them, l/4 and l/4+8.
struct Rows {
  int row[2], start[2]; // rows beyond the sequence are computed with, as copies of the last, and not written
  int first;            // of the warp's
  int least, most;      // of the warp's starts
  int from;             // the least start of the whole block
  bool any;             // of the warp's rows lies in the sequence

  __device__ __forceinline__ Rows(const int *starts, int block, int seq_len) {
    int l = threadIdx.x % 32, least_of_block = seq_len;
#pragma unroll
    for (int i = 0; i < ROWS / 32; i++) {
      int r = block + l + 32 * i;
      if (r < seq_len) least_of_block = min(least_of_block, in_range(starts[r], r + 1));
    }
    from = warp_min(least_of_block);
    first = block + threadIdx.x / 32 * 16;
    any = first < seq_len;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      row[i] = first + l / 4 + 8 * i;
      start[i] = starts[min(row[i], seq_len - 1)];
    }
    least = warp_min(min(start[0], start[1]));
    most = -warp_min(-max(start[0], start[1]));
  }

  // sees says whether one of the rows attends to one of n keys.
  __device__ __forceinline__ bool sees(int key, int n) const { return any && key <= first + 15 && key + n > least; }
  // sees_all says whether all rows attend to all of n keys.
  __device__ __forceinline__ bool sees_all(int key, int n) const { return key + n <= first + 1 && key >= most; }
  // hides says whether row i does not attend to key.
  __device__ __forceinline__ bool hides(int i, int key) const { return key < start[i] || key > row[i]; }
};

// ---- forward
//
// A block takes 128 queries of one head and goes over the keys from the least start to the last query, 64 at
// a time; each of its 8 warps has 16 queries. Queries stay in registers: they come by way of the stage that is
// filled last.
//
// FLOPs: 4·D a score in the tiles that are read, two products: half of SeqLen² scores a head, and the halves
// of tiles that the diagonal cuts off. Bytes: Q, Out and LSE once; K and V once a block, from L2 after the
// first of a group: 128 FLOPs a byte, so that the 121 TFLOP/s of an L4 ask less than 1 TB/s of its L2. Half
// the queries a block would ask for twice that. So the tensor cores are the limit, and what has to stay below
// is the rest of a tile's instructions (about four for each product, at D=128).
//
// Shared memory 512·D bytes (32 KB, 64 KB). Registers: D=64 at most 128, so that two blocks run on a
// multiprocessor; D=128 at most 255, one block: its result alone takes 64.
template <int D> __device__ __forceinline__ void forward(const AttentionArgs &a) {
  extern __shared__ uint4 shared[];
  const u32 stages = shared_address(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.x, block = (gridDim.z - 1 - blockIdx.z) * ROWS; // the longest first
  const i64 first = i64(blockIdx.y) * a.seq_len;                            // row of the sequence
  const i64 q_stride = i64(a.heads) * D, kv_stride = i64(a.kv_heads) * D;
  const bf16 *k = a.k + first * kv_stride + head / (a.heads / a.kv_heads) * D;
  const bf16 *v = a.v + first * kv_stride + head / (a.heads / a.kv_heads) * D;
  const Rows rows(a.start + first, block, a.seq_len);

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
  u32 q[D / 16][4];
#pragma unroll
  for (int i = 0; i < D / 16; i++) left<D>(q[i], stages + 2 * tile_bytes<D>, warp * 16, i);

  float out[D / 8][4] = {}, most[2] = {nothing(), nothing()}, sum[2] = {};
  const float scale = a.scale * LOG2E;
  for (; tile <= last; tile++, stage ^= 1) {
    wait_but<0>();
    __syncthreads();
    if (tile < last) fetch(stage ^ 1, tile + 1);
    const int key = tile * TILE;
    if (!rows.sees(key, TILE)) continue;
    const u32 keys = stages + stage * 2 * tile_bytes<D>, values = keys + tile_bytes<D>;

    float p[TILE / 8][4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
#pragma unroll
      for (int n = 0; n < TILE / 16; n++) {
        u32 b[4];
        right<D>(b, keys, 16 * n, i);
        multiply_add(p[2 * n], q[i], b[0], b[1]);
        multiply_add(p[2 * n + 1], q[i], b[2], b[3]);
      }
    }
    if (!rows.sees_all(key, TILE)) {
#pragma unroll
      for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          if (rows.hides(e / 2, key + 8 * n + lane % 4 * 2 + e % 2)) p[n][e] = nothing();
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float most_now = most[i];
#pragma unroll
      for (int n = 0; n < TILE / 8; n++) most_now = fmaxf(most_now, fmaxf(p[n][2 * i], p[n][2 * i + 1]));
      most_now = fmaxf(most_now, __shfl_xor_sync(0xffffffffu, most_now, 1));
      most_now = fmaxf(most_now, __shfl_xor_sync(0xffffffffu, most_now, 2));
      // A row that has seen no key yet has nothing to subtract.
      const float less = most_now == nothing() ? 0.0f : most_now * scale;
      const float shrink = power_of_2(most[i] * scale - less);
      most[i] = most_now;
      sum[i] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 8; n++) {
        out[n][2 * i] *= shrink;
        out[n][2 * i + 1] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < TILE / 8; n++) {
        p[n][2 * i] = power_of_2(p[n][2 * i] * scale - less);
        p[n][2 * i + 1] = power_of_2(p[n][2 * i + 1] * scale - less);
        sum[i] += p[n][2 * i] + p[n][2 * i + 1];
      }
    }
#pragma unroll
    for (int n = 0; n < TILE / 16; n++) {
      u32 x[4];
      as_left(x, p[2 * n], p[2 * n + 1]);
      add_product<D>(out, x, values, 16 * n);
    }
  }

#pragma unroll
  for (int i = 0; i < 2; i++) {
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
    if (lane % 4 == 0 && rows.row[i] < a.seq_len) {
      a.lse[(first + rows.row[i]) * a.heads + head] = most[i] * a.scale + logf(sum[i]);
    }
  }
  __syncthreads(); // all are done with the tiles
  write_rows<D>(a.out + (first + rows.first) * q_stride + head * D, q_stride, a.seq_len - rows.first, out, 1 / sum[0],
                1 / sum[1], shared + warp * (16 * D / 8));
}

// ---- backward: D, the sum of DOut·Out of a row and head
//
// D/8 lanes a row and head. It moves 4·D bytes and does 2·D FLOPs for each: memory is the limit.
template <int D> __device__ __forceinline__ void backward_d(const AttentionBackwardArgs &a) {
  constexpr int ACROSS = D / 8;
  const i64 n = a.rows * a.heads, i = (i64(blockIdx.x) * THREADS + threadIdx.x) / ACROSS;
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

// ---- backward: DK and DV, by blocks of keys
//
// A block takes 64 keys of one key-value head and goes over its query heads in order, and in each over the
// queries that may see one of the keys, 64 at a time. Warp w has 16 keys, those from 16·(w%4) on, and half
// of each tile of queries, that of w/4; the halves' sums are added at the end, in order. Blocks of
// 128 keys would leave half an L4 idle: a model of 1.5B has two key-value heads.
//
// Scores are computed transposed, keys by queries: so they are left operands of DV += Pᵀ·DOut and
// DK += DSᵀ·Q as they are. FLOPs: 8·D a score, four products; with the pass for DQ seven, where five would do
// if one pass could add to DQ in whatever order its blocks come, that is, with atomics. Bytes: K, V, DK and DV
// once; Q and DOut once a block, from L2: 128 FLOPs a byte. The tensor cores are the limit.
//
// Shared memory 768·D + 1536 bytes (49.5 KB, 97.5 KB): keys and values stay there and are read again for each
// tile of queries, as a warp's sums alone take D registers a lane. Registers at most 255: one block a
// multiprocessor.
template <int D> __device__ __forceinline__ void backward_kv(const AttentionBackwardArgs &a) {
  extern __shared__ uint4 shared[];
  const u32 keys = shared_address(shared), values = keys + tile_bytes<D>, stages = values + tile_bytes<D>;
  float *const numbers = reinterpret_cast<float *>(shared) + 6 * tile_bytes<D> / 4; // of two stages: LSE, D, start
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp / 4;
  const int kv_head = blockIdx.x, group = a.heads / a.kv_heads, block = blockIdx.z * TILE;
  const i64 first = i64(blockIdx.y) * a.seq_len;
  const i64 q_stride = i64(a.heads) * D, kv_stride = i64(a.kv_heads) * D;
  const int *start = a.start + first;
  copy_tile<D, TILE>(keys, a.k + (first + block) * kv_stride + kv_head * D, kv_stride, a.seq_len - block);
  copy_tile<D, TILE>(values, a.v + (first + block) * kv_stride + kv_head * D, kv_stride, a.seq_len - block);

  auto fetch = [&](int stage, int head, int tile) {
    const i64 row = first + tile * TILE;
    const int present = a.seq_len - tile * TILE;
    const u32 to = stages + stage * 2 * tile_bytes<D>;
    copy_tile<D, TILE>(to, a.q + row * q_stride + head * D, q_stride, present);
    copy_tile<D, TILE>(to + tile_bytes<D>, a.dout + row * q_stride + head * D, q_stride, present);
    const int what = threadIdx.x / TILE, r = threadIdx.x % TILE;
    if (what < 3) {
      const i64 at = row + (r < present ? r : 0), of_head = at * a.heads + head;
      const void *from = a.start + at;
      if (what == 0) from = a.lse + of_head;
      if (what == 1) from = a.d + of_head;
      copy_4(shared_address(numbers + (stage * 3 + what) * TILE + r), from, r < present);
    }
    commit();
  };

  // The walk: query heads in order, in each the tiles of queries that see a key. Tiles are looked at 32 at a
  // time, which gives a bit each.
  const int least_tile = block / TILE, last_tile = (a.seq_len - 1) / TILE;
  int head = kv_head * group, base = least_tile, tile = 0;
  auto look = [&]() {
    u32 bits = 0;
    const int n = min(32, last_tile - base + 1);
#pragma unroll 4
    for (int b = 0; b < n; b++) {
      const int r = (base + b) * TILE + lane;
      const bool one = r < a.seq_len && start[r] < block + TILE;
      const bool other = r + 32 < a.seq_len && start[r + 32] < block + TILE;
      if (__any_sync(0xffffffffu, one || other)) bits |= 1u << b;
    }
    return bits;
  };
  u32 bits = look();
  auto next = [&]() { // moves head and tile on; false at the end
    while (bits == 0) {
      base += 32;
      if (base > last_tile) {
        base = least_tile;
        if (++head == (kv_head + 1) * group) return false;
      }
      bits = look();
    }
    const int b = __ffs(bits) - 1;
    bits &= bits - 1;
    tile = base + b;
    return true;
  };

  float dk[D / 8][4] = {}, dv[D / 8][4] = {};
  const float scale = a.scale * LOG2E;
  const int row = warp % 4 * 16; // of the warp's keys in their tile
  next();                        // the keys' own queries are always there
  fetch(0, head, tile);
  for (int stage = 0;; stage ^= 1) {
    const int query = tile * TILE + half * 32; // the warp's first
    wait_but<0>();
    __syncthreads();
    const bool more = next();
    if (more) fetch(stage ^ 1, head, tile);
    if (query < a.seq_len && query + 31 >= block + row) {
      const u32 queries = stages + stage * 2 * tile_bytes<D>, douts = queries + tile_bytes<D>;
      const float *lse = numbers + stage * 3 * TILE + half * 32, *d = lse + TILE;
      const int *starts = reinterpret_cast<const int *>(d + TILE);
      float p[4][4] = {}, ds[4][4] = {};
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        u32 x[4];
        left<D>(x, keys, row, i);
#pragma unroll
        for (int n = 0; n < 2; n++) {
          u32 b[4];
          right<D>(b, queries, half * 32 + 16 * n, i);
          multiply_add(p[2 * n], x, b[0], b[1]);
          multiply_add(p[2 * n + 1], x, b[2], b[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int j = 8 * n + lane % 4 * 2 + e % 2, key = block + row + lane / 4 + e / 2 * 8;
          const bool sees = starts[j] <= key && key <= query + j && query + j < a.seq_len;
          p[n][e] = sees ? power_of_2(p[n][e] * scale - lse[j] * LOG2E) : 0.0f;
        }
      }
#pragma unroll
      for (int n = 0; n < 2; n++) {
        u32 x[4];
        as_left(x, p[2 * n], p[2 * n + 1]);
        add_product<D>(dv, x, douts, half * 32 + 16 * n);
      }
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        u32 x[4];
        left<D>(x, values, row, i);
#pragma unroll
        for (int n = 0; n < 2; n++) {
          u32 b[4];
          right<D>(b, douts, half * 32 + 16 * n, i);
          multiply_add(ds[2 * n], x, b[0], b[1]);
          multiply_add(ds[2 * n + 1], x, b[2], b[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) ds[n][e] = p[n][e] * (ds[n][e] - d[8 * n + lane % 4 * 2 + e % 2]);
      }
#pragma unroll
      for (int n = 0; n < 2; n++) {
        u32 x[4];
        as_left(x, ds[2 * n], ds[2 * n + 1]);
        add_product<D>(dk, x, queries, half * 32 + 16 * n);
      }
    }
    if (!more) break;
  }

  // The second half gives its DK away and takes the first half's DV.
  float *const sums = reinterpret_cast<float *>(shared);
  const int thread = threadIdx.x % 128;
  __syncthreads();
#pragma unroll
  for (int n = 0; n < D / 8; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) sums[((half * (D / 8) + n) * 4 + e) * 128 + thread] = half ? dk[n][e] : dv[n][e];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < D / 8; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float other = sums[(((1 - half) * (D / 8) + n) * 4 + e) * 128 + thread];
      dk[n][e] = half ? other + dv[n][e] : dk[n][e] + other;
    }
  }
  bf16 *const to = (half ? a.dv : a.dk) + (first + block + row) * kv_stride + kv_head * D;
  const float last_scale = half ? 1.0f : a.scale;
  write_rows<D>(to, kv_stride, a.seq_len - block - row, dk, last_scale, last_scale,
                shared + 4 * tile_bytes<D> / 16 + warp * (16 * D / 8));
}

// ---- backward: DQ, by blocks of queries
//
// As the forward, with DOut beside the queries in registers, and half a tile of keys at a time to leave room
// for them. FLOPs: 6·D a score, three products. Bytes as the forward's, and DOut, DQ, LSE and D once.
//
// Shared memory 512·D bytes (32 KB, 64 KB). Registers: D=64 at most 128, so that two blocks run on a
// multiprocessor; D=128 at most 255, one block.
template <int D> __device__ __forceinline__ void backward_q(const AttentionBackwardArgs &a) {
  extern __shared__ uint4 shared[];
  const u32 stages = shared_address(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.x, block = (gridDim.z - 1 - blockIdx.z) * ROWS; // the longest first
  const i64 first = i64(blockIdx.y) * a.seq_len;
  const i64 q_stride = i64(a.heads) * D, kv_stride = i64(a.kv_heads) * D;
  const bf16 *k = a.k + first * kv_stride + head / (a.heads / a.kv_heads) * D;
  const bf16 *v = a.v + first * kv_stride + head / (a.heads / a.kv_heads) * D;
  const i64 at = (first + block) * q_stride + head * D;
  copy_tile<D, ROWS>(stages, a.q + at, q_stride, a.seq_len - block);
  copy_tile<D, ROWS>(stages + 2 * tile_bytes<D>, a.dout + at, q_stride, a.seq_len - block);
  commit();
  const Rows rows(a.start + first, block, a.seq_len);
  float lse[2], d[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const i64 at = (first + min(rows.row[i], a.seq_len - 1)) * a.heads + head;
    lse[i] = a.lse[at] * LOG2E;
    d[i] = a.d[at];
  }
  wait_but<0>();
  __syncthreads();
  u32 q[D / 16][4], dout[D / 16][4];
#pragma unroll
  for (int i = 0; i < D / 16; i++) {
    left<D>(q[i], stages, warp * 16, i);
    left<D>(dout[i], stages + 2 * tile_bytes<D>, warp * 16, i);
  }
  __syncthreads();

  auto fetch = [&](int stage, int tile) {
    i64 at = i64(tile) * TILE * kv_stride;
    u32 to = stages + stage * 2 * tile_bytes<D>;
    copy_tile<D, TILE>(to, k + at, kv_stride, a.seq_len - tile * TILE);
    copy_tile<D, TILE>(to + tile_bytes<D>, v + at, kv_stride, a.seq_len - tile * TILE);
    commit();
  };
  float dq[D / 8][4] = {};
  const float scale = a.scale * LOG2E;
  const int last = (min(block + ROWS, a.seq_len) - 1) / TILE;
  int tile = rows.from / TILE, stage = 0;
  fetch(0, tile);
  for (; tile <= last; tile++, stage ^= 1) {
    wait_but<0>();
    __syncthreads();
    if (tile < last) fetch(stage ^ 1, tile + 1);
    const u32 keys = stages + stage * 2 * tile_bytes<D>, values = keys + tile_bytes<D>;
#pragma unroll 1
    for (int half = 0; half < TILE; half += 32) {
      const int key = tile * TILE + half;
      if (!rows.sees(key, 32)) continue;
      float p[4][4] = {}, ds[4][4] = {};
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
          u32 b[4];
          right<D>(b, keys, half + 16 * n, i);
          multiply_add(p[2 * n], q[i], b[0], b[1]);
          multiply_add(p[2 * n + 1], q[i], b[2], b[3]);
          right<D>(b, values, half + 16 * n, i);
          multiply_add(ds[2 * n], dout[i], b[0], b[1]);
          multiply_add(ds[2 * n + 1], dout[i], b[2], b[3]);
        }
      }
      const bool all = rows.sees_all(key, 32);
#pragma unroll
      for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const bool hidden = !all && rows.hides(e / 2, key + 8 * n + lane % 4 * 2 + e % 2);
          const float x = hidden ? 0.0f : power_of_2(p[n][e] * scale - lse[e / 2]);
          ds[n][e] = x * (ds[n][e] - d[e / 2]);
        }
      }
#pragma unroll
      for (int n = 0; n < 2; n++) {
        u32 x[4];
        as_left(x, ds[2 * n], ds[2 * n + 1]);
        add_product<D>(dq, x, keys, half + 16 * n);
      }
    }
  }
  __syncthreads(); // all are done with the tiles
  write_rows<D>(a.dq + (first + rows.first) * q_stride + head * D, q_stride, a.seq_len - rows.first, dq, a.scale,
                a.scale, shared + warp * (16 * D / 8));
}

#define KERNELS(D)                                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS, D == 64 ? 2 : 1)                                   \
  attention_h##D##_bf16(const AttentionArgs a) { forward<D>(a); }                                          \
  extern "C" __global__ void __launch_bounds__(THREADS, 6)                                                 \
  attention_backward_d_h##D##_bf16(const AttentionBackwardArgs a) { backward_d<D>(a); }                    \
  extern "C" __global__ void __launch_bounds__(THREADS, D == 64 ? 2 : 1)                                   \
  attention_backward_q_h##D##_bf16(const AttentionBackwardArgs a) { backward_q<D>(a); }                    \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                 \
  attention_backward_kv_h##D##_bf16(const AttentionBackwardArgs a) { backward_kv<D>(a); }

KERNELS(64)
KERNELS(128)
