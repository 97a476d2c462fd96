// What attention and its gradients share: causal, of packed documents, in bf16, on tensor cores, for heads of 64
// and 128 numbers. attention_f32.cu has the plain kernels in fp32.
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
//   - No atomics: each result is summed by one warp, or by a few whose sums are then added in order.
//   - What a row does not see enters products with a factor of 0. So a NaN or an infinity among values or gradients
//     that it does not see reaches it where both are in one tile; the plain kernels do not read what is not seen.
//
// Whether the tensor cores are the limit. A product of 16×8×16 is 4,096 FLOPs: 4 clocks of an L4's multiprocessor
// (121 TFLOP/s), 2 of an A100's, about 1.55 of an H200's, which reaches 62 % of its dense peak by mma.sync.
// Shared memory gives 128 bytes a clock, so a product may read 512, 256 and 200 bytes. With 16·M rows a warp an
// operand that is read, 512 bytes, serves 2·M products. Bytes a product, from the tiles' sizes below:
//
//     rows a warp              forward, DQ    DK and DV    share of its mma.sync that an H200 can reach
//     32 (M = 2, heads of 64)          128          192    all, all
//     16 (M = 1, heads of 128)         256          320    77 %, 62 %
//
// Heads of 128 with 32 rows would need more registers than there are. Softmax and barriers come on top. (Rates by
// data sheets; no GPU was at hand.)
#pragma once
#include "common.cuh"

constexpr int ROWS = 128; // queries of a block that goes over keys
constexpr int TILE = 64;  // rows of a tile that passes, and keys of a block that goes over queries
constexpr float LOG2E = 1.4426950408889634f;

template <int D> constexpr int tile_bytes = TILE * D * 2;

// tall<D> is how many times 16 rows a warp has, threads<D> how many threads a block.
template <int D> constexpr int tall = D == 64 ? 2 : 1;
template <int D> constexpr int threads = ROWS / (16 * tall<D>) * 32;

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
template <int D, int R> __device__ __forceinline__ void copy_tile(u32 tile, const bf16 *from, int stride, int present) {
  constexpr int ACROSS = D / 8, STEP = threads<D> / ACROSS;
  int c = threadIdx.x % ACROSS, r = threadIdx.x / ACROSS;
#pragma unroll
  for (int i = 0; i < R / STEP; i++, r += STEP) {
    bool there = r < present;
    copy_16(tile + chunk<D>(r, c), from + i64(there ? r : 0) * stride + c * 8, there);
  }
}

// What a lane reads of tiles: lane_rows begins 16 rows, two chunks of each, lane_columns as many in the order of
// right operands. A tile begins at a multiple of 8 rows, so the chunks 2·k on are at ^ 32·k, and eight rows on have
// the same pattern: a place in a tile costs one instruction, and no register beside these two.
template <int D> __device__ __forceinline__ u32 lane_rows() {
  const int l = threadIdx.x % 32;
  return chunk<D>(l % 16, l / 16);
}
template <int D> __device__ __forceinline__ u32 lane_columns() {
  const int l = threadIdx.x % 32;
  return chunk<D>(l % 8 + l / 16 * 8, l / 8 % 2);
}

// here returns x, and keeps compilers from computing all that follows from it before a loop, for which there are no
// registers.
__device__ __forceinline__ u32 here(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

// left reads the left operand of a product: 16 rows of a tile from row on, columns 16·k and on. At is tile +
// lane_rows, row a multiple of 8; so below.
template <int D> __device__ __forceinline__ void left(u32 (&to)[4], u32 at, int row, int k) {
  load_matrices(to, (at ^ k * 32) + row * (2 * D));
}

// right reads two right operands: rows of the tile are columns of the operand, eight each, from row on; its
// rows are the tile's columns 16·k and on. So a·right = a·tileᵀ. At is tile + lane_columns.
template <int D> __device__ __forceinline__ void right(u32 (&to)[4], u32 at, int row, int k) {
  load_matrices(to, (at ^ k * 32) + row * (2 * D));
}

// right_rows reads two right operands whose rows are 16 rows of the tile, from row on, and whose columns are
// the tile's columns 16·n and 16·n+8 and on. So a·right_rows = a·tile. At is tile + lane_rows.
template <int D> __device__ __forceinline__ void right_rows(u32 (&to)[4], u32 at, int row, int n) {
  load_matrices_transposed(to, (at ^ n * 32) + row * (2 * D));
}

// as_left makes 16 columns of results, which are two products', a left operand.
__device__ __forceinline__ void as_left(u32 (&to)[4], const float (&a)[4], const float (&b)[4]) {
  to[0] = two_bf16(a[0], a[1]);
  to[1] = two_bf16(a[2], a[3]);
  to[2] = two_bf16(b[0], b[1]);
  to[3] = two_bf16(b[2], b[3]);
}

// add_product adds a·tile to sum: a is M times 16×16, and the 16 rows of the tile begin at row. At is tile +
// lane_rows.
template <int D, int M>
__device__ __forceinline__ void add_product(float (&sum)[M][D / 8][4], const u32 (&a)[M][4], u32 at, int row) {
#pragma unroll
  for (int n = 0; n < D / 16; n++) {
    u32 b[4];
    right_rows<D>(b, at, row, n);
#pragma unroll
    for (int m = 0; m < M; m++) {
      multiply_add(sum[m][2 * n], a[m], b[0], b[1]);
      multiply_add(sum[m][2 * n + 1], a[m], b[2], b[3]);
    }
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

// Rows are the 16·M query rows of a warp in a block that goes over keys. Lane l has 2·M of them, l/4+8·i.
template <int M> struct Rows {
  int row[2 * M], start[2 * M]; // rows beyond the sequence are computed with, as copies of the last, and not written
  int first;                    // of the warp's
  int least, most;              // of the warp's starts
  int from;                     // the least start of the whole block
  bool any;                     // of the warp's rows lies in the sequence

  __device__ __forceinline__ Rows(const int *starts, int block, int seq_len) {
    int l = threadIdx.x % 32, least_of_block = seq_len;
#pragma unroll
    for (int i = 0; i < ROWS / 32; i++) {
      int r = block + l + 32 * i;
      if (r < seq_len) least_of_block = min(least_of_block, in_range(starts[r], r + 1));
    }
    from = warp_min(least_of_block);
    first = block + threadIdx.x / 32 * (16 * M);
    any = first < seq_len;
    least = seq_len;
    most = 0;
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
      row[i] = first + l / 4 + 8 * i;
      start[i] = starts[min(row[i], seq_len - 1)];
      least = min(least, start[i]);
      most = max(most, start[i]);
    }
    least = warp_min(least);
    most = -warp_min(-most);
  }

  // sees says whether one of the rows attends to one of n keys.
  __device__ __forceinline__ bool sees(int key, int n) const {
    return any && key <= first + 16 * M - 1 && key + n > least;
  }
  // sees_all says whether all rows attend to all of n keys.
  __device__ __forceinline__ bool sees_all(int key, int n) const { return key + n <= first + 1 && key >= most; }
  // hides says whether row i does not attend to key.
  __device__ __forceinline__ bool hides(int i, int key) const { return key < start[i] || key > row[i]; }
};
